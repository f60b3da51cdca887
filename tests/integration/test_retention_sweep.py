"""The sweep: what goes, what stays, and in which steps. As a login that has nothing but spectral_retention."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import connect
from spectral.core.events.failure import ConfigurationError
from spectral.core.retention import (
    POLICY_REGISTRY,
    Ended,
    Registry,
    RetentionPolicy,
    Subject,
    SweepOptions,
    SweepProgress,
    SweepReport,
    Swept,
    last_sweep,
    registry_of,
    sweep,
)
from tests.integration.delivery.platform_worker import until
from tests.migrations.schema import STATES, insert, outbox_row, role

Connection = psycopg.Connection[Any]

DAY = timedelta(days=1)
HANDLER = "platform.project_scan"
NOTHING = Swept()


@pytest.fixture
def login(database: str) -> Iterator[str]:
    """The DSN of a login that may sweep, and nothing else."""
    with role(database, groups=("spectral_retention",)) as dsn:
        yield dsn


async def swept(dsn: str, policies: Registry = POLICY_REGISTRY, **options: Any) -> SweepReport:  # noqa: ANN401  fields
    async with connect(dsn, "test") as database:
        return await sweep(database, policies, SweepOptions(**options))


def ago(days: float) -> datetime:
    return datetime.now(UTC) - days * DAY


def record(connection: Connection, key: str | UUID, handled: float, put_away: float | None = None) -> None:
    """A dedup record, written and put away so many days ago."""
    insert(
        connection,
        "event_handled",
        {
            "handler_name": HANDLER,
            "idempotency_key": str(key),
            "event_id": uuid4(),
            "handled_at": ago(handled),
            "deleted_at": None if put_away is None else ago(put_away),
        },
    )


def delivered(connection: Connection, days: float, put_away: float | None = None, **columns: object) -> UUID:
    """An event that was delivered, and put away, so many days ago."""
    tombstone = None if put_away is None else ago(put_away)
    return outbox_row(connection, "delivered", delivered_at=ago(days), deleted_at=tombstone, **columns)


def many_delivered(connection: Connection, count: int, days: float, payload: int = 1) -> None:
    connection.execute(
        "insert into core.outbox (event_type, source, target, generation, status, attempts, delivered_at, payload)"
        " select 'worlds.scan.completed', 'worlds', 'platform', 1, 'delivered', 1, %s,"
        " jsonb_build_object('text', repeat('x', %s)) from generate_series(1, %s)",
        [ago(days), payload, count],
    )


def events(connection: Connection) -> dict[UUID, bool]:
    """Which events there are, and which of them are put away."""
    return dict(connection.execute("select id, deleted_at is not null from core.outbox").fetchall())


def records(connection: Connection) -> dict[str, bool]:
    return dict(connection.execute("select idempotency_key, deleted_at is not null from core.event_handled").fetchall())


# what goes


async def test_events_are_put_away_when_their_time_is_over_and_deleted_after_a_grace(
    login: str, connection: Connection
) -> None:
    young, old = delivered(connection, 44.9), delivered(connection, 45.1)
    put_away, over = delivered(connection, 51, put_away=6.9), delivered(connection, 53, put_away=7.1)
    report = await swept(login)
    assert (report.ended, report.outbox, report.event_handled) == (Ended.COMPLETE, Swept(1, 1), NOTHING)
    assert events(connection) == {young: False, old: True, put_away: True}
    assert over not in events(connection)


async def test_nothing_is_deleted_by_the_sweep_that_puts_it_away_however_late_it_comes(
    login: str, connection: Connection
) -> None:
    late = delivered(connection, 3000)
    record(connection, "late", 3000)
    assert (await swept(login)).outbox == Swept(1, 0)
    assert (await swept(login)).outbox == NOTHING
    assert (events(connection), records(connection)) == ({late: True}, {"late": True})


async def test_records_are_put_away_and_deleted_in_their_own_time(login: str, connection: Connection) -> None:
    record(connection, "young", 59.9)
    record(connection, "old", 60.1)
    record(connection, "put away", 66, put_away=6.9)
    record(connection, "over", 68, put_away=7.1)
    report = await swept(login)
    assert report.event_handled == Swept(1, 1)
    assert records(connection) == {"young": False, "old": True, "put away": True}


async def test_a_discarded_event_goes_after_its_grace(login: str, connection: Connection) -> None:
    recent, over = (outbox_row(connection, "failed", deleted_at=ago(days)) for days in (6.9, 7.1))
    assert (await swept(login)).outbox == Swept(0, 1)
    assert recent in events(connection)
    assert over not in events(connection)


# what stays


@pytest.mark.parametrize("status", ["pending", "in_flight", "failed"])
async def test_what_is_not_over_stays_however_old_it_is(login: str, connection: Connection, status: str) -> None:
    columns = {name: ago(4000) for name in STATES[status] if name.endswith("_at")}
    event_id = outbox_row(connection, status, created_at=ago(4000), occurred_at=ago(4000), **columns)
    report = await swept(login)
    assert (report.outbox, events(connection)) == (NOTHING, {event_id: False})


async def test_age_is_counted_from_the_delivery_not_from_what_the_producer_says(
    login: str, connection: Connection
) -> None:
    event_id = delivered(connection, 1, occurred_at=ago(30_000), created_at=ago(400))
    assert (await swept(login)).outbox == NOTHING
    assert events(connection) == {event_id: False}


@pytest.mark.parametrize("status", ["pending", "in_flight", "failed", "delivered"])
async def test_a_record_outlives_every_event_with_its_key(login: str, connection: Connection, status: str) -> None:
    fresh = {"delivered_at": ago(1)} if status == "delivered" else {}
    own = str(outbox_row(connection, status, **fresh))
    outbox_row(connection, status, idempotency_key="invoice 7", **fresh)
    for key in (own, "invoice 7", "nobody's"):
        record(connection, key, 4000, put_away=3000)
    assert (await swept(login)).event_handled == Swept(0, 1)
    assert records(connection) == {own: True, "invoice 7": True}


async def test_a_record_of_an_event_that_is_put_away_stays_and_of_a_deleted_one_goes_in_the_same_sweep(
    login: str, connection: Connection
) -> None:
    for key, put_away in (("kept", 6.0), ("gone", 8.0)):
        delivered(connection, 100, put_away=put_away, idempotency_key=key)
        record(connection, key, 100, put_away=90)
    report = await swept(login)
    assert (report.outbox, report.event_handled) == (Swept(0, 1), Swept(0, 1))
    assert records(connection) == {"kept": True}


async def test_a_share_of_a_broadcast_keeps_the_record_of_its_key(login: str, connection: Connection) -> None:
    broadcast = delivered(connection, 100, put_away=10, target=None)
    outbox_row(connection, "failed", parent_id=broadcast, idempotency_key=str(broadcast))
    record(connection, broadcast, 100, put_away=90)
    report = await swept(login)
    assert (report.outbox, report.event_handled) == (Swept(0, 1), NOTHING)
    assert records(connection) == {str(broadcast): True}


async def test_what_somebody_holds_is_left_for_the_next_sweep(
    database: str, login: str, connection: Connection
) -> None:
    held, free = delivered(connection, 60), delivered(connection, 60)
    with psycopg.connect(database) as other:
        other.execute("select from core.outbox where id = %s for update", [held])
        assert (await swept(login)).outbox == Swept(1, 0)
        assert events(connection) == {held: False, free: True}
    assert (await swept(login)).outbox == Swept(1, 0)


async def test_a_record_whose_key_is_published_again_in_that_moment_stays(login: str, connection: Connection) -> None:
    """And everything else in that call is swept all the same."""
    record(connection, "again", 100, put_away=90)
    record(connection, "over", 100, put_away=90)
    # Whoever is about to delete it waits until this test has published the key: too late for the statement to see, in
    # time for what checks each row.
    connection.execute(
        "create function public.wait() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock(77); return old; end $$;"
        " create trigger a_wait before delete on core.event_handled for each row"
        " when (old.idempotency_key = 'again') execute function public.wait();"
        " select pg_advisory_lock(77)"
    )
    sweeping = asyncio.create_task(swept(login))
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
    await until(lambda: connection.execute(waiting).fetchone() == (1,))
    outbox_row(connection, "pending", idempotency_key="again")
    connection.execute("select pg_advisory_unlock(77)")
    report = await sweeping
    assert (report.ended, report.event_handled) == (Ended.COMPLETE, Swept(0, 1))
    assert records(connection) == {"again": True}


# in which steps


async def test_a_range_is_swept_batch_by_batch_each_in_a_transaction_of_its_own(
    login: str, connection: Connection
) -> None:
    many_delivered(connection, 25, 60)
    seen: list[SweepProgress] = []
    committed: list[int] = []

    def look(progress: SweepProgress) -> None:
        seen.append(progress)
        committed.append(sum(events(connection).values()))

    async with connect(login, "test") as database:
        await sweep(database, POLICY_REGISTRY, SweepOptions(batch=10), on_progress=look)
    assert [each.swept.put_away for each in seen] == [10, 20, 25]
    assert committed == [10, 20, 25]
    assert [each.blocks_done == each.blocks_total for each in seen] == [False, False, True]


async def test_a_table_is_walked_in_ranges_of_blocks(login: str, connection: Connection) -> None:
    many_delivered(connection, 60, 60, payload=900)
    record(connection, "old", 61)
    seen: list[SweepProgress] = []
    async with connect(login, "test") as database:
        report = await sweep(database, POLICY_REGISTRY, SweepOptions(blocks=4), on_progress=seen.append)
    assert (report.outbox, report.event_handled) == (Swept(60, 0), Swept(1, 0))
    outbox = [each for each in seen if each.subject is Subject.OUTBOX_ROW]
    total = outbox[0].blocks_total
    assert total > 8
    assert [each.blocks_done for each in outbox] == [*range(4, total, 4), total]
    assert [each.subject for each in seen[len(outbox) :]] == [Subject.EVENT_HANDLED]


async def test_one_call_reads_no_more_than_its_range(connection: Connection) -> None:
    many_delivered(connection, 3000, 1, payload=900)
    connection.execute("vacuum analyze core.outbox")
    connection.execute("select core.sweep_begin('x')")
    blocks = connection.execute("select relpages from pg_class where oid = 'core.outbox'::regclass").fetchone()
    assert blocks is not None
    assert blocks[0] > 300
    read = "explain (analyze, buffers, format json) select * from core.sweep_outbox('x', 10, 20, '45 d', '7 d')"
    connection.execute(read.removeprefix("explain (analyze, buffers, format json) "))  # the plans are made
    ((plan,),) = connection.execute(read.encode()).fetchall()
    # Ten blocks for each of the two looks, and what the lease and the catalogue take.
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 100


async def test_empty_tables_are_swept_at_once(login: str, connection: Connection) -> None:
    many_delivered(connection, 10, 60)
    connection.execute("truncate core.outbox")
    report = await swept(login)
    assert (report.ended, report.outbox, report.event_handled) == (Ended.COMPLETE, NOTHING, NOTHING)


async def test_what_is_put_away_is_not_chased_to_the_end_of_a_table_that_grows_by_it(
    login: str, connection: Connection
) -> None:
    connection.execute("alter table core.outbox set (fillfactor = 100)")
    many_delivered(connection, 200, 60, payload=500)
    seen: list[SweepProgress] = []
    async with connect(login, "test") as database:
        report = await sweep(database, POLICY_REGISTRY, SweepOptions(blocks=1), on_progress=seen.append)
    outbox = [each for each in seen if each.subject is Subject.OUTBOX_ROW]
    assert report.outbox == Swept(200, 0)
    assert len(outbox) == outbox[0].blocks_total
    size = connection.execute("select pg_relation_size('core.outbox') / 8192").fetchone()
    assert size is not None
    assert size[0] > outbox[0].blocks_total


async def test_a_dry_run_counts_and_changes_nothing(login: str, connection: Connection) -> None:
    many_delivered(connection, 12, 60)
    delivered(connection, 70, put_away=8)
    record(connection, "old", 61)
    record(connection, "over", 100, put_away=8)
    before = events(connection), records(connection)
    report = await swept(login, dry_run=True, batch=5)
    assert (report.ended, report.dry_run) == (Ended.COMPLETE, True)
    assert (report.outbox, report.event_handled) == (Swept(12, 1), Swept(1, 1))
    assert (events(connection), records(connection)) == before
    assert connection.execute("select name, finished_at from core.sweeper").fetchone() == (None, None)


async def test_every_sweep_that_did_something_is_in_the_audit(login: str, connection: Connection) -> None:
    many_delivered(connection, 3, 60)
    delivered(connection, 70, put_away=8)
    record(connection, "over", 100, put_away=8)
    report = await swept(login, by="nightly", batch=2)
    await swept(login, by="nightly")
    found = connection.execute("select actor, affected, detail from core.audit where action = 'sweep'").fetchall()
    assert report.sweeper.startswith("nightly #")
    ((actor, affected, detail),) = found
    assert (actor, affected) == (report.sweeper, 5)
    assert detail["outbox"] == {"put_away": 3, "deleted": 1}
    assert detail["event_handled"] == {"put_away": 0, "deleted": 1}


# by other policies


async def test_a_project_keeps_things_for_as_long_as_it_says(login: str, connection: Connection) -> None:
    short = registry_of(
        RetentionPolicy(subject=Subject.OUTBOX_ROW, active=DAY, grace=DAY),
        RetentionPolicy(subject=Subject.EVENT_HANDLED, active=3 * DAY, grace=DAY),
    )
    kept, old = delivered(connection, 0.9), delivered(connection, 1.1)
    delivered(connection, 3, put_away=1.1)
    record(connection, "old", 3.1)
    report = await swept(login, short)
    assert (report.outbox, report.event_handled) == (Swept(1, 1), Swept(1, 0))
    assert events(connection) == {kept: False, old: True}


async def test_what_is_not_to_be_deleted_stays_put_away(login: str, connection: Connection) -> None:
    for_ever = registry_of(
        RetentionPolicy(subject=Subject.OUTBOX_ROW, active=45 * DAY, grace=7 * DAY, hard_delete=False),
        RetentionPolicy(subject=Subject.EVENT_HANDLED, active=60 * DAY, grace=7 * DAY, hard_delete=False),
    )
    delivered(connection, 60)
    delivered(connection, 4000, put_away=3900)
    record(connection, "over", 4000, put_away=3900)
    report = await swept(login, for_ever)
    assert (report.outbox, report.event_handled) == (Swept(1, 0), NOTHING)


async def test_policies_that_do_not_go_together_sweep_nothing(login: str, connection: Connection) -> None:
    many_delivered(connection, 1, 60)
    handled = RetentionPolicy(subject=Subject.EVENT_HANDLED, active=50 * DAY, grace=DAY)
    with pytest.raises(ConfigurationError, match="would not outlive"):
        await swept(login, {**POLICY_REGISTRY, handled.key: handled})
    assert list(events(connection).values()) == [False]


# what is known afterwards


async def test_the_last_sweep_is_remembered(login: str, connection: Connection) -> None:
    many_delivered(connection, 2, 60)
    async with connect(login, "test") as database:
        before = await last_sweep(database)
        report = await sweep(database)
        after = await last_sweep(database)
    assert (before.last, before.completed_at, before.sweeping) == (None, None, None)
    assert before.oldest_delivered_at is not None
    assert after.last is not None
    assert (after.last.complete, after.last.sweeper, after.last.outbox) == (True, report.sweeper, Swept(2, 0))
    assert after.completed_at == after.last.finished_at <= after.now
    assert (after.sweeping, after.oldest_delivered_at) == (None, None)


@pytest.mark.parametrize(
    "result", ["{}", '{"complete": "?", "outbox": 7, "sweeper": [], "seconds": "x", "completed_before": "soon"}']
)
async def test_a_result_written_by_hand_is_read_as_far_as_it_can_be(
    login: str, connection: Connection, result: str
) -> None:
    connection.execute("update core.sweeper set finished_at = now(), result = %s", [result])
    async with connect(login, "test") as database:
        state = await last_sweep(database)
    assert state.last is not None
    assert (state.last.complete, state.last.sweeper, state.last.outbox) == (True, None, NOTHING)
    assert state.completed_at == state.last.finished_at
