"""A connection that comes back: whoever is cancelled while waiting for it leaves nothing open."""

from __future__ import annotations

import asyncio
import socket
from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spectral.core.database import connect
from spectral.core.embedded import PostgresServer
from spectral.core.events import ConfigurationError, Consumer, Transaction, WorkerSettings
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres import claims as claims_module
from spectral.core.events.infrastructure.postgres import session as module
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection
from spectral.core.operations.events import list_events
from spectral.core.operations.events_filter import EventFilter
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    soon,
    until,
    write_effect,
)


async def test_whoever_is_cancelled_during_the_second_look_leaves_no_connection_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECOND_LOOK", 30.0)
    session = Session(bench.dsn, "spectral test of a session", timedelta(seconds=0.2), settings={})
    await session.connection()
    started = asyncio.Event()

    async def sleep(connection: psycopg.AsyncConnection[object]) -> object:
        started.set()
        return await connection.execute("select pg_sleep(60)")

    call = asyncio.create_task(session.call(sleep))
    await soon(started.wait())
    # Well beyond the time of an answer: it looks a second time.
    await until(
        lambda: bench.value(
            "select clock_timestamp() > max(query_start) + interval '1 s' from pg_stat_activity"
            " where application_name = 'spectral test of a session'"
        )
    )
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not session.is_open
    await session.drop()
    await until(
        lambda: bench.value(
            "select not exists (select from pg_stat_activity where application_name = 'spectral test of a session')"
        )
    )


@pytest.mark.parametrize("refusals", [1, 2])
async def test_settings_that_were_refused_once_are_tried_again_and_no_more_after_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    connect = WatchedConnection.connect
    refused = 0

    async def starting_up(parameters: str, **given: object) -> object:
        nonlocal refused
        if conninfo_to_dict(parameters).get("options") and refused < refusals:
            refused += 1
            raise psycopg.OperationalError("FATAL:  the database system is starting up")
        return await cast("Any", connect)(parameters, **given)

    monkeypatch.setattr(WatchedConnection, "connect", starting_up)
    session = Session(bench.dsn, "spectral", timedelta(seconds=10), settings={}, for_handlers=True)
    stays: list[object] = []  # whether a reset brings the settings back
    for _ in range(3):
        connection = await session.connection()
        await connection.execute("reset all")
        cursor = await connection.execute(
            "select source = 'client' from pg_settings where name = 'tcp_keepalives_idle'"
        )
        stays += await cursor.fetchone() or ()
        await session.drop()
    assert stays == ([False, True, True] if refusals == 1 else [False, False, False])


