"""The ear: a direct connection that only LISTENs, and by whose life the worker is known to live.

It waits for its socket and for nothing else: between a commit and its handler every layer of a driver counts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres.session import Session

if TYPE_CHECKING:
    from datetime import timedelta

    from psycopg.pq.abc import PGconn

    from spectral.core.events.settings import WorkerSettings

# Shared, so that ear and keeper can both hold it: the reaper asks whether anybody does.
SHOW_LIFE: Final = b"select pg_advisory_lock_shared(core.worker_lock_key(%s))"


class PostgresEar:
    """Implements `Ear`."""

    def __init__(self, dsn: str, settings: WorkerSettings) -> None:
        self._settings = settings
        self._session = Session(dsn, f"spectral ear {settings.name}", settings.times.answer, settings={})
        self._has_heard = False

    async def open(self) -> None:
        """See `Ear`."""
        await self._session.drop()

        async def listen(connection: psycopg.AsyncConnection[Any]) -> None:
            connection.add_notify_handler(self._note)  # for what comes along with the answer to a heartbeat
            await connection.execute(SHOW_LIFE, [self._settings.name])
            for channel in self._settings.channels():
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

        await self._session.ask(listen)

    async def hear(self, for_at_most: timedelta) -> bool:
        """See `Ear`."""
        if not self._session.is_open:
            raise SubstrateLostError("the ear's connection is gone")
        connection = await self._session.connection()
        try:
            heard = self._has_heard or await self._listen(connection.pgconn, for_at_most.total_seconds())
        except (psycopg.Error, OSError, ValueError) as error:  # closed by the server, or under it
            raise SubstrateLostError(describe(error)) from None
        if not heard:
            # Silence: is it a dead line? Only the same session can tell.
            await self._session.ask(lambda opened: opened.execute(b"select 1"))
        heard, self._has_heard = self._has_heard or heard, False
        return heard

    async def close(self) -> None:
        """See `Ear`."""
        await self._session.drop()

    async def _listen(self, pgconn: PGconn, seconds: float) -> bool:
        """Whether a notification comes within this time; whatever came in the same packet is read along."""
        deadline = asyncio.get_running_loop().time() + seconds
        heard = False
        while not heard and await _is_readable(pgconn.socket, deadline):
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                heard = True
        return heard

    def _note(self, _: psycopg.Notify) -> None:
        self._has_heard = True


async def _is_readable(socket: int, deadline: float) -> bool:
    """Wait until there is something to read; false if there is nothing by then."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_at(deadline, _answer, ready, False)  # noqa: FBT003  the answer
    loop.add_reader(socket, _answer, ready, True)  # noqa: FBT003  as above
    try:
        return await ready
    finally:
        timer.cancel()
        loop.remove_reader(socket)


def _answer(ready: asyncio.Future[bool], answer: bool) -> None:  # noqa: FBT001  as above
    if not ready.done():
        ready.set_result(answer)
