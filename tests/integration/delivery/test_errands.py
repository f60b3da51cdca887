"""Reading what a pipeline answers: all of it, and no longer than there is something to come."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres.errands import PostgresErrands, Prepared, _answers
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection
from tests.integration.delivery.platform_worker import soon, until

IS_IDLE = "select state = 'idle' and query like 'select $1%%' from pg_stat_activity where pid = %s"


async def test_what_was_read_before_is_not_waited_for(database: str) -> None:
    """Whoever writes much reads meanwhile, and may have read everything when he has written everything."""
    async with (
        await WatchedConnection.connect(database, autocommit=True) as connection,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as other,
    ):

        async def is_answered() -> bool:
            cursor = await other.execute(IS_IDLE, [connection.info.backend_pid])
            row = await cursor.fetchone()
            return row is not None and bool(row[0])

        pgconn = connection.pgconn
        pgconn.enter_pipeline_mode()
        for number in range(3):
            pgconn.send_query_params(b"select $1::int", [b"%d" % number])
        pgconn.pipeline_sync()
        await until(is_answered)
        pgconn.consume_input()
        with pytest.raises(StopIteration) as read:
            next(_answers(pgconn))
        pgconn.exit_pipeline_mode()
    assert [result.get_value(0, 0) for result in read.value.value] == [b"0", b"1", b"2"]


@asynccontextmanager
async def garbled(dsn: str, garbled_now: asyncio.Event) -> AsyncIterator[str]:
    """A way to the server on which, from some moment on, something else is answered than what it says."""
    given = conninfo_to_dict(dsn)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await source.read(65536):
            target.write(b"?" * 50 if answers and garbled_now.is_set() else data)
            await target.drain()
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asks = await asyncio.open_unix_connection(f"{given['host']}/.s.PGSQL.{given['port']}")
        await asyncio.gather(
            pump(reader, asks, answers=False), pump(answers, writer, answers=True), return_exceptions=True
        )
        writer.close()

    # Not below pytest's own directory: the name of a socket must not be long.
    with tempfile.TemporaryDirectory(prefix="garbled-") as directory:
        async with await asyncio.start_unix_server(serve, Path(directory) / ".s.PGSQL.5432"):
            yield make_conninfo(dsn, host=directory, port=5432, sslmode="disable")


async def test_an_answer_that_is_none_is_a_lost_connection(database: str) -> None:
    """Libpq gives the connection up, has nothing more to say, and is not to be asked for ever."""
    garbled_now = asyncio.Event()
    async with garbled(database, garbled_now) as dsn:
        connection = await WatchedConnection.connect(dsn)
        await connection.execute("select 1")
        errands = PostgresErrands(connection, Prepared())
        waiting = [asyncio.ensure_future(errands.transaction().execute("select %s", [each])) for each in range(3)]
        await asyncio.sleep(0)
        garbled_now.set()
        with pytest.raises(SubstrateLostError):
            await soon(errands.carry_out(20))
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await connection.close()
