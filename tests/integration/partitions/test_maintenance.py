"""Months ahead, the default partition, and what is over; by hand and by the sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from spectral.core.database import Database, NotFoundError, RefusedError, connect
from spectral.core.partitions import Keep, Maintained, Progress, enable, maintain, maintaining, partition_status
from spectral.core.partitions.patience import patiently
from spectral.core.retention import RetentionPolicy, Subject, SweepOptions, registry_of, sweep
from tests.integration.delivery.platform_worker import until
from tests.integration.partitions.rows import Connection, month, name_of, write

DAY = timedelta(days=1)
LONG_AGO = timedelta(days=10)


@pytest.fixture
def admin(months: str) -> Iterator[Connection]:
    with psycopg.connect(months, autocommit=True) as connection:
        yield connection


@pytest.fixture
async def retention(months: str) -> AsyncIterator[Database]:
    """The connection of a sweeper, which owns nothing."""
    async with connect(months, "tests") as database:
        await database.connection.execute("set role spectral_retention")
        yield database


def partitions(connection: Connection) -> list[str]:
    return [row[0] for row in connection.execute("select name from core.outbox_partitions()")]


def drop(connection: Connection, *names: str) -> None:
    for name in names:
        connection.execute(psycopg.sql.SQL("drop table core.{}").format(psycopg.sql.Identifier(name)))


async def test_nothing_to_do_is_nothing_done(admin: Connection, retention: Database) -> None:
    before = partitions(admin)
    drop(admin, name_of(admin, -3))  # its time is over, empty or not
    assert await maintain(retention, by="ann") == Maintained()
    assert partitions(admin) == before[1:]


async def test_missing_months_are_created_with_all_that_belongs_to_them(admin: Connection, retention: Database) -> None:
    facts = (
        "select regexp_replace(core.partition_shape(relation), 'y[0-9]{4}m[0-9]{2}', '', 'g'),"
        " core.partition_storage(relation),"
        " (select count(*) from pg_index where indrelid = relation), relowner::regrole::text, relrowsecurity"
        " from core.partition_leaves('core.outbox') join pg_class on oid = relation where name = %s"
    )
    last = name_of(admin, 3)
    expected = admin.execute(facts, [last]).fetchone()
    drop(admin, last, name_of(admin, 2))
    told = await maintain(retention, by="ann", dry_run=True)
    assert (told.created, told.dry_run) == ((name_of(admin, 2), last), True)
    done = await maintain(retention, by="ann")
    assert done.created == (name_of(admin, 2), last)
    assert admin.execute(facts, [last]).fetchone() == expected
    assert expected is not None
    assert "fillfactor" in expected[1]
    assert (await partition_status(retention)).months_ahead == 3


async def test_what_is_over_as_a_whole_is_dropped(admin: Connection, retention: Database) -> None:
    old = name_of(admin, -3)
    write(admin, month(admin, -3), put_away=LONG_AGO, count=50)
    write(admin, month(admin, -3), "failed", put_away=LONG_AGO)
    write(admin, month(admin, -1), put_away=LONG_AGO)
    (found,) = [each for each in (await partition_status(retention)).partitions if each.name == old]
    assert (found.droppable, found.because) == (True, "its time is over and nothing in it is left to do")
    done = await maintain(retention, by="ann")
    assert (done.dropped, done.dropped_rows, done.kept) == ((old,), 51, ())
    assert old not in partitions(admin)
    assert admin.execute("select count(*) from core.outbox").fetchone() == (1,)
    entry = admin.execute("select action, actor, affected, detail from core.audit order by id desc limit 1").fetchone()
    assert entry == ("partitions", "ann", 51, {"step": "drop", "partition": old})


@pytest.mark.parametrize(
    ("status", "put_away"),
    [
        ("pending", None),
        ("in_flight", None),
        ("failed", None),
        ("delivered", None),
        ("delivered", 6 * DAY),
        ("failed", 6 * DAY),
    ],
)
async def test_one_row_that_is_not_over_keeps_its_partition(
    admin: Connection, retention: Database, status: str, put_away: timedelta | None
) -> None:
    write(admin, month(admin, -3), put_away=LONG_AGO, count=5)
    write(admin, month(admin, -3), status, put_away=put_away)
    done = await maintain(retention, by="ann")
    assert (done.dropped, [each.name for each in done.kept]) == ((), [name_of(admin, -3)])
    assert admin.execute("select count(*) from core.outbox").fetchone() == (6,)


async def test_whoever_asks_the_database_itself_drops_nothing_that_is_not_over(
    admin: Connection, retention: Database
) -> None:
    write(admin, month(admin, -3), "failed")
    ask = "select core.partition_drop(%s, %s, %s, 'ann')"
    assert await retention.value(ask, [name_of(admin, -3), DAY, DAY]) is None
    assert await retention.value(ask, [name_of(admin, 0), DAY, DAY]) is None
    assert await retention.value(ask, [name_of(admin, -3), None, None]) is None
    for name in ("outbox_default", "deployments", None):
        with pytest.raises(psycopg.errors.NoDataFound):
            admin.execute(ask, [name, DAY, DAY])


async def test_events_that_are_kept_for_ever_keep_their_partitions(admin: Connection, retention: Database) -> None:
    write(admin, month(admin, -3), put_away=LONG_AGO)
    assert (await maintain(retention, Keep(grace=None), by="ann")).dropped == ()


async def test_a_row_that_is_locked_postpones_the_drop(months: str, admin: Connection, retention: Database) -> None:
    write(admin, month(admin, -3), put_away=LONG_AGO)
    with psycopg.connect(months) as handler:
        handler.execute("select from core.outbox for update")
        task = asyncio.create_task(maintain(retention, by="ann"))
        done, _ = await asyncio.wait([task], timeout=2)
        assert not done, "it tries again and again"
        handler.rollback()
        assert (await task).dropped == (name_of(admin, -3),)


async def test_rows_that_no_month_was_there_for_become_a_partition_of_their_own(
    admin: Connection, retention: Database
) -> None:
    drop(admin, *(name_of(admin, later) for later in range(4)))
    for _ in range(20):
        admin.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform')")
    status = await partition_status(retention)
    assert (status.default_rows, status.months_ahead) == (20, 0)
    done = await maintain(retention, by="ann")
    assert done.mended is not None
    assert done.mended.startswith(name_of(admin, 0))
    assert done.default_rows == 0
    status = await partition_status(retention)
    assert status.months_ahead == 3
    claimed = admin.execute(
        "select count(*) from core.outbox_claim_from("
        "'w', 'platform', '{1}', '{outbox_gen_1}', null, 50, null, 100, '{}')"
    ).fetchone()
    assert claimed == (21,)
    assert (await maintain(retention, by="ann")).mended is None
    admin.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform')")
    assert (await partition_status(retention)).default_rows == 0


async def test_rows_of_a_strange_time_stay_in_the_default_partition_and_stop_nothing(
    admin: Connection, retention: Database
) -> None:
    drop(admin, name_of(admin, 3))
    write(admin, month(admin, -30))
    write(admin, month(admin, 3))
    done = await maintain(retention, by="ann")
    assert (done.created, done.mended, done.default_rows) == ((), None, 2)
    assert (await partition_status(retention)).months_ahead == 2


async def test_two_at_once_are_harmless(months: str, admin: Connection) -> None:
    write(admin, month(admin, -3), put_away=LONG_AGO, count=20)
    drop(admin, name_of(admin, 2), name_of(admin, 3))

    async def one(name: str) -> Maintained:
        async with connect(months, name) as database:
            return await maintain(database, by=name)

    done = await asyncio.gather(one("ann"), one("bob"))
    assert sorted(name for each in done for name in each.created) == [name_of(admin, 2), name_of(admin, 3)]
    assert [name for each in done for name in each.dropped] == [name_of(admin, -3)]


async def test_a_plain_outbox_has_nothing_to_maintain(owner: Database) -> None:
    with pytest.raises(RefusedError, match="not partitioned") as refused:
        await maintain(owner, by="ann")
    assert refused.value.remedy == "spectral partitions enable"


async def test_the_sweep_drops_a_month_and_deletes_nothing_in_one_that_is_ending(
    admin: Connection, retention: Database
) -> None:
    write(admin, month(admin, -3), put_away=LONG_AGO, count=30)
    policies = registry_of(
        RetentionPolicy(subject=Subject.OUTBOX_ROW, active=timedelta(days=31), grace=timedelta(days=5))
    )
    # begun more than that ago, over less than that ago, whatever the day of the month
    ending = -1 if month(admin, -1) < datetime.now(UTC) - timedelta(days=36) else -2
    write(admin, month(admin, ending), put_away=LONG_AGO, count=3)
    write(admin, month(admin, 0), put_away=LONG_AGO, count=2)
    told = await sweep(retention, policies, SweepOptions(dry_run=True))
    assert told.outbox.deleted in {2, 32}, "of a dry run it is the planner's estimate"
    report = await sweep(retention, policies)
    assert report.outbox.deleted == 32
    assert name_of(admin, -3) not in partitions(admin)
    assert admin.execute("select count(*) from core.outbox").fetchone() == (3,)


async def test_the_sweep_goes_row_by_row_where_something_keeps_a_month(admin: Connection, retention: Database) -> None:
    write(admin, month(admin, -3), put_away=LONG_AGO, count=30)
    write(admin, month(admin, -3), count=4)
    (kept,) = write(admin, month(admin, -3), "failed")
    report = await sweep(retention)
    assert (report.outbox.deleted, report.outbox.put_away) == (30, 4)
    left = admin.execute("select count(*), count(*) filter (where id = %s) from core.outbox", [kept]).fetchone()
    assert left == (5, 1)


async def test_the_sweep_takes_back_the_promise_of_a_conversion_that_nobody_finished(
    plain: str, owner: Database
) -> None:
    def vanish(progress: Progress) -> None:
        if progress.step == "switch":
            with psycopg.connect(plain, autocommit=True) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'spectral doomed'"
                    " and datname = current_database()"
                )

    async with connect(plain, "doomed") as database:
        with pytest.raises(Exception, match="lost"):
            await enable(database, by="ann", on_progress=vanish)
    assert (await partition_status(owner)).bound_until is not None
    await sweep(owner)
    assert (await partition_status(owner)).bound_until is None


def replay_and_deliver(dsn: str, row_id: UUID) -> None:
    """A discard is taken back, and its event replayed and delivered."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role spectral_operator")
        connection.execute("update core.outbox set deleted_at = null where id = %s", [row_id])
        connection.execute("select core.outbox_replay(%s, 1, 'ann')", [row_id])
        connection.execute("reset role")
        connection.execute(
            "select from core.outbox_claim_from('w', 'platform', '{1}', '{outbox_gen_1}', null, 1, null, 100, '{}')"
        )
        connection.execute(
            "select core.outbox_deliver(array[id], array[claim_token], '{}', '{}') from core.outbox where id = %s",
            [row_id],
        )


