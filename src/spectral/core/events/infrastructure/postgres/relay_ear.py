"""The ear of a relay: a direct connection that LISTENs, and by whose locks relays are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres.session import Session

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import timedelta

    from spectral.core.events.broker_settings import BrokerKind

_BE_COUNTED: Final = b"""
select pg_advisory_lock_shared(core.relay_lock_key()), pg_advisory_lock_shared(core.relay_crew_key(%s))
"""


class PostgresRelayEar:
    """Implements `RelayEar`."""

    def __init__(self, dsn: str, name: str, answer: timedelta, broker: BrokerKind) -> None:
        self._broker = broker
        self._session = Session(dsn, f"spectral relay ear {name}", answer, settings={})

    async def open(self, channels: Collection[str]) -> None:
        """See `RelayEar`."""
        await self._session.drop()
        await self._session.ask(lambda connection: connection.execute(_BE_COUNTED, [str(self._broker)]))
        await self.listen(channels)

    async def listen(self, channels: Collection[str]) -> None:
        """See `RelayEar`."""
        if not self._session.is_open:
            raise SubstrateLostError("the ear's connection is gone")

        async def listen(connection: psycopg.AsyncConnection[Any]) -> None:
            for channel in sorted(channels):
                await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

        await self._session.ask(listen)

    async def hear(self, for_at_most: timedelta) -> bool:
        """See `RelayEar`."""
        if not self._session.is_open:
            raise SubstrateLostError("the ear's connection is gone")
        connection = await self._session.connection()
        try:
            async for _ in connection.notifies(timeout=for_at_most.total_seconds(), stop_after=1):
                return True
        except psycopg.Error as error:
            raise SubstrateLostError(describe(error)) from None
        await self._session.ask(lambda opened: opened.execute(b"select 1"))
        return False

    async def close(self) -> None:
        """See `RelayEar`."""
        await self._session.drop()
