"""Deliver in one step, and the gate for one row: fenced, once for each key, and for workers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, value
from tests.migrations.sql import Claim as Held
from tests.migrations.sql import held_up, publish, reap, row
from tests.migrations.test_functions_claim_from import HANDLER, claim, due

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


# together


BEGIN_TOGETHER: LiteralString = "select core.outbox_begin_together(%s::uuid[], %s::uuid[], %s::text[])"
DELIVER_TOGETHER: LiteralString = "select core.outbox_deliver_together(%s::uuid[], %s::uuid[], %s::text[])"


def together(claims: Sequence[Held]) -> list[list[object]]:
    return [[held.id for held in claims], [held.token for held in claims], [HANDLER] * len(claims)]


def test_rows_are_begun_together_with_the_key_of_the_first_alone_and_delivered_with_those_of_all(
    session: Connection,
) -> None:
    ids = [publish(session, p_idempotency_key=key) for key in "abc"]
    held = claim(session).held
    with session.transaction():
        assert value(session, BEGIN_TOGETHER, together(held)) is True
        assert keys(session) == [(HANDLER, "a", ids[0])]
        session.execute(DELIVER_TOGETHER, together(held[:2]))
    assert keys(session) == [(HANDLER, "a", ids[0]), (HANDLER, "b", ids[1])]
    assert [row(session, each)["status"] for each in ids] == ["delivered", "delivered", "in_flight"]
    assert row(session, ids[1])["claim_token"] is None


def test_rows_that_are_begun_together_are_not_taken_away(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as other:
        ids = [publish(one), publish(one)]
        held = claim(one).held
        with one.transaction():
            assert value(one, BEGIN_TOGETHER, together(held)) is True
            assert reap(other, ttl="0 s") == []
            one.execute(DELIVER_TOGETHER, together(held))
        assert [row(one, each)["status"] for each in ids] == ["delivered", "delivered"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_claim_that_is_lost_lets_none_of_them_begin_and_none_be_delivered(session: Connection, number: int) -> None:
    ids = [publish(session) for _ in range(2)]
    held = list(claim(session).held)
    held[number] = held[number]._replace(token=uuid4())
    assert value(session, BEGIN_TOGETHER, together(held)) is False
    refused = pytest.raises(psycopg.errors.SerializationFailure, match="of 2 rows 1 are still claimed")
    with refused, session.transaction():
        session.execute(DELIVER_TOGETHER, together(held))
    assert [row(session, each)["status"] for each in ids] == ["in_flight", "in_flight"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_key_that_is_known_lets_none_of_them_begin(session: Connection, number: int) -> None:
    ids = [publish(session, p_idempotency_key=key) for key in "ab"]
    held = claim(session).held
    session.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id) values (%s, %s, %s)",
        [HANDLER, "ab"[number], ids[number]],
    )
    assert value(session, BEGIN_TOGETHER, together(held)) is False


def test_a_key_that_was_taken_since_lets_none_of_them_be_delivered(session: Connection) -> None:
    ids = [publish(session, p_idempotency_key=key) for key in "aab"]
    held = claim(session).held
    with session.transaction():
        assert value(session, BEGIN_TOGETHER, together(held)) is True
        refused = pytest.raises(psycopg.errors.SerializationFailure, match="beside that of the first 1 keys are new")
        with refused, session.transaction():
            session.execute(DELIVER_TOGETHER, together(held))
    assert [row(session, each)["status"] for each in ids] == ["in_flight"] * 3


def test_what_is_begun_together_cannot_be_committed_before_it_is_delivered(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as one:
        one.execute("set spectral.guarded = 'on'")
        for _ in range(3):
            publish(one)
        held = claim(one).held
        with pytest.raises(psycopg.errors.InvalidTransactionTermination), one.transaction():
            assert value(one, BEGIN_TOGETHER, together(held)) is True
        assert keys(one) == []
        with one.transaction():
            assert value(one, BEGIN_TOGETHER, together(held)) is True
            one.execute(DELIVER_TOGETHER, together(held[:2]))
        assert len(keys(one)) == 2
