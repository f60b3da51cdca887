"""Several statements in one message: one round trip and, outside a transaction block, one transaction.

A pipeline would do the same with parameters, but costs the driver several times as much as these statements cost the
server. The values are quoted by the driver, or are numbers, times and ids, which need no quoting. It is the busiest
road of a worker, so it goes straight to libpq: no cursor, no description of columns that nobody reads, no task to wait.

They are quoted, and answers are read, as the driver does by itself (`untaught`). No answer has intervals: how they are
written is a setting of the session, and nobody knows the session of an answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg import errors, generators, sql
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.waiting import Ready, Wait

from spectral.core.events.infrastructure.postgres.untaught import UNTAUGHT
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult

Rows: TypeAlias = list[tuple[Any, ...]]
Statement: TypeAlias = sql.Composable | bytes

_GOOD: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY})


class StatementRefusedError(Exception):
    """The server refused a statement of a script: which one, and why."""

    def __init__(self, number: int, error: psycopg.Error) -> None:
        super().__init__(number, error)
        self.number = number
        self.error = error


async def run_script(
    connection: psycopg.AsyncConnection[Any], statements: Iterable[Statement], within: float
) -> list[PGresult]:
    """Run them; answer the result of each.

    Raises:
        StatementRefusedError: the server refused one of them, and ran none of those behind it.
        psycopg.Error: the connection is lost.
        TimeoutError: there was no answer in time; the connection cannot be used any more.
    """
    script = b"; ".join([quoted(each, connection) for each in statements])
    pgconn = connection.pgconn
    async with connection.lock:
        pgconn.send_query(script)
        running: PQGen[list[PGresult]] = generators.execute(pgconn)
        if isinstance(connection, WatchedConnection):
            results = await connection.completed(running, within)
        else:
            results = await _completed(running, pgconn.socket, within)
    for number, result in enumerate(results):
        if result.status not in _GOOD:
            raise StatementRefusedError(number, errors.error_from_result(result, connection.info.encoding))
    return results


async def _completed(running: PQGen[list[PGresult]], socket: int, within: float) -> list[PGresult]:
    """Drive the driver's generator: whenever it has to wait, so does this, for the socket and for nothing else.

    The driver's own way to wait asks the server to cancel what is given up. Ours is given up together with its
    connection. After a loop that stood still the time is up and the answer is there: then the answer counts.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    try:
        wanted = next(running)
        while True:
            ready: asyncio.Future[Ready] = loop.create_future()
            timer = loop.call_at(deadline, _note, ready, Ready.NONE)
            if wanted & Wait.R:
                loop.add_reader(socket, _note, ready, Ready.R)
            if wanted & Wait.W:
                loop.add_writer(socket, _note, ready, Ready.W)
            try:
                state = await ready
            finally:
                timer.cancel()
                if wanted & Wait.R:
                    loop.remove_reader(socket)
                if wanted & Wait.W:
                    loop.remove_writer(socket)
            _require_answer(state)
            wanted = running.send(state)
    except StopIteration as done:
        results: list[PGresult] = done.value
        return results
    except TimeoutError:
        raise
    except (OSError, ValueError) as error:  # the socket was closed under it
        raise psycopg.OperationalError("the connection was closed") from error


def _require_answer(state: Ready) -> None:
    if state is Ready.NONE:
        raise TimeoutError


def _note(ready: asyncio.Future[Ready], state: Ready) -> None:
    if not ready.done():
        ready.set_result(state)


def quoted(statement: Statement, connection: psycopg.AsyncConnection[Any] | None = None) -> bytes:
    """With its values in it; bytes were quoted before."""
    if isinstance(statement, bytes):
        return statement
    return statement.as_bytes(UNTAUGHT if connection is None else UNTAUGHT.on(connection))


def rows_of(result: PGresult) -> Rows:
    """Its rows."""
    if result.status != ExecStatus.TUPLES_OK or not result.ntuples:
        return []
    transformer = Transformer(UNTAUGHT)
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


def uuid_array(ids: Iterable[UUID]) -> bytes:
    """As a literal; an id is nothing but hexadecimal digits."""
    return b"'{%s}'::uuid[]" % ",".join([each.hex for each in ids]).encode()
