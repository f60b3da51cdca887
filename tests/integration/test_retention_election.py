"""One sweeper at a time: who it is, how it lets go, and who follows when it dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from spectral.core.database import Database, DatabaseUnavailableError, RefusedError, connect
from spectral.core.events.failure import ConfigurationError
from spectral.core.retention import LEASE, POLICY_REGISTRY, Ended, SweepOptions, SweepProgress, Swept, last_sweep, sweep
from tests.integration.delivery.platform_worker import until
from tests.integration.test_retention_sweep import events, many_delivered
from tests.migrations.schema import role

Connection = psycopg.Connection[Any]

AT_ONCE = timedelta(microseconds=1)
BY_TEN = SweepOptions(batch=10, by="anna@desk")


@pytest.fixture
def login(database: str) -> Iterator[str]:
    """The DSN of a login that may sweep, and nothing else."""
    with role(database, groups=("spectral_retention",)) as dsn:
        yield dsn


def put_away(connection: Connection) -> int:
    return sum(events(connection).values())


async def is_complete_after(dsn: str, lease: timedelta = LEASE) -> Ended:
    """How another sweep ends that begins now."""
    async with connect(dsn, "test") as database:
        return (await sweep(database, options=SweepOptions(lease=lease))).ended


# while another one is at work


async def test_a_second_sweeper_does_nothing_and_says_who_is_at_work(login: str, connection: Connection) -> None:
    many_delivered(connection, 5, 60)
    connection.execute("select core.sweep_begin('anna')")
    async with connect(login, "test") as database:
        report = await sweep(database)
        state = await last_sweep(database)
    assert report.ended is Ended.BUSY
    assert report.other is not None
    assert report.other == state.sweeping
    assert (report.other.name, report.other.started_at < state.now) == ("anna", True)
    assert put_away(connection) == 0


async def test_a_sweeper_in_the_middle_of_a_call_is_known_too(database: str, login: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select core.sweep_begin('anna')")
        other.commit()
        other.execute("select core.sweep_outbox('anna', 0, 1, '45 d', '7 d')")  # and holds its lease
        async with connect(login, "test") as second:
            await second.connection.execute("set lock_timeout = '100ms'")
            report = await sweep(second, options=SweepOptions(lease=AT_ONCE))
    assert (report.ended, report.other and report.other.name) == (Ended.BUSY, "anna")


async def test_whoever_cannot_tell_who_sweeps_is_told_where_to_look(database: str, login: str) -> None:
    with psycopg.connect(database) as other:
        other.execute("select core.sweep_begin('anna')")  # and does not commit
        async with connect(login, "test") as second:
            await second.connection.execute("set lock_timeout = '20ms'")
            with pytest.raises(RefusedError, match="could not begin") as refusal:
                await sweep(second)
    assert refusal.value.remedy == "spectral retention show"


async def test_of_many_at_once_each_event_is_swept_by_one(login: str, connection: Connection) -> None:
    many_delivered(connection, 500, 60)

    async def again_and_again() -> list[tuple[Ended, int]]:
        async with connect(login, "test") as database:
            reports = [await sweep(database, options=SweepOptions(batch=20, blocks=2)) for _ in range(3)]
        return [(report.ended, report.outbox.put_away) for report in reports]

    each = await asyncio.gather(*(again_and_again() for _ in range(4)))
    ends = [end for reports in each for end, _ in reports]
    assert set(ends) == {Ended.COMPLETE, Ended.BUSY}
    assert sum(count for reports in each for _, count in reports) == put_away(connection) == 500
    audited = connection.execute("select sum(affected) from core.audit where action = 'sweep'").fetchone()
    assert audited == (500,)


async def test_a_dry_run_needs_no_election(login: str, connection: Connection) -> None:
    many_delivered(connection, 5, 60)
    connection.execute("select core.sweep_begin('anna')")
    async with connect(login, "test") as database:
        report = await sweep(database, options=SweepOptions(dry_run=True))
    assert (report.ended, report.outbox) == (Ended.COMPLETE, Swept(5, 0))


# how it lets go


async def test_between_calls_no_transaction_is_open(login: str, connection: Connection) -> None:
    many_delivered(connection, 25, 60)
    ages: list[object] = []

    async with connect(login, "test") as database:
        pid = database.connection.info.backend_pid

        def look(_progress: SweepProgress) -> None:
            ages.append(connection.execute("select xact_start from pg_stat_activity where pid = %s", [pid]).fetchone())

        await sweep(database, options=BY_TEN, on_progress=look)
    assert ages == [(None,), (None,), (None,)]


async def test_a_sweep_that_is_told_to_stop_lets_go_and_the_next_one_goes_on(
    login: str, connection: Connection
) -> None:
    async with connect(login, "test") as database:
        assert (await sweep(database)).ended is Ended.COMPLETE
        complete = await last_sweep(database)
        many_delivered(connection, 25, 60)
        calls: list[SweepProgress] = []
        report = await sweep(database, POLICY_REGISTRY, BY_TEN, on_progress=calls.append, stop=lambda: len(calls) > 1)
        stopped = await last_sweep(database)
        assert (report.ended, report.outbox, put_away(connection)) == (Ended.STOPPED, Swept(20, 0), 20)
        assert stopped.last is not None
        assert (stopped.last.complete, stopped.last.outbox, stopped.sweeping) == (False, Swept(20, 0), None)
        assert stopped.completed_at == complete.completed_at

        again = await sweep(database, POLICY_REGISTRY, BY_TEN, stop=lambda: True)  # two in a row that do not end
        assert (again.ended, (await last_sweep(database)).completed_at) == (Ended.STOPPED, complete.completed_at)

        assert (await sweep(database)).outbox == Swept(5, 0)
        ended = await last_sweep(database)
    assert complete.completed_at is not None
    assert ended.completed_at is not None
    assert ended.completed_at > complete.completed_at


async def test_an_error_of_the_listener_to_progress_ends_the_sweep_and_frees_the_place(
    login: str, connection: Connection
) -> None:
    many_delivered(connection, 25, 60)

    def fail(_progress: SweepProgress) -> None:
        raise ZeroDivisionError

    async with connect(login, "test") as database:
        with pytest.raises(ZeroDivisionError):
            await sweep(database, options=BY_TEN, on_progress=fail)
        state = await last_sweep(database)
    assert (state.sweeping, state.completed_at, put_away(connection)) == (None, None, 10)


async def test_a_sweep_that_is_cancelled_in_a_call_undoes_the_call_and_frees_the_place(
    login: str, connection: Connection
) -> None:
    many_delivered(connection, 5, 60)
    connection.execute(
        "create function public.wait() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock(78); return new; end $$;"
        " create trigger a_wait before update on core.outbox for each row execute function public.wait();"
        " select pg_advisory_lock(78)"
    )
    async with connect(login, "test") as database:
        sweeping = asyncio.create_task(sweep(database))
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        await until(lambda: connection.execute(waiting).fetchone() == (1,))
        sweeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sweeping
        state = await last_sweep(database)
    assert (state.sweeping, state.completed_at, put_away(connection)) == (None, None, 0)


# when it dies


async def sweep_and_die(dsn: str, connection: Connection) -> None:
    """A sweep whose connection is cut after its first call."""
    async with connect(dsn, "test") as database:
        pid = database.connection.info.backend_pid

        def cut(_progress: SweepProgress) -> None:
            connection.execute("select pg_terminate_backend(%s, 10000)", [pid])

        with pytest.raises(DatabaseUnavailableError):
            await sweep(database, options=BY_TEN, on_progress=cut)


async def test_a_sweeper_that_was_killed_is_followed_when_its_lease_is_over(login: str, connection: Connection) -> None:
    many_delivered(connection, 25, 60)
    await sweep_and_die(login, connection)
    assert put_away(connection) == 10
    async with connect(login, "test") as database:
        left = await last_sweep(database)
    assert left.sweeping is not None
    assert left.sweeping.name.startswith("anna@desk #")
    assert await is_complete_after(login) is Ended.BUSY
    assert await is_complete_after(login, lease=AT_ONCE) is Ended.COMPLETE
    assert put_away(connection) == 25


async def take_over_at(database: Database, connection: Connection, call: int) -> tuple[Ended, str | None, int]:
    """Sweep, and have another one take over after so many calls: how it ends, by whom, and after how many calls."""
    calls: list[SweepProgress] = []

    def look(progress: SweepProgress) -> None:
        calls.append(progress)
        if len(calls) == call:
            assert connection.execute("select core.sweep_begin('berta', '0 s')").fetchone() == (True,)

    report = await sweep(database, options=BY_TEN, on_progress=look)
    return report.ended, report.other.name if report.other is not None else None, len(calls)


@pytest.mark.parametrize("call", [1, 2, 3], ids=["after the first call", "in between", "after the last call"])
async def test_a_sweeper_that_was_taken_for_dead_does_not_go_on(login: str, connection: Connection, call: int) -> None:
    many_delivered(connection, 25, 60)
    async with connect(login, "test") as database:
        assert await take_over_at(database, connection, call) == (Ended.TAKEN_OVER, "berta", call)
        state = await last_sweep(database)
    assert state.sweeping is not None
    assert (state.sweeping.name, state.last) == ("berta", None)
    assert put_away(connection) == min(10 * call, 25)


# whom it obeys


@pytest.mark.parametrize("groups", [(), ("spectral_operator",), ("spectral_worker",), ("spectral_readonly",)], ids=str)
async def test_a_login_without_the_role_is_told_which_to_grant(database: str, groups: tuple[str, ...]) -> None:
    with role(database, groups=groups) as dsn:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["user"]
        async with connect(dsn, "test") as stranger:
            for dry_run in (False, True):
                with pytest.raises(RefusedError, match=f"the login {name} may not sweep") as refusal:
                    await sweep(stranger, options=SweepOptions(dry_run=dry_run))
                assert refusal.value.remedy == f"grant spectral_retention to {name}"


@pytest.mark.parametrize("group", ["spectral_operator", "spectral_readonly"])
async def test_whoever_watches_sees_when_it_was_last_swept(database: str, login: str, group: str) -> None:
    assert await is_complete_after(login) is Ended.COMPLETE
    with role(database, groups=(group,)) as dsn:
        async with connect(dsn, "test") as watching:
            assert (await last_sweep(watching)).completed_at is not None


async def test_a_database_without_the_schema_is_named_as_such(empty_database: str) -> None:
    async with connect(empty_database, "test") as database:
        with pytest.raises(ConfigurationError, match="run: spectral migrate up"):
            await sweep(database)
