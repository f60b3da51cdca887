"""The keeper: renews this worker's leases and takes back what nobody works on, on a connection of its own.

It also signs the worker in, so that an operator sees who is at work, and out again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spectral.core.events.failure import SpectralError
from spectral.core.events.infrastructure.postgres.ear import SHOW_LIFE
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.probe import DeadRow, EventRef, Reaped, Unhandled

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import timedelta
    from uuid import UUID

    from spectral.core.events.lease import Lease
    from spectral.core.events.settings import WorkerSettings

_SIGN_IN: Final = b"select core.worker_sign_in(%s, %s::bigint[], %s::text[], %s::text[], %s, %s, %s)"
_SIGN_OUT: Final = b"select core.worker_sign_out(%s)"
_RENEW: Final = b"select * from core.outbox_renew(%s::uuid[], %s::uuid[])"
_LABEL: Final = (
    b"label.event_id, label.event_type, label.source, label.target, label.workspace_id, label.trace_context,"
    b" label.attempts, label.last_error, label.generation"
)
_REAP: Final = (
    b"select reaped.id, reaped.status, reaped.reason, reaped.worker, " + _LABEL + b" from core.outbox_reap(%s, %s)"
    b" as reaped cross join lateral core.outbox_label(reaped.id) as label order by reaped.id"
)
_MEND_BELL: Final = b"select core.bell_mend()"
_RELEASE_UNKNOWN: Final = b"select * from core.outbox_release_unknown(%s, %s::uuid[], %s)"
_FAIL_UNHANDLED: Final = (
    b"select failed.id, " + _LABEL + b" from core.outbox_fail_unhandled(%s, %s::bigint[], %s::text[], %s::interval)"
    b" as failed cross join lateral core.outbox_label(failed.id) as label order by failed.id"
)
_GOODBYE: Final = 1.0


class PostgresKeeper:
    """Implements `Keeper`."""

    def __init__(self, dsn: str, settings: WorkerSettings, contexts: Collection[str]) -> None:
        self._settings = settings
        self._contexts = list(contexts)
        self._session = Session(
            dsn, f"spectral keep {settings.name}", settings.times.answer, settings={"lock_timeout": "2s"}
        )

    async def open(self) -> None:
        """See `Keeper`."""
        await self._session.drop()
        settings = self._settings
        await self._rows(SHOW_LIFE, [settings.name])
        channels, generations = list(settings.claimed_channels()), list(settings.generations())
        at = [socket.gethostname(), os.getpid(), version("spectral-events")]
        await self._rows(_SIGN_IN, [settings.name, generations, self._contexts, channels, *at])

    async def renew(self, leases: Collection[Lease]) -> set[Lease]:
        """See `Keeper`."""
        # A row may be held twice, of which one lease is lost; the server answers rows, so each is asked for once.
        latest = {lease.row_id: lease for lease in leases}
        tokens = [lease.token for lease in latest.values()]
        rows = await self._rows(_RENEW, [list(latest), tokens])
        return {latest[row_id] for (row_id,) in rows}

    async def reap(self) -> list[Reaped]:
        """See `Keeper`."""
        times = self._settings.times
        return [_reaped(*row) for row in await self._rows(_REAP, [times.lease, times.grace])]

    async def mend_bell(self) -> int:
        """See `Keeper`."""
        ((mended,),) = await self._rows(_MEND_BELL, [])
        return int(mended)

    async def release_unknown(self, known: Collection[Lease], older_than: timedelta) -> int:
        """See `Keeper`."""
        rows = await self._rows(_RELEASE_UNKNOWN, [self._settings.name, [each.token for each in known], older_than])
        return len(rows)

    async def fail_unhandled(self, context: str) -> Unhandled | None:
        """See `Keeper`."""
        settings = self._settings
        channels, generations = list(settings.claimed_channels()), list(settings.generations())
        parameters = [context, generations, channels, settings.times.unhandled_after]
        dead = [DeadRow(*row) for row in await self._rows(_FAIL_UNHANDLED, parameters)]
        return Unhandled(context, dead) if dead else None

    async def close(self) -> None:
        """See `Keeper`."""
        if self._session.is_open:
            # A worker that cannot say goodbye is seen to be gone by its lock.
            with suppress(SpectralError, psycopg.Error, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._rows(_SIGN_OUT, [self._settings.name])
        await self._session.drop()

    async def _rows(self, statement: bytes, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        async def ask(connection: psycopg.AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(statement, parameters)
            return await cursor.fetchall()

        return await self._session.ask(ask)


def _reaped(row_id: UUID, status: str, reason: str, worker: str, *label: Any) -> Reaped:  # noqa: ANN401  columns
    row = DeadRow(row_id, *label)
    event = EventRef(row.event_id, row.event_type, row.source, row.target, row.workspace_id, row.trace_context)
    return Reaped(row_id, status, reason, worker, row.attempts, event, row if status == "failed" else None)
