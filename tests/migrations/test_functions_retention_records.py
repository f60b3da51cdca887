"""The sweep of the dedup log: a record outlives every row with its key, whoever sweeps what, when and how often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.migrations.retention import (
    EVERYTHING,
    HANDLER,
    Step,
    ago,
    begin,
    delivered,
    keys,
    left,
    record,
    sweep,
)
from tests.migrations.schema import Connection, insert, logged_in, outbox_row, value
from tests.migrations.sql import CHANNELS, claim, held_up, publish, refusal, settle, subscribe
from tests.migrations.sql import begin as begin_handling

LONG_AGO = "1970-01-01T00:00Z"
PUT_AWAY: dict[str, Any] = {"deleted_at": LONG_AGO}
STEP = Step(active="60 days", grace="7 days")


@pytest.fixture
def sweeper(session: Connection) -> Connection:
    """The session of somebody who sweeps."""
    assert begin(session)
    return session


# by age


@pytest.mark.parametrize(
    ("days", "columns", "swept"),
    [
        (59.9, {}, None),
        (60.1, {}, "put_away"),
        (9_999, {"deleted_at": ago(days=6.9)}, None),
        (9_999, {"deleted_at": ago(days=7.1)}, "deleted"),
        (-1, {}, None),
    ],
)
def test_a_record_without_an_event_is_put_away_and_after_its_grace_deleted(
    sweeper: Connection, days: float, columns: dict[str, Any], swept: str | None
) -> None:
    record(sweeper, "order-7", days, **columns)
    counted = Step(active="60 days", grace="7 days", dry_run=True)
    for step in (counted, STEP):
        assert sweep(sweeper, step, "handled") == (swept == "put_away", swept == "deleted", False)
    assert keys(sweeper) == (set() if swept == "deleted" else {"order-7"})
    tombstone = value(sweeper, "select count(deleted_at) from core.event_handled")
    assert tombstone == (swept == "put_away" or (swept is None and bool(columns)))


def test_a_record_that_was_put_away_still_keeps_its_key_from_taking_effect(session: Connection) -> None:
    record(session, "order-7", **PUT_AWAY)
    publish(session, p_idempotency_key="order-7")
    assert begin_handling(session, claim(session), HANDLER) == ["handled"]


def test_so_many_records_of_each_step_at_a_time(sweeper: Connection) -> None:
    for number in range(5):
        record(sweeper, f"old-{number}")
        record(sweeper, f"over-{number}", **PUT_AWAY)
    few = Step(active="60 days", grace="7 days", limit=2)
    answers = [sweep(sweeper, few, "handled") for _ in range(4)]
    assert answers == [(2, 2, True), (2, 2, True), (1, 1, False), (0, 0, False)]


# by key: the record is old enough a thousand times over, the row is there

Way = Callable[[Connection, str], str]
"""Leaves a row of that status, and answers its key."""


def own_id(connection: Connection, status: str) -> str:
    return str(outbox_row(connection, status))


def explicit(connection: Connection, status: str) -> str:
    outbox_row(connection, status, idempotency_key="order-7")
    return "order-7"


def one_of_several(connection: Connection, status: str) -> str:
    outbox_row(connection, status, idempotency_key="order-7")
    for _ in range(3):
        delivered(connection, 999, idempotency_key="order-7", **PUT_AWAY)
    sweep(connection)
    assert len(left(connection)) == 1
    return "order-7"


def of_a_broadcast_that_is_gone(connection: Connection, status: str) -> str:
    parent = uuid4()
    outbox_row(connection, status, parent_id=parent, idempotency_key=str(parent))
    return str(parent)


def anothers_id(connection: Connection, status: str) -> str:
    other = uuid4()
    outbox_row(connection, status, idempotency_key=str(other))
    return str(other)


def id_in_capitals(connection: Connection, status: str) -> str:
    event_id = uuid4()
    outbox_row(connection, status, id=event_id, idempotency_key=str(event_id).upper())
    return str(event_id).upper()


def id_of_one_with_another_key(connection: Connection, status: str) -> str:
    """Two rows: the key of the one is the id of the other, which has a key of its own."""
    other = delivered(connection, 1, idempotency_key="something else")
    outbox_row(connection, status, idempotency_key=str(other))
    return str(other)


WAYS: list[Way] = [
    own_id,
    explicit,
    one_of_several,
    of_a_broadcast_that_is_gone,
    anothers_id,
    id_in_capitals,
    id_of_one_with_another_key,
]


@pytest.mark.parametrize("status", ["pending", "in_flight", "delivered", "failed"])
@pytest.mark.parametrize("way", WAYS)
def test_a_record_stays_as_it_is_while_any_row_has_its_key(sweeper: Connection, way: Way, status: str) -> None:
    key = way(sweeper, status)
    record(sweeper, key)
    record(sweeper, key, handler_name="platform.other", **PUT_AWAY)
    before = sweeper.execute("select * from core.event_handled order by 1").fetchall()
    for _ in range(2):
        assert sweep(sweeper, EVERYTHING, "handled") == (0, 0, False)
    assert sweeper.execute("select * from core.event_handled order by 1").fetchall() == before
    # and goes when the last of them has gone
    sweeper.execute("delete from core.outbox where idempotency_key = %s", [key])
    assert sweep(sweeper, EVERYTHING, "handled") == (1, 1, False)


@pytest.mark.parametrize("status", ["delivered", "failed"])
def test_a_row_that_was_put_away_is_still_a_row(sweeper: Connection, status: str) -> None:
    event_id = outbox_row(sweeper, status, **PUT_AWAY)
    record(sweeper, event_id, **PUT_AWAY)
    assert sweep(sweeper, EVERYTHING, "handled") == (0, 0, False)
    assert sweep(sweeper).deleted == 1
    assert sweep(sweeper, EVERYTHING, "handled").deleted == 1


@pytest.mark.parametrize("key", ["order-7", "", "0" * 36, "not-a-uuid", "00000000-0000-0000-0000-00000000000g"])
def test_a_key_of_which_there_is_no_row_does_not_live(session: Connection, key: str) -> None:
    outbox_row(session)
    assert not value(session, "select core.outbox_key_lives(%s)", [key])


def test_the_id_of_a_row_with_another_key_does_not_live(session: Connection) -> None:
    event_id = outbox_row(session, idempotency_key="order-7")
    assert not value(session, "select core.outbox_key_lives(%s)", [str(event_id)])
    assert not value(session, "select coalesce(core.outbox_key_lives(null), false)")


def test_while_the_outbox_is_not_swept_no_record_is(sweeper: Connection) -> None:
    rows = [delivered(sweeper, 999) for _ in range(3)] + [delivered(sweeper, 999, **PUT_AWAY) for _ in range(3)]
    for event_id in rows:
        record(sweeper, event_id, **PUT_AWAY)
    for _ in range(3):
        assert sweep(sweeper, EVERYTHING, "handled") == (0, 0, False)
    assert keys(sweeper) == {str(event_id) for event_id in rows}


def test_through_its_whole_life_an_event_takes_effect_once(sweeper: Connection) -> None:
    subscribe(sweeper, "platform")
    parent = publish(sweeper, target=None)
    sweeper.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS])
    claims = claim(sweeper)
    assert begin_handling(sweeper, claims, HANDLER) == ["run"]
    settle(sweeper, claims, "delivered")
    # Published once more under the same key, and it fails for other reasons.
    again = publish(sweeper, p_idempotency_key=str(parent))
    settle(sweeper, claim(sweeper), "dead_letter", "ValueError: no")
    for _ in range(3):
        sweep(sweeper, EVERYTHING)
        sweep(sweeper, EVERYTHING, "handled")
    assert left(sweeper) == {again}
    assert keys(sweeper) == {str(parent)}
    sweeper.execute("select core.outbox_replay(%s, 1)", [again])
    claims = claim(sweeper)
    assert begin_handling(sweeper, claims, HANDLER) == ["handled"]
    settle(sweeper, claims, "delivered")
    for _ in range(3):
        sweep(sweeper, EVERYTHING)
        sweep(sweeper, EVERYTHING, "handled")
    assert (left(sweeper), keys(sweeper)) == (set(), set())


# by other ways


@pytest.mark.parametrize("way", [own_id, explicit, of_a_broadcast_that_is_gone])
def test_a_plain_delete_does_no_more_than_the_sweep(connection: Connection, database: str, way: Way) -> None:
    key = way(connection, "failed")
    record(connection, key)
    record(connection, "free")
    delete: LiteralString = "delete from core.event_handled where idempotency_key = %s"
    with logged_in(database, "spectral_retention") as retention:
        for session in (retention, connection):  # a superuser neither
            said = refusal(session, delete, key)
            assert (said.sqlstate, said.constraint_name) == ("55000", "event_handled_outlives")
            assert key not in (said.message_primary or "")
            assert said.message_hint == "Sweep the outbox first: spectral retention run."
        assert retention.execute(delete, ["free"]).rowcount == 1
        connection.execute("delete from core.outbox")
        assert retention.execute(delete, [key]).rowcount == 1


# at the same time as others


PAUSE = """\
create function public.pause() returns trigger language plpgsql as $$
begin
    perform pg_advisory_lock(7);
    perform pg_advisory_unlock(7);
    return old;