async def test_a_connection_to_a_server_that_takes_no_writes_is_not_kept(bench: Bench) -> None:
    """A standby: by the same name the next connection may lead to the primary."""
    session = Session(bench.dsn, "spectral", timedelta(seconds=10), settings={})
    write = b"create table written ()"
    await session.script(b"set default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await session.script(write)
    assert not session.is_open
    await session.script(write)
    await session.drop()


@pytest.mark.parametrize("for_handlers", [False, True])
async def test_what_a_standby_does_not_even_read_is_waited_for_on_another_connection(
    bench: Bench,
    for_handlers: bool,  # noqa: FBT001  a case
) -> None:
    """The bell's leases are not logged."""
    session = Session(bench.dsn, "spectral", timedelta(seconds=10), settings={}, for_handlers=for_handlers)
    refuse = b"do $$ begin raise exception 'not during recovery' using errcode = '0A000'; end $$"
    with pytest.raises(SubstrateLostError, match="0A000"):
        await session.ask_script(refuse)
    # What a handler's statements are refused for is not for the session to tell.
    assert session.is_open == for_handlers
    await session.drop()


async def test_silence_towards_one_session_makes_those_doubtful_that_were_answered_before(bench: Bench) -> None:
    dsn = make_conninfo(bench.dsn, application_name="a server that goes silent")
    one, other, later = (Session(dsn, "spectral", timedelta(seconds=0.5), settings={}) for _ in range(3))
    await other.script(b"select 1")
    for silent in (one.script(b"select pg_sleep(30)"), one.ask(lambda each: each.execute(b"select pg_sleep(30)"))):
        with pytest.raises(SubstrateLostError, match="no answer within"):
            await silent
        await later.script(b"select 1")
        # The first has no connection any more, the last was answered since.
        assert [each.is_doubtful for each in (one, other, later)] == [False, True, False]
        await other.script(b"select 1")  # it is answered after all
        assert [each.is_doubtful for each in (one, other, later)] == [False, False, False]
    for session in (one, other, later):
        await session.drop()


async def test_a_doubtful_connection_claims_nothing(bench: Bench) -> None:
    """Whichever way the silent one went: workers that listen past a pooler have two."""
    claims = PostgresClaims(bench.dsn, WorkerSettings(generation=1, name="tester"))
    assert await claims.claim([]) == []
    assert not await claims.is_crowded()
    before = await claims._session.connection()
    directly = make_conninfo(bench.dsn, application_name="past the pooler")
    silent = Session(directly, "spectral", timedelta(seconds=0.5), settings={})
    with pytest.raises(SubstrateLostError):
        await silent.script(b"select pg_sleep(30)")
    assert not await claims.is_crowded()
    assert before.closed
    await claims.close()
    await silent.drop()


async def test_a_doubtful_connection_settles_nothing(bench: Bench) -> None:
    settlements = PostgresSettlements(bench.dsn, WorkerSettings(generation=1, name="tester"))
    await settlements.settle([])
    await settlements._session.script(b"select 1")
    before = await settlements._session.connection()
    silent = Session(bench.dsn, "spectral", timedelta(seconds=0.5), settings={})
    with pytest.raises(SubstrateLostError):
        await silent.script(b"select pg_sleep(30)")
    await settlements.settle([])
    await settlements._session.script(b"select 1")
    assert before.closed
    assert await settlements._session.connection() is not before
    await settlements.close()
    await silent.drop()


@pytest.mark.parametrize("for_handlers", [False, True])
async def test_limits_and_rules_of_the_role_that_are_meant_for_others(
    bench: Bench,
    for_handlers: bool,  # noqa: FBT001  a case
) -> None:
    name = str(conninfo_to_dict(bench.dsn)["dbname"])
    theirs = {
        "idle_session_timeout": "90s",
        "idle_in_transaction_session_timeout": "2min",
        "default_transaction_isolation": "serializable",
    }
    for setting, value in theirs.items():
        await bench.execute(f"alter database {name} set {setting} = '{value}'")
    session = Session(bench.dsn, "spectral", timedelta(seconds=10), settings={}, for_handlers=for_handlers)
    connection = await session.connection()
    await connection.execute("reset all") if for_handlers else None
    found = [
        row[0] for setting in theirs for row in await (await connection.execute(f"show {setting}".encode())).fetchall()
    ]
    assert found == (["0", "2min", "serializable"] if for_handlers else ["0", "0", "read committed"])
    await session.drop()


async def test_a_silent_host_does_not_take_the_time_of_those_behind_it(
    bench: Bench, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = conninfo_to_dict(postgres.tcp_dsn)
    monkeypatch.setenv("PGPASSWORD", str(given["password"]))
    name = conninfo_to_dict(bench.dsn)["dbname"]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        hosts = f"host=127.0.0.1,{given['host']} port={silent.getsockname()[1]},{given['port']}"
        dsn = f"{hosts} user={given['user']} dbname={name} target_session_attrs=read-write"
        session = Session(dsn, "spectral", timedelta(seconds=2), settings={})
        connection = await session.connection()
        assert connection.info.port == int(str(given["port"]))
        silent.accept()[0].close()
        # From then on the one that has answered is asked first, by whichever session.
        other = Session(dsn, "spectral", timedelta(seconds=2), settings={})
        for each in (session, other):
            await each.drop()
            connection = await each.connection()
            assert connection.info.port == int(str(given["port"]))
            await each.drop()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()


async def test_a_login_that_may_not_act_as_the_role_it_asks_for_is_told_what_to_do(
    bench: Bench, postgres: PostgresServer
) -> None:
    name = str(conninfo_to_dict(bench.dsn)["dbname"])
    await bench.execute("create role ambitious login password 'p'")
    await bench.execute("create role exalted nologin")
    options = {"user": "ambitious", "password": "p", "dbname": name, "options": "-c role=exalted"}
    session = Session(make_conninfo(postgres.tcp_dsn, **options), "spectral", timedelta(seconds=10), settings={})
    with pytest.raises(ConfigurationError, match=r"may not act as the role .* run: grant <role> to <login>"):
        await session.connection()
    await bench.execute("grant exalted to ambitious")
    await session.connection()
    await session.drop()
    await bench.execute("drop role ambitious")
    await bench.execute("drop role exalted")


async def test_a_login_that_has_worked_is_waited_for_when_it_is_refused(bench: Bench, postgres: PostgresServer) -> None:
    name = str(conninfo_to_dict(bench.dsn)["dbname"])
    await bench.execute("create role rotated login password 'before'")
    dsn = make_conninfo(postgres.tcp_dsn, user="rotated", password="before", dbname=name)
    never = Session(make_conninfo(dsn, password="wrong"), "spectral", timedelta(seconds=10), settings={})
    with pytest.raises(ConfigurationError, match="refuses this login"):
        await never.connection()
    session = Session(dsn, "spectral", timedelta(seconds=10), settings={})
    await session.connection()
    await session.drop()
    await bench.execute("alter role rotated password 'after'")
    with pytest.raises(SubstrateLostError, match="password authentication failed"):
        await session.connection()
    await bench.execute("alter role rotated password 'before'")
    await session.connection()
    await session.drop()
    await bench.execute("drop role rotated")


@pytest.mark.parametrize(("date", "interval"), [("German", "postgres_verbose"), ("SQL, DMY", "iso_8601")])
async def test_a_database_that_prefers_other_dates_is_worked_with_all_the_same(
    bench: Bench, platform: Consumer, date: str, interval: str
) -> None:
    name = conninfo_to_dict(bench.dsn)["dbname"]
    await bench.execute(f"alter database {name} set datestyle = '{date}'")
    await bench.execute(f"alter database {name} set intervalstyle = '{interval}'")

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def look(scan: Scan) -> None:
        assert scan.number == 3

    await bench.publish(1, 2)
    await bench.publish(3, event_type=STARTED)
    await bench.publish(4, delay=timedelta(hours=1))
    await bench.drain(platform)
    assert await bench.statuses() == {"delivered": 3, "pending": 1}
    async with connect(bench.dsn, "tests") as database:
        assert len((await list_events(database, EventFilter(), limit=10)).items) == 4


@pytest.mark.parametrize(
    ("dsn", "led_to", "wanted"),
    [
        ("host=a,b port=1,2", ("b", 2), "host=b,a port=2,1"),
        ("host=a,b,c port=1", ("c", 1), "host=c,a,b port=1,1,1"),
        ("host=a,b", ("b", 5432), "host=b,a port=5432,5432"),
        ("host=a,a port=1,2", ("a", 2), "host=a,a port=2,1"),
        ("host=a,b port=1,2", ("c", 2), None),
        ("host=a,b port=1,2", None, None),
        ("host=a,b port=1,2 hostaddr=127.0.0.1,127.0.0.2", ("b", 2), None),
        ("host=a,b port=1,2 load_balance_hosts=random", ("b", 2), None),
    ],
)
def test_the_host_that_answered_last_comes_first(
    dsn: str, led_to: tuple[str, int] | None, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGPORT", "PGHOSTADDR", "PGLOADBALANCEHOSTS"):
        monkeypatch.delenv(name, raising=False)
    writes = f"{dsn} target_session_attrs=read-write"
    wanted = f"{wanted or dsn} target_session_attrs=read-write"
    assert conninfo_to_dict(module._first(writes, led_to)) == conninfo_to_dict(wanted)
    assert module._first(dsn, led_to) == dsn, "it may be a standby by now"


async def test_a_quarantine_that_cannot_be_left_is_left_with_the_connection(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that somebody cancels takes the session's lock with it only if the session goes too."""
    await bench.execute(
        "create function public.cancelled(text) returns boolean language plpgsql as"
        " $$ begin raise exception 'cancelled' using errcode = 'query_canceled'; end $$"
    )
    is_free = "select pg_try_advisory_lock(core.worker_quarantine_key('platform'))"
    claims = PostgresClaims(bench.dsn, WorkerSettings(generation=1, name="tester"))
    try:
        assert await claims.enter_quarantine("platform")
        assert not await bench.value(is_free)
        monkeypatch.setattr(claims_module, "_LEAVE", sql.SQL("select public.cancelled({})"))
        with pytest.raises(SubstrateLostError):
            await claims.leave_quarantine("platform")
        await until(lambda: bench.value(is_free))
    finally:
        await claims.close()
