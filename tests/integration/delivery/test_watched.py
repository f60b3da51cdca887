"""A connection that is watched for good: on either loop, whatever happens, nobody watches a socket that is closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spectral.core.embedded import PostgresServer
from spectral.core.events.infrastructure.postgres.closing import close
from spectral.core.events.infrastructure.postgres.script import run_script
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection
from tests.integration.delivery.platform_worker import until

Act = Callable[[WatchedConnection], Awaitable[None]]
END = b"select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'watched'"


@pytest.fixture(params=["asyncio", "uvloop", "uvloop over TCP"])
def play(database: str, postgres: PostgresServer, request: pytest.FixtureRequest) -> Callable[[Act], None]:
    """Do something with a connection that has waited before; at the end its socket is not watched any more."""
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run if request.param == "asyncio" else uvloop.run
    name = conninfo_to_dict(database)["dbname"]
    dsn = make_conninfo(postgres.tcp_dsn, dbname=name) if "TCP" in request.param else database

    async def with_connection(act: Act) -> None:
        connection = await WatchedConnection.connect(dsn, autocommit=True, application_name="watched")
        await connection.execute("select 1")
        socket = connection.pgconn.socket
        async with asyncio.timeout(20) as limit:
            await act(connection)
        assert not limit.expired()  # who is cancelled then may be told that the connection is lost, at last
        await close(connection, None)
        assert not asyncio.get_running_loop().remove_reader(socket)

    return lambda act: run(with_connection(act))


def test_what_does_not_fit_into_the_socket_at_once_is_sent_all_the_same(play: Callable[[Act], None]) -> None:
    large = "x" * 20_000_000

    async def act(connection: WatchedConnection) -> None:
        for _ in range(2):
            cursor = await connection.execute("select length(%s), %s", [large, large])
            assert await cursor.fetchone() == (len(large), large)
        (result,) = await run_script(connection, [b"select '" + large.encode() + b"'"], 20.0)
        assert result.get_value(0, 0) == large.encode()

    play(act)


def test_whoever_is_cancelled_can_use_the_session_on(play: Callable[[Act], None]) -> None:
    async def act(connection: WatchedConnection) -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await connection.execute("select pg_sleep(60)")
            cursor = await connection.execute("select 1")
            assert await cursor.fetchone() == (1,)

    play(act)


def test_a_script_that_is_not_answered_in_time_is_given_up(play: Callable[[Act], None]) -> None:
    async def act(connection: WatchedConnection) -> None:
        await run_script(connection, [b"select 1"], 0.2)
        await run_script(connection, [b"select pg_sleep(0.3)"], 20.0)  # longer than the one before might have taken
        with pytest.raises(TimeoutError):
            await run_script(connection, [b"select pg_sleep(60)"], 0.1)

    play(act)


def test_after_a_loop_that_stood_still_the_answer_counts(play: Callable[[Act], None]) -> None:
    async def act(connection: WatchedConnection) -> None:
        # Until both the time of the script is up and its answer is there.
        asyncio.get_running_loop().call_soon(time.sleep, 0.4)
        (result,) = await run_script(connection, [b"select 1"], 0.1)
        assert result.get_value(0, 0) == b"1"

    play(act)


def test_a_connection_that_the_server_ends_under_a_statement_is_lost(play: Callable[[Act], None]) -> None:
    async def act(connection: WatchedConnection) -> None:
        with pytest.raises(psycopg.OperationalError):
            await connection.execute(END)
        assert connection.closed

    play(act)


def test_a_connection_that_the_server_ends_while_nobody_waits_is_not_watched_on(
    play: Callable[[Act], None], database: str
) -> None:
    async def act(connection: WatchedConnection) -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as other:
            await other.execute(END)
        await until(lambda: connection._loop is None)  # that it does not spin shows nowhere else
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("select 1")

    play(act)


def test_notifications_are_heard_and_waiting_for_them_ends(play: Callable[[Act], None]) -> None:
    async def act(connection: WatchedConnection) -> None:
        await connection.execute("listen watched")
        await connection.execute("notify watched, 'heard'")
        heard = [note.payload async for note in connection.notifies(timeout=1.0, stop_after=1)]
        assert heard == ["heard"]
        assert [note async for note in connection.notifies(timeout=0.05)] == []
        await connection.execute("select 1")

    play(act)


def test_closing_it_ends_watching(play: Callable[[Act], None]) -> None:
    async def act(connection: WatchedConnection) -> None:
        socket = connection.pgconn.socket
        await connection.close()
        assert not asyncio.get_running_loop().remove_reader(socket)

    play(act)


def test_another_loop_watches_it_anew(database: str) -> None:
    async def wait(connection: WatchedConnection) -> None:
        async with asyncio.timeout(20):
            await connection.execute("select 1")

    async def waited_for() -> WatchedConnection:
        connection = await WatchedConnection.connect(database, autocommit=True)
        await wait(connection)
        return connection

    async def wait_in_a_thread() -> None:
        connection = await waited_for()
        await asyncio.to_thread(asyncio.run, wait(connection))
        await wait(connection)
        await connection.close()

    connection = uvloop.run(waited_for())
    asyncio.run(wait(connection))  # the loop that has watched it is closed
    asyncio.run(connection.close())
    uvloop.run(wait_in_a_thread())
