"""The way to the database: is it a session of our own, and does it carry notifications?

A pooler in transaction mode gives each transaction whatever server session is free. On an idle one that is the same one
every time, so a second connection has to take its turn in between before it shows.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import psycopg
from psycopg import sql

from spectral.core.database import Database, OperationError, connect
from spectral.core.operations.doctor.facts import RoundTrip, Wire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_PATIENCE: Final = 3.0
_MARK: Final = b"select set_config('spectral.doctor', %s, false), pg_backend_pid()"
_READ_MARK: Final = b"select current_setting('spectral.doctor', true), pg_backend_pid()"


@asynccontextmanager
async def doctor_connection(dsn: str) -> AsyncGenerator[Database]:
    """A connection that prepares nothing: behind a pooler the next statement may find another session."""
    async with connect(dsn, "doctor") as database:
        database.connection.prepare_threshold = None
        yield database


async def probe_wire(dsn: str, variable: str) -> Wire:
    """See whether this connection string leads to a session of our own.

    Raises:
        DatabaseUnavailableError: it leads nowhere.
    """
    async with doctor_connection(dsn) as ours:
        announced = ours.connection.info.backend_pid  # by whoever answered the door
        mark = uuid4().hex
        ((_, first),) = await ours.tuples(_MARK, [mark])
        ((kept, second),) = await ours.tuples(_READ_MARK)
        shared = first != second or kept != mark
        if not shared:
            shared = await _is_taken(ours, dsn, mark, first)
        return Wire(variable, pooled=shared or announced != first, shared=shared)


async def _is_taken(ours: Database, dsn: str, mark: str, pid: int) -> bool:
    """Whether our session is given to another connection while that one has a transaction open."""
    async with AsyncExitStack() as stack:
        try:
            other = await stack.enter_async_context(doctor_connection(dsn))
        except OperationError:
            return False  # no second connection is to be had; what the first one showed has to do
        async with other.transaction():
            ((seen, other_pid),) = await other.tuples(_READ_MARK)
            asking = asyncio.create_task(ours.tuples(_READ_MARK))
            await asyncio.wait([asking], timeout=_PATIENCE)
            waits = not asking.done()  # for the only session there is
        ((kept, ours_pid),) = await asking
    return waits or seen == mark or pid == other_pid or ours_pid != pid or kept != mark


async def probe_round_trip(database: Database, direct_dsn: str, variable: str) -> RoundTrip:
    """Listen on the one connection, notify on the other.

    Raises:
        DatabaseUnavailableError: the direct connection string leads nowhere.
    """
    channel, token = f"spectral_doctor_{uuid4().hex[:16]}", uuid4().hex
    async with doctor_connection(direct_dsn) as ear:
        connection = ear.connection
        try:
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            began = time.monotonic()
            await database.connection.execute(b"select pg_notify(%s, %s)", [channel, token])
            async for heard in connection.notifies(timeout=_PATIENCE, stop_after=1):
                if heard.payload == token:
                    took = timedelta(seconds=time.monotonic() - began)
                    return RoundTrip(variable, heard=True, took=took)
        except psycopg.Error as error:
            return RoundTrip(variable, heard=False, refusal=error.diag.message_primary or type(error).__name__)
    return RoundTrip(variable, heard=False)
