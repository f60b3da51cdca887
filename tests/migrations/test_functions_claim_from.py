"""Claim from a position: who gets which rows, and how far the claim says that it has looked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.migrations.schema import Connection, outbox_row, update, value
from tests.migrations.sql import CHANNELS, EVENT_TYPE, lose, publish, row, settle, subscribe
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
        "handler_types": None,
    }
    statement = (
        "select * from core.outbox_claim_from(%(worker)s, %(context)s, %(generations)s::bigint[], %(channels)s::text[],"
        " %(types)s::text[], %(limit)s, %(start)s::timestamptz, %(window)s, %(handlers)s::text[],"
        " %(handler_types)s::text[])"
    )
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, arguments | given).fetchall()


def claim(connection: Connection, **given: object) -> Answer:
    first, *rows = ask(connection, **given)
    assert first["id"] is None
    rows.sort(key=itemgetter("due_at"))  # as a worker does: the answer is in no order
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


def test_keys_are_looked_for_of_the_handlers_that_a_row_is_for(session: Connection) -> None:
    first, second = (publish(session, p_event_type=each, p_idempotency_key="k") for each in (EVENT_TYPE, OTHER_TYPE))
    handlers = [HANDLER, "platform.other", "platform.of_everything", "platform.other"]
    session.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id)"
        " select distinct asked.name, 'k', %s::uuid from unnest(%s::text[]) as asked (name)",
        [first, handlers],
    )
    rows = claim(
        session,
        types=[EVENT_TYPE, OTHER_TYPE],
        handlers=handlers,
        handler_types=[EVENT_TYPE, OTHER_TYPE, None, "worlds.scan.failed"],
    ).rows
    assert {each["id"]: each["handled"] for each in rows} == {
        first: [HANDLER, "platform.of_everything"],
        second: ["platform.other", "platform.of_everything"],
    }


def test_workers_that_do_not_say_which_handler_is_for_which_type_have_all_of_them_looked_for(
    session: Connection,
) -> None:
    event_id = publish(session, p_idempotency_key="k")
    session.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id) values (%s, 'k', %s)",
        [HANDLER, event_id],
    )
    head, found = session.execute(
        "select id, handled from core.outbox_claim_from('worker-1', 'platform', '{1}', %s::text[], null, 10, null,"
        " null, %s::text[])",
        [CHANNELS, ["platform.other", HANDLER]],
    ).fetchall()
    assert (head, found) == ((None, None), (event_id, [HANDLER]))


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


def test_a_suspect_tells_which_handlers_took_effect_too(session: Connection) -> None:
    suspect = publish(session, p_idempotency_key="k")
    lose(session, suspect)
    publish(session)
    session.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id) values (%s, 'k', %s)",
        [HANDLER, suspect],
    )
    (found,) = claim(session, handlers=[HANDLER]).rows
    assert (found["id"], found["suspect"], found["handled"]) == (suspect, True, [HANDLER])


def test_one_known_key_among_many_is_found_and_of_the_others_none(session: Connection) -> None:
    known, *others = (publish(session) for _ in range(30))
    session.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id)"
        " select %s, idempotency_key, id from core.outbox where id = %s",
        [HANDLER, known],
    )
    rows = claim(session, handlers=[HANDLER], limit=50).rows
    assert {each["id"]: each["handled"] for each in rows} == {known: [HANDLER], **{each: [] for each in others}}


def test_whoever_claims_a_suspect_hides_nothing_else_from_the_others(database: str) -> None:
    with (
        psycopg.connect(database, autocommit=True) as setup,
        psycopg.connect(database) as one,
        psycopg.connect(database) as two,
    ):
        suspect = publish(setup)
        lose(setup, suspect)
        fresh = [publish(setup), publish(setup)]
        assert claim(one).ids == [suspect]
        beside = claim(two)  # before the other has committed
        one.commit()
        two.commit()
        assert beside.ids  # not none, or who sees none goes to sleep
        assert [*beside.ids, *claim(two, start=beside.reached).ids] == fresh


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
