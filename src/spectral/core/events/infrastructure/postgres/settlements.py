"""Settle on a connection of its own: many conclusions in one short fenced transaction and one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres.conclusions import Writing
from spectral.core.events.infrastructure.postgres.doubt import stood
from spectral.core.events.infrastructure.postgres.session import Session, passes
from spectral.core.events.ports import SettleRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from spectral.core.events.ports import Conclusion
    from spectral.core.events.settings import WorkerSettings


class PostgresSettlements:
    """Implements `Settlements`."""

    def __init__(self, dsn: str, settings: WorkerSettings) -> None:
        self._worker = settings.name
        self._session = Session(
            dsn, f"spectral settle {settings.name}", settings.times.answer, settings={"lock_timeout": "2s"}
        )

    async def settle(self, conclusions: Sequence[Conclusion]) -> set[UUID]:
        """See `Settlements`."""
        if self._session.is_doubtful:
            await self._session.drop()
        writing = Writing(conclusions)
        try:
            return writing.lost(await self._session.script(*writing.statements))
        except psycopg.Error as error:
            if passes(error):
                raise SubstrateLostError(describe(error)) from None
            raise SettleRefusedError from error

    async def stood(self, doubted: Sequence[Conclusion]) -> dict[UUID, Conclusion]:
        """See `Settlements`."""
        return await stood(self._session, doubted, self._worker)

    async def close(self) -> None:
        """See `Settlements`."""
        await self._session.drop()
