"""The ear: a direct connection that only LISTENs, and by whose life the worker is known to live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres.session import Session

if TYPE_CHECKING:
    from datetime import timedelta

    from spectral.core.events.settings import WorkerSettings

# Shared, so that ear and keeper can both hold it: the reaper asks whether anybody does.
SHOW_LIFE: Final = b"select pg_advisory_lock_shared(core.worker_lock_key(%s))"


class PostgresEar:
    """Implements `Ear`."""

    def __init__(self, dsn: str, settings: WorkerSettings) -> None:
        self._settings = settings
        self._session = Session(dsn, f"spectral ear {settings.name}", settings.times.answer, settings={})

    async def open(self) -> None:
        """See `Ear`."""
        await self._session.drop()

        async def listen(connection: psycopg.AsyncConnection[Any]) -> None:
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
            # One is enough, and whatever came with it in the same packet is read along.
            async for _ in connection.notifies(timeout=for_at_most.total_seconds(), stop_after=1):
                return True
        except psycopg.Error as error:
            raise SubstrateLostError(describe(error)) from None
        # Silence: is it a dead line? Only the same session can tell.
        await self._session.ask(lambda opened: opened.execute(b"select 1"))
        return False

    async def close(self) -> None:
        """See `Ear`."""
        await self._session.drop()