async def test_what_is_replayed_and_delivered_while_a_month_is_looked_at_keeps_it(
    months: str, admin: Connection, retention: Database
) -> None:
    (discarded,) = write(admin, month(admin, -3), "failed", put_away=LONG_AGO)
    with psycopg.connect(months) as holder:
        # after every row was looked at, the lock on the month is waited for: vacuum has it
        holder.execute(f"lock table only core.{name_of(admin, -3)} in share update exclusive mode".encode())
        dropping = asyncio.create_task(maintain(retention, by="ann"))
        waits = "select count(*) from pg_locks where not granted and mode = 'ShareUpdateExclusiveLock'"
        await until(lambda: admin.execute(waits).fetchone() == (1,))
        await asyncio.to_thread(replay_and_deliver, months, discarded)
        holder.rollback()
        assert (await dropping).dropped == ()
    found = admin.execute("select status, deleted_at from core.outbox where id = %s", [discarded]).fetchone()
    assert found == ("delivered", None)


async def test_a_transaction_that_sees_only_its_beginning_drops_nothing(admin: Connection) -> None:
    """Events that came while it waited for the lock would be gone."""
    with admin.transaction():
        admin.execute("set transaction isolation level repeatable read")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="see what others have committed"):
            admin.execute("select core.partition_drop(%s, %s, %s, 'ann')", [name_of(admin, -3), DAY, DAY])