end $$;
create trigger a_pause before delete on core.event_handled for each row execute function public.pause()"""


def test_an_event_that_is_published_while_its_record_is_being_deleted_keeps_it(
    connection: Connection, database: str
) -> None:
    record(connection, "order-7", **PUT_AWAY)
    record(connection, "order-8", **PUT_AWAY)
    connection.execute(PAUSE.encode())
    step = "select put_away, deleted, more from core.sweep_handled('s', 0, 100, '60 days', '7 days', 2)"
    with psycopg.connect(database, autocommit=True) as sweeping, psycopg.connect(database, autocommit=True) as holder:
        begin(sweeping)
        holder.execute("select pg_advisory_lock(7)")
        with held_up(connection, holder, sweeping, step) as answer:
            # The sweep has looked, and found nobody; it has not deleted yet.
            publish(holder, p_idempotency_key="order-7")
            holder.execute("select pg_advisory_unlock(7)")
            assert answer.result() == [(0, 1, True)]
    assert keys(connection) == {"order-7"}
    assert begin_handling(connection, claim(connection), HANDLER) == ["handled"]


def test_a_record_that_somebody_holds_is_swept_the_next_time(connection: Connection, database: str) -> None:
    record(connection, "held", **PUT_AWAY)
    record(connection, "free", **PUT_AWAY)
    begin(connection)
    connection.execute("set lock_timeout = '1ms'")
    with psycopg.connect(database) as other:
        other.execute("select from core.event_handled where idempotency_key = 'held' for update")
        assert sweep(connection, STEP, "handled") == (0, 1, False)
        assert keys(connection) == {"held"}
    assert sweep(connection, STEP, "handled") == (0, 1, False)


def test_a_record_that_is_not_committed_yet_is_nobodys(connection: Connection, database: str) -> None:
    begin(connection)
    publish(connection)
    claims = claim(connection)
    with psycopg.connect(database) as handler:
        assert begin_handling(handler, claims, HANDLER) == ["run"]
        assert sweep(connection, EVERYTHING, "handled") == (0, 0, False)
        settle(handler, claims, "delivered")
        handler.commit()
    assert sweep(connection, EVERYTHING, "handled") == (0, 0, False)
    assert len(keys(connection)) == 1


def test_both_tables_swept_at_once_lose_nothing(connection: Connection, database: str) -> None:
    """The rows are being deleted, but that is not committed: for the dedup log they are there."""
    event_id: UUID = delivered(connection, 999, **PUT_AWAY)
    insert(
        connection,
        "event_handled",
        {"handler_name": HANDLER, "idempotency_key": str(event_id), "event_id": event_id, **PUT_AWAY},
    )
    with psycopg.connect(database) as other:
        other.execute("delete from core.outbox")
        begin(connection)
        assert sweep(connection, EVERYTHING, "handled") == (0, 0, False)
        other.rollback()
    assert keys(connection) == {str(event_id)}
