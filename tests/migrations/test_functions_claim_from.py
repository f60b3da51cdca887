"""Claim from a position, deliver in one step, and the gate for one row: who gets what, and what is left alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.migrations.schema import Connection, logged_in, outbox_row, update, value
from tests.migrations.sql import CHANNELS, EVENT_TYPE, held_up, lose, publish, reap, row, settle, subscribe
from tests.migrations.sql import Claim as Held
from tests.migrations.sql import claim as claim_as_before

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
OTHER_TYPE = "worlds.scan.started"
HANDLER = "platform.project_scan"


class Answer(NamedTuple):
    """What a claim answers: its first row, and the others."""

    token: UUID
    now: datetime
    reached: datetime | None
    rows: list[dict[str, Any]]

    @property
    def ids(self) -> list[UUID]:
        return [each["id"] for each in self.rows]

    @property
    def held(self) -> list[Held]:
        return [Held(each["id"], self.token, each["attempts"]) for each in self.rows]


def ask(connection: Connection, **given: object) -> list[dict[str, Any]]:
    """Everything that the function answers."""
    arguments = {
        "worker": "worker-1",
        "context": "platform",
        "generations": [1],
        "channels": CHANNELS,
        "types": [EVENT_TYPE],
        "limit": 10,
        "start": None,
        "window": None,
        "handlers": [HANDLER],
    }
    statement = (
        "select * from core.outbox_claim_from(%(worker)s, %(context)s, %(generations)s::bigint[], %(channels)s::text[],"
        " %(types)s::text[], %(limit)s, %(start)s::timestamptz, %(window)s, %(handlers)s::text[])"
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, arguments | given).fetchall()


def claim(connection: Connection, **given: object) -> Answer:
    first, *rows = ask(connection, **given)
    assert first["id"] is None
    return Answer(first["claim_token"], first["occurred_at"], first["due_at"], rows)


def due(connection: Connection, seconds: float, **columns: object) -> UUID:
    """A pending row that fell due so many seconds after a noon long ago."""
    event_id = outbox_row(connection, "pending", **columns)
    update(connection, event_id, next_attempt_at=at(seconds))  # nothing is inserted into the past
    return event_id


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


# what a claim takes, and what it says of it


def test_a_claim_hands_out_due_rows_oldest_first_and_signs_them(session: Connection) -> None:
    second, first = due(session, 2), due(session, 1)
    answer = claim(session)
    assert answer.ids == [first, second]
    claimed = row(session, first)
    assert (claimed["status"], claimed["attempts"], claimed["claimed_by"]) == ("in_flight", 1, "worker-1")
    assert claimed["claim_token"] == answer.token
    assert claimed["claimed_at"] == answer.now


def test_the_first_row_tells_the_token_the_time_and_that_everything_was_seen(session: Connection) -> None:
    due(session, 1)
    first, *rows = ask(session)
    filled = {name for name, each in first.items() if each is not None}
    assert filled == {"claim_token", "occurred_at"}
    assert [each["claim_token"] for each in rows] == [None]  # said once for all
    assert abs(first["occurred_at"] - value(session, "select clock_timestamp()")) < timedelta(minutes=1)


def test_a_claim_that_finds_nothing_still_tells_the_time(session: Connection) -> None:
    answer = claim(session)
    assert (answer.rows, answer.reached) == ([], None)


def test_a_row_tells_how_long_it_was_due_and_what_became_of_it_before(session: Connection) -> None:
    event_id = publish(session, p_idempotency_key="k")
    settle(session, claim_as_before(session), "dead_letter", "ValueError: no")
    session.execute("select core.outbox_replay_many(%s::uuid[], 1)", [[event_id]])
    session.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id) values"
        " (%s, 'k', %s), ('platform.nobody_asks', 'k', %s), ('platform.other', 'another', %s)",
        [HANDLER, event_id, event_id, event_id],
    )
    (found,) = claim(session, handlers=[HANDLER, "platform.other"]).rows
    assert (found["attempts"], found["replays"], found["suspect"]) == (1, 1, False)
    assert found["handled"] == [HANDLER]
    assert 0 <= found["waited"] < 60


def test_waiting_is_counted_from_when_the_row_fell_due(session: Connection) -> None:
    due(session, 0)
    answer = claim(session)
    assert answer.rows[0]["due_at"] == NOON
    assert answer.rows[0]["waited"] == pytest.approx((answer.now - NOON).total_seconds())


def test_a_childs_event_is_its_parents_and_a_parents_is_its_own(session: Connection) -> None:
    subscribe(session, "platform")
    parent = publish(session, target=None)
    session.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS])
    own = publish(session)
    rows = {each["id"]: each["event_id"] for each in claim(session).rows}
    assert rows.pop(own) is None
    assert list(rows.values()) == [parent]


def test_a_claim_leaves_rows_alone_that_are_not_this_workers(session: Connection) -> None:
    due(session, 1, target="worlds")
    due(session, 1, generation=2, channel="outbox_default")
    due(session, 1, channel="outbox_gen_1_cold")
    due(session, 1, event_type=OTHER_TYPE)
    due(session, 1, target=None)
    publish(session, p_delay=timedelta(hours=1))
    assert claim(session).rows == []


def test_no_types_means_every_type(session: Connection) -> None:
    rows = [due(session, 1), due(session, 2, event_type=OTHER_TYPE)]
    assert claim(session, types=None).ids == rows


def test_rows_that_somebody_else_is_looking_at_are_skipped(connection: Connection, database: str) -> None:
    first, second = due(connection, 1), due(connection, 2)
    with psycopg.connect(database) as other:
        assert claim(other, limit=1).ids == [first]  # not committed yet
        answer = claim(connection)
        assert (answer.ids, answer.reached) == ([second], None)


@pytest.mark.parametrize(
    "given",
    [{"worker": ""}, {"worker": None}, {"limit": 0}, {"limit": None}, {"limit": -1}, {"window": 0}, {"window": -5}],
    ids=str,
)
def test_a_claim_without_a_name_or_with_a_senseless_bound_is_refused(session: Connection, given: Any) -> None:  # noqa: ANN401  arguments
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        ask(session, **given)


# how far it looked


def test_a_full_claim_says_from_where_on_there_may_be_more(session: Connection) -> None:
    rows = [due(session, number) for number in range(5)]
    answer = claim(session, limit=3)
    assert (answer.ids, answer.reached) == (rows[:3], at(2))
    answer = claim(session, limit=3, start=answer.reached)
    assert (answer.ids, answer.reached) == (rows[3:], None)


def test_a_full_claim_does_not_know_that_nothing_is_left(session: Connection) -> None:
    for number in range(3):
        due(session, number)
    assert claim(session, limit=3).reached == at(2)


def test_rows_of_one_instant_are_not_lost_between_two_full_claims(session: Connection) -> None:
    rows = sorted(due(session, 1) for _ in range(5))
    first = claim(session, limit=3)
    second = claim(session, limit=3, start=first.reached)
    assert first.ids + second.ids == rows


def test_a_position_hides_what_was_due_before_it_and_nothing_else(session: Connection) -> None:
    _, second, third = (due(session, number) for number in (1, 2, 3))
    assert claim(session, start=at(2)).ids == [second, third]
    assert len(claim(session).ids) == 1


def test_a_position_after_everything_finds_nothing(session: Connection) -> None:
    due(session, 1)
    answer = claim(session, start=at(10))
    assert (answer.rows, answer.reached) == ([], None)


# the window


def test_a_window_counts_rows_of_every_type_and_says_where_it_ended(session: Connection) -> None:
    for number in range(6):
        due(session, number, event_type=OTHER_TYPE)
    ours = due(session, 10)
    answer = claim(session, window=4)
    assert (answer.rows, answer.reached) == ([], at(4))
    answer = claim(session, window=4, start=answer.reached)
    assert (answer.ids, answer.reached) == ([ours], None)


def test_a_window_as_large_as_what_is_there_has_seen_everything(session: Connection) -> None:
    for number in range(4):
        due(session, number, event_type=OTHER_TYPE)
    assert claim(session, window=3).reached == at(3)
    assert claim(session, window=4).reached is None


def test_what_lies_in_the_window_is_claimed_and_what_lies_beyond_is_not(session: Connection) -> None:
    ours = [due(session, 0), due(session, 2)]
    due(session, 1, event_type=OTHER_TYPE)
    due(session, 3, event_type=OTHER_TYPE)
    beyond = due(session, 4)
    answer = claim(session, window=3)
    assert (answer.ids, answer.reached) == (ours, at(3))
    assert claim(session, window=3, start=answer.reached).ids == [beyond]


def test_a_window_that_ends_within_an_instant_says_that_instant(session: Connection) -> None:
    """From there, the same window ends there again: whoever walks has to look at more."""
    for _ in range(5):
        due(session, 1, event_type=OTHER_TYPE)
    ours = due(session, 2)
    assert claim(session, window=2).reached == at(1)
    assert claim(session, window=2, start=at(1)).reached == at(1)
    assert claim(session, window=8, start=at(1)).ids == [ours]


def test_a_full_claim_says_the_nearer_of_its_end_and_its_windows(session: Connection) -> None:
    for number in range(6):
        due(session, number)
    assert claim(session, limit=2, window=4).reached == at(1)
    assert claim(session, limit=4, window=2, start=at(2)).reached == at(4)


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_a_walk_in_windows_finds_every_row_once(session: Connection, window: int) -> None:
    ours = []
    for number in range(20):
        event_id = due(session, number, event_type=EVENT_TYPE if number % 3 == 0 else OTHER_TYPE)
        if number % 3 == 0:
            ours.append(event_id)
    found: list[UUID] = []
    start: datetime | None = None
    for _ in range(40):
        answer = claim(session, window=window, start=start, limit=2)
        found += answer.ids
        start = answer.reached
        if start is None:
            break
    assert (found, start) == (ours, None)


# several generations and channels


def test_every_generation_and_channel_is_a_line_and_the_oldest_head_is_served_first(session: Connection) -> None:
    hot = due(session, 5, channel="outbox_gen_1_hot")
    new = due(session, 1, generation=2, channel="outbox_gen_2")
    old = due(session, 3)
    lines = {"generations": [1, 2], "channels": ["outbox_gen_1", "outbox_gen_2", "outbox_gen_1_hot"]}
    first = claim(session, limit=1, **lines)
    assert (first.ids, first.reached) == ([new], at(1))
    second = claim(session, limit=1, **lines)
    assert (second.ids, second.reached) == ([old], at(3))
    assert claim(session, limit=1, **lines).ids == [hot]


def test_one_claim_takes_from_several_lines_up_to_its_limit_and_says_where_the_first_unserved_begins(
    session: Connection,
) -> None:
    rows = [due(session, 1), due(session, 2), due(session, 9)]
    late = [due(session, number, channel="outbox_gen_1_hot") for number in (4, 5, 6)]
    lines = {"channels": ["outbox_gen_1", "outbox_gen_1_hot"]}
    answer = claim(session, limit=4, **lines)
    assert sorted(answer.ids) == sorted([*rows, late[0]])
    assert answer.reached == at(4)  # of the line that is not through, not of the one that has gone further
    assert claim(session, limit=4, start=answer.reached, **lines).ids == late[1:]


def test_a_line_that_was_not_come_to_is_where_the_next_claim_starts(session: Connection) -> None:
    first = [due(session, 1), due(session, 9)]
    waiting = due(session, 5, channel="outbox_gen_1_hot")
    lines = {"channels": ["outbox_gen_1", "outbox_gen_1_hot"]}
    answer = claim(session, limit=2, **lines)
    assert (answer.ids, answer.reached) == (first, at(5))
    assert claim(session, limit=2, start=answer.reached, **lines).ids == [waiting]


def test_each_line_has_a_window_of_its_own_and_the_nearest_end_counts(session: Connection) -> None:
    for number in range(4):
        due(session, number, event_type=OTHER_TYPE)
        due(session, number + 10, event_type=OTHER_TYPE, channel="outbox_gen_1_hot")
    lines = {"channels": ["outbox_gen_1", "outbox_gen_1_hot"]}
    answer = claim(session, window=2, **lines)
    assert (answer.rows, answer.reached) == ([], at(2))


def test_a_generation_or_channel_named_twice_counts_once(session: Connection) -> None:
    rows = [due(session, number) for number in range(3)]
    assert claim(session, generations=[1, 1], channels=["outbox_gen_1", "outbox_gen_1"]).ids == rows


@pytest.mark.parametrize("given", [{"generations": []}, {"channels": []}], ids=str)
def test_without_a_generation_or_a_channel_there_is_nothing_to_claim(session: Connection, given: Any) -> None:  # noqa: ANN401  arguments
    due(session, 1)
    answer = claim(session, **given)
    assert (answer.rows, answer.reached) == ([], None)


# suspects


def test_a_row_whose_worker_was_lost_is_claimed_alone_and_more_may_lie_behind_it(session: Connection) -> None:
    suspect = publish(session)
    lose(session, suspect)
    fresh = [publish(session), publish(session)]
    answer = claim(session)
    assert (answer.ids, answer.rows[0]["suspect"], answer.rows[0]["attempts"]) == ([suspect], True, 2)
    assert answer.reached == answer.rows[0]["due_at"]
    again = claim(session, start=answer.reached)
    assert (again.ids, again.reached) == (fresh, None)
    assert not any(each["suspect"] for each in again.rows)


def test_a_suspect_in_the_middle_is_left_for_its_turn(session: Connection) -> None:
    suspect = publish(session)
    lose(session, suspect)
    before = due(session, 1)
    behind = publish(session)
    assert claim(session).ids == [before, behind]
    assert claim(session).ids == [suspect]


def test_a_suspect_at_the_head_of_a_second_line_waits_and_is_not_walked_past(session: Connection) -> None:
    suspect = publish(session)
    lose(session, suspect)
    first = due(session, 1, channel="outbox_gen_1_hot")
    lines = {"channels": ["outbox_gen_1", "outbox_gen_1_hot"]}
    answer = claim(session, **lines)
    assert answer.ids == [first]
    assert answer.reached == row(session, suspect)["next_attempt_at"]
    assert claim(session, start=answer.reached, **lines).ids == [suspect]


def test_a_row_that_failed_in_an_orderly_way_is_no_suspect(session: Connection) -> None:
    tried = [publish(session) for _ in range(3)]
    settle(session, claim_as_before(session), "retry", "OSError: x")
    answer = claim(session)
    assert sorted(answer.ids) == sorted(tried)
    assert not any(each["suspect"] for each in answer.rows)


# the brake


@pytest.mark.parametrize("braked", ["platform", "*"])
def test_while_the_brake_is_pulled_there_is_no_answer_at_all(session: Connection, braked: str) -> None:
    event_id = due(session, 1)
    session.execute("select core.brake_pull(%s, 'ada', 'r')", [braked])
    assert ask(session) == []
    assert row(session, event_id)["status"] == "pending"
    session.execute("select core.brake_release(%s)", [braked])
    assert claim(session).ids == [event_id]


def test_anothers_brake_does_not_matter(session: Connection) -> None:
    event_id = due(session, 1)
    session.execute("select core.brake_pull('billing', 'ada', 'r')")
    assert claim(session).ids == [event_id]


# deliver


DELIVER: LiteralString = "select core.outbox_deliver(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[])"


def deliver(
    connection: Connection, claims: Sequence[Held], handled: Sequence[tuple[UUID, str]] | None = None
) -> list[UUID]:
    """By one handler for each row, unless told otherwise."""
    taken = [(held.id, HANDLER) for held in claims] if handled is None else handled
    parameters = [
        [held.id for held in claims],
        [held.token for held in claims],
        [event_id for event_id, _ in taken],
        [name for _, name in taken],
    ]
    return [event_id for (event_id,) in connection.execute(DELIVER, parameters)]


def keys(connection: Connection) -> list[tuple[str, str, UUID]]:
    return connection.execute(
        "select handler_name, idempotency_key, event_id from core.event_handled order by 1, 2, 3"
    ).fetchall()


def test_a_row_is_delivered_and_its_keys_are_written_in_one_step(session: Connection) -> None:
    event_id = publish(session, p_idempotency_key="k")
    held = claim(session).held
    assert deliver(session, held, [(event_id, HANDLER), (event_id, "platform.other")]) == [event_id]
    settled = row(session, event_id)
    assert (settled["status"], settled["claim_token"], settled["claimed_by"]) == ("delivered", None, "worker-1")
    assert settled["delivered_at"] is not None
    assert keys(session) == [("platform.other", "k", event_id), (HANDLER, "k", event_id)]


def test_a_row_of_which_no_handler_took_effect_is_delivered_without_a_key(session: Connection) -> None:
    event_id = publish(session)
    assert deliver(session, claim(session).held, []) == [event_id]
    assert keys(session) == []


def test_a_key_has_the_content_class_of_its_row(session: Connection) -> None:
    due(session, 1, content_class="agent_task")
    assert len(deliver(session, claim(session).held)) == 1
    assert value(session, "select content_class from core.event_handled") == "agent_task"


def test_a_claim_that_is_no_longer_held_changes_nothing_and_leaves_no_key(session: Connection) -> None:
    event_id = publish(session)
    (old,) = claim(session).held
    reap(session)
    (new,) = claim(session).held
    assert deliver(session, [old]) == []
    assert (row(session, event_id)["status"], keys(session)) == ("in_flight", [])
    assert deliver(session, [new]) == [event_id]


def test_a_foreign_token_and_an_unknown_row_are_left_alone_beside_one_that_stands(session: Connection) -> None:
    foreign, mine = publish(session), publish(session)
    claims = {held.id: held for held in claim(session).held}
    given = [Held(foreign, uuid4(), 1), Held(uuid4(), claims[mine].token, 1), claims[mine]]
    assert deliver(session, given) == [mine]
    assert row(session, foreign)["status"] == "in_flight"
    assert [event_id for _, _, event_id in keys(session)] == [mine]


def test_a_token_opens_no_other_row_of_another_claim(session: Connection) -> None:
    first = publish(session)
    one = claim(session).held
    second = publish(session)
    other = claim(session).held
    crossed = [Held(first, other[0].token, 1), Held(second, one[0].token, 1)]
    assert deliver(session, crossed) == []
    assert keys(session) == []


def test_a_row_is_delivered_once(session: Connection) -> None:
    event_id = publish(session)
    held = claim(session).held
    assert deliver(session, held) == [event_id]
    assert deliver(session, held) == []


def test_a_key_that_is_there_already_is_no_obstacle(session: Connection) -> None:
    first, second = publish(session, p_idempotency_key="same"), publish(session, p_idempotency_key="same")
    assert sorted(deliver(session, claim(session).held)) == sorted([first, second])
    assert [(name, key) for name, key, _ in keys(session)] == [(HANDLER, "same")]
    third = publish(session, p_idempotency_key="same")
    assert deliver(session, claim(session).held) == [third]
    assert len(keys(session)) == 1


def test_a_row_and_a_handler_given_twice_count_once(session: Connection) -> None:
    event_id = publish(session)
    (held,) = claim(session).held
    assert deliver(session, [held, held], [(event_id, HANDLER)] * 3) == [event_id]
    assert len(keys(session)) == 1


def test_an_old_claim_beside_the_new_one_delivers_once(session: Connection) -> None:
    event_id = publish(session)
    (old,) = claim(session).held
    reap(session)
    (new,) = claim(session).held
    assert deliver(session, [old, new]) == [event_id]
    assert len(keys(session)) == 1


def test_a_handler_of_a_row_that_is_not_delivered_leaves_no_key(session: Connection) -> None:
    mine, other = publish(session), publish(session)
    held = [each for each in claim(session).held if each.id == mine]
    assert deliver(session, held, [(mine, HANDLER), (other, HANDLER)]) == [mine]
    assert [event_id for _, _, event_id in keys(session)] == [mine]


def test_nothing_delivers_nothing(session: Connection) -> None:
    assert deliver(session, []) == []


@pytest.mark.parametrize(
    "arrays",
    [(1, 2, 0, 0), (2, 1, 0, 0), (1, 1, 1, 0), (1, 1, 0, 1), (0, 1, 0, 0)],
    ids=str,
)
def test_arrays_that_are_not_parallel_are_refused(session: Connection, arrays: tuple[int, int, int, int]) -> None:
    ids, tokens, handled, names = arrays
    parameters = [
        [uuid4() for _ in range(ids)],
        [uuid4() for _ in range(tokens)],
        [uuid4() for _ in range(handled)],
        [HANDLER] * names,
    ]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="parallel"):
        session.execute(DELIVER, parameters)


def test_one_array_that_is_missing_is_refused(session: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="parallel"):
        session.execute(DELIVER, [[uuid4()], None, [], []])


def test_a_key_that_somebody_holds_for_long_is_not_waited_for_and_nothing_is_half_done(
    connection: Connection, database: str
) -> None:
    first, second = (publish(connection, p_idempotency_key="same") for _ in range(2))
    claims = {held.id: held for held in claim(connection).held}
    with psycopg.connect(database) as slow:
        assert deliver(slow, [claims[first]]) == [first]  # not committed yet
        with pytest.raises(psycopg.errors.LockNotAvailable):
            deliver(connection, [claims[second]])
        assert row(connection, second)["status"] == "in_flight"
    assert deliver(connection, [claims[second]]) == [second]


def test_two_that_deliver_rows_of_one_key_both_succeed(connection: Connection, database: str) -> None:
    first, second = (publish(connection, p_idempotency_key="same") for _ in range(2))
    claims = {held.id: held for held in claim(connection).held}
    held = claims[second]
    with (
        psycopg.connect(database) as one,
        psycopg.connect(database, autocommit=True) as two,
    ):
        deliver(one, [claims[first]])
        parameters = [[held.id], [held.token], [held.id], [HANDLER]]
        with held_up(connection, one, two, DELIVER, parameters) as answer:
            one.commit()
            assert answer.result() == [(second,)]
    assert len(keys(connection)) == 1


# the gate for one row


def begin_one(connection: Connection, held: Held, handler: str = HANDLER) -> str:
    statement = "select core.outbox_begin_one(%s, %s, %s)"
    return str(value(connection, statement, [held.id, held.token, handler]))


def test_the_gate_opens_once_for_each_handler_and_key(session: Connection) -> None:
    publish(session, p_idempotency_key="same")
    publish(session, p_idempotency_key="same")
    one, other = claim(session).held
    assert [begin_one(session, each) for each in (one, other, one)] == ["run", "handled", "handled"]
    assert [begin_one(session, each, "platform.other") for each in (other, one)] == ["run", "handled"]


def test_the_gate_is_shut_to_a_claim_that_is_no_longer_held(session: Connection) -> None:
    event_id = publish(session)
    (old,) = claim(session).held
    reap(session)
    (new,) = claim(session).held
    given = [old, Held(event_id, uuid4(), 1), Held(uuid4(), new.token, 1)]
    assert [begin_one(session, each) for each in given] == ["fenced"] * 3
    assert keys(session) == []
    assert begin_one(session, new) == "run"


def test_the_gate_is_open_again_after_a_rollback(session: Connection) -> None:
    publish(session)
    (held,) = claim(session).held
    with session.transaction(force_rollback=True):
        assert begin_one(session, held) == "run"
    assert begin_one(session, held) == "run"


def test_what_passed_the_gate_is_delivered_without_a_second_key(session: Connection) -> None:
    event_id = publish(session)
    (held,) = claim(session).held
    begin_one(session, held)
    assert deliver(session, [held], []) == [event_id]
    assert len(keys(session)) == 1


def test_a_row_that_was_delivered_is_behind_the_fence(session: Connection) -> None:
    publish(session)
    (held,) = claim(session).held
    deliver(session, [held], [])
    assert begin_one(session, held) == "fenced"


def test_whoever_is_at_the_gate_keeps_the_reaper_from_the_row(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    (held,) = claim(connection).held
    with psycopg.connect(database) as lane:
        assert begin_one(lane, held) == "run"
        assert reap(connection) == []
        lane.rollback()
    assert [found for found, *_ in reap(connection)] == [event_id]


def test_a_guarded_transaction_that_passes_the_gate_and_settles_nothing_cannot_commit(
    connection: Connection, database: str
) -> None:
    publish(connection)
    (held,) = claim(connection).held
    with psycopg.connect(database) as lane:
        lane.execute("set spectral.guarded = on")
        assert begin_one(lane, held) == "run"
        with pytest.raises(psycopg.Error):
            lane.commit()
    assert keys(connection) == []
    with psycopg.connect(database) as lane:
        lane.execute("set spectral.guarded = on")
        assert begin_one(lane, held) == "run"
        assert deliver(lane, [held], []) == [held.id]
    assert len(keys(connection)) == 1


# who may


CALLS: dict[str, LiteralString] = {
    "claim_from": "select core.outbox_claim_from('w', 'platform', '{1}', '{outbox_gen_1}', null, 1, null, null, '{}')",
    "deliver": "select core.outbox_deliver('{}', '{}', '{}', '{}')",
    "begin_one": "select core.outbox_begin_one(gen_random_uuid(), gen_random_uuid(), 'a.b')",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_worker_may_and_nobody_else(shared_database: str, name: str) -> None:
    with logged_in(shared_database, "spectral_worker") as worker:
        assert worker.execute(CALLS[name]).fetchall() is not None
    for group in ("spectral_publisher", "spectral_operator", "spectral_readonly"):
        with (
            logged_in(shared_database, group) as other,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            other.execute(CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_same_whatever_a_session_has_put_before_the_catalog(session: Connection, name: str) -> None:
    """A table or a function of the caller's must not be taken for the schema's."""
    session.execute("create temporary table outbox (id integer)")
    session.execute(
        "create function pg_temp.clock_timestamp() returns timestamptz language sql as $$ select null::timestamptz $$"
    )
    session.execute("set local search_path = pg_temp, public")
    event_id = due(session, 1)
    if name == "claim_from":
        assert claim(session).ids == [event_id]
        return
    (held,) = claim(session).held
    if name == "deliver":
        assert deliver(session, [held]) == [event_id]
    else:
        assert begin_one(session, held) == "run"