async def test_a_month_to_come_is_not_dropped_however_it_is_asked_for(admin: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        admin.execute("select core.partition_drop(%s, %s, %s, 'ann')", [name_of(admin, 3), timedelta(days=-999), DAY])


@pytest.mark.parametrize("left", [0, 2])
async def test_bounds_that_somebody_who_was_killed_has_left_on_the_default_partition_are_taken_back(
    admin: Connection, retention: Database, left: int
) -> None:
    drop(admin, *(name_of(admin, later) for later in range(4)))
    (lost,) = write(admin, month(admin, 0))
    assert await retention.value("select core.partitions_mend_bind()") is not None
    if left:
        admin.execute("alter table core.outbox_default drop constraint outbox_default_bounds")
        write(admin, month(admin, 12))
        admin.execute(
            "alter table core.outbox_default add constraint outbox_default_bounds check (created_at < now()) not valid"
        )
    else:
        admin.execute("delete from core.outbox where id = %s", [lost])
    await maintain(retention, by="ann")
    write(admin, month(admin, 24))
    assert (await partition_status(retention)).default_rows == left + 1


async def test_two_that_mend_at_once_are_harmless(months: str, admin: Connection) -> None:
    drop(admin, *(name_of(admin, later) for later in range(4)))
    write(admin, month(admin, 0), count=5)

    async def one(name: str) -> Maintained:
        async with connect(months, name) as database:
            return await maintain(database, by=name)

    done = await asyncio.gather(*(one(name) for name in ("ann", "bob", "cid")))
    assert len([each.mended for each in done if each.mended is not None]) <= 1
    async with connect(months, "tests") as database:
        await maintain(database, by="ann")
        status = await partition_status(database)
    assert (status.default_rows, status.months_ahead) == (0, 3)
    write(admin, month(admin, 24))  # and no bounds are left


async def test_two_whose_steps_meet_leave_everything_to_the_next(
    admin: Connection, retention: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(admin, *(name_of(admin, later) for later in range(4)))
    write(admin, month(admin, 0), count=5)

    async def meeting(
        database: Database, query: LiteralString, parameters: list[object], give_up_after: timedelta
    ) -> object:
        answer = await patiently(database, query, parameters, give_up_after)
        if "mend_validate" in query:  # another one begins
            admin.execute("select core.partitions_mend_bind()")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(maintaining, "patiently", meeting)
        assert await maintain(retention, by="ann") == Maintained(default_rows=5, busy=True)
    # what the other one goes on with is refused in turn
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        admin.execute("select core.partitions_mend_validate()")
    # no month was made that would keep the default partition from becoming one
    assert (await maintain(retention, by="ann")).mended is not None
    status = await partition_status(retention)
    assert (status.default_rows, status.months_ahead) == (0, 3)


async def test_beside_a_large_default_partition_no_month_is_made_under_its_lock(
    admin: Connection, retention: Database
) -> None:
    drop(admin, name_of(admin, 3))
    write(admin, month(admin, -30))
    with admin.transaction(force_rollback=True):
        # as large as it would have to be for the lock to be felt
        source: Any = admin.execute("select pg_get_functiondef('core.partition_create'::regproc)").fetchone()
        admin.execute(source[0].replace("128 * 1024 * 1024", "0").encode())
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="too large"):
            admin.execute("select core.partition_create(%s, 'ann')", [month(admin, 3)])
    assert (await maintain(retention, by="ann")).created == (name_of(admin, 3),)


async def test_a_sweep_that_comes_to_a_month_while_it_is_dropped_goes_on(
    months: str, admin: Connection, retention: Database
) -> None:
    name = name_of(admin, -3)
    ask = "select * from core.sweep_outbox_leaf('me', %s, 0, 1, '1 day', '1 day', 10, true)"
    with psycopg.connect(months) as other:
        other.execute(psycopg.sql.SQL("drop table core.{}").format(psycopg.sql.Identifier(name)))
        sweeping = asyncio.create_task(retention.tuples(ask, [name]))
        waits = "select count(*) from pg_locks where not granted and mode = 'AccessShareLock'"
        await until(lambda: admin.execute(waits).fetchone() == (1,))
        other.commit()
        with pytest.raises(NotFoundError):
            await sweeping


async def test_a_partition_that_is_dropped_while_it_is_counted_is_looked_past(
    months: str, admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name has become a number, which no statement can read."""
    calls: list[str] = []
    rows = Database.rows

    async def raced(database: Database, *given: Any, **options: Any) -> list[Any]:  # noqa: ANN401  as the original
        calls.append("rows")
        if len(calls) == 1:
            await database.value(b"select exists (select from 18283)")
        return await rows(database, *given, **options)

    monkeypatch.setattr(Database, "rows", raced)
    async with connect(months, "ann") as database:
        status = await partition_status(database)
    assert {each.name for each in status.partitions} >= {name_of(admin, 1)}
    assert len(calls) == 3
