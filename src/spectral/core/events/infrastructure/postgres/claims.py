"""Claim, fan out and subscribe on a connection of their own.

A claim's commit does not wait for the disk: a claim lost in a crash of the server is just pending again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spectral.core.events.consumer import Subscription
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.postgres.script import Rows, run_script
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.ports import Outlook
from spectral.core.events.probe import FannedOut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from spectral.core.events.ports import ClaimAsk
    from spectral.core.events.settings import WorkerSettings

_CLAIM: Final = sql.SQL(
    "select id, claim_token, event_id, event_type, event_version, occurred_at, source, target, workspace_id, payload,"
    " idempotency_key, trace_context, content_class, channel, generation, attempts, due_at, suspect,"
    " handled from core.outbox_claim({}, {}, {}::bigint[], {}::text[], {}::text[], {}, null, {}::text[])"
)
_FAN_OUT: Final = sql.SQL("select parent_id, context from core.outbox_fan_out({}::bigint[], {}::text[])")
_NEXT_DUE: Final = sql.SQL("select core.outbox_next_due({}::text[], {}::bigint[], {}::text[])")
_SUBSCRIBE: Final = (
    b"select context, event_type, handler_name from core.outbox_subscribe("
    b"%s, %s::text[], %s::text[], %s::text[], %s::integer[], %s)"
)


class PostgresClaims:
    """Implements `Claims`."""

    def __init__(self, dsn: str, settings: WorkerSettings) -> None:
        self._settings = settings
        self._generations = list(settings.generations())
        self._channels = list(settings.claimed_channels())
        self._session = Session(
            dsn,
            f"spectral claim {settings.name}",
            settings.times.answer,
            settings={"synchronous_commit": "off", "lock_timeout": "2s"},
        )

    async def subscribe(self, subscriptions: Sequence[Subscription], *, replace: bool) -> list[Subscription]:
        """See `Claims`."""

        async def ask(connection: psycopg.AsyncConnection[Any]) -> list[Subscription]:
            columns = [list(column) for column in zip(*subscriptions, strict=True)] or [[], [], [], []]
            parameters = [self._settings.generation, *columns, replace]
            try:
                cursor = await connection.execute(_SUBSCRIBE, parameters)
            except psycopg.errors.ObjectNotInPrerequisiteState:
                raise ConfigurationError(
                    f"generation {self._settings.generation} is retired: start the worker with one that is not "
                    "(SPECTRAL_GENERATION)"
                ) from None
            return [Subscription(context, kind, name, 0) for context, kind, name in await cursor.fetchall()]

        return await self._session.ask(ask)

    async def claim(self, asks: Sequence[ClaimAsk]) -> list[list[Delivery]]:
        """See `Claims`."""
        return _deliveries(await self._run(self._claims(asks)))

    async def look_ahead_and_claim(self, asks: Sequence[ClaimAsk]) -> tuple[Outlook, list[list[Delivery]]]:
        """See `Claims`."""
        scope = (self._generations, self._channels)
        contexts = list(dict.fromkeys(each.context for each in asks))
        script = [_FAN_OUT.format(*scope), _NEXT_DUE.format(contexts, *scope), *self._claims(asks)]
        split, ((due_in,),), *claimed = await self._run(script)
        return Outlook(_fanned_out(split), due_in), _deliveries(claimed)

    def _claims(self, asks: Sequence[ClaimAsk]) -> list[sql.Composed]:
        return [_CLAIM.format(*self._parameters(each)) for each in asks]

    async def _run(self, script: Sequence[sql.Composed]) -> list[Rows]:
        return await self._session.ask(lambda connection: run_script(connection, *script))

    async def close(self) -> None:
        """See `Claims`."""
        await self._session.drop()

    def _parameters(self, ask: ClaimAsk) -> list[object]:
        types = None if ask.event_types is None else list(ask.event_types)
        names = list(ask.handler_names)
        return [self._settings.name, ask.context, self._generations, self._channels, types, ask.limit, names]


def _deliveries(answers: Sequence[Rows]) -> list[list[Delivery]]:
    return [[_delivery(row) for row in rows] for rows in answers]


def _delivery(row: tuple[Any, ...]) -> Delivery:
    row_id, token, *values, suspect, handled = row
    names = (
        "event_id",
        "event_type",
        "event_version",
        "occurred_at",
        "source",
        "target",
        "workspace_id",
        "payload",
        "idempotency_key",
        "trace_context",
        "content_class",
        "channel",
        "generation",
        "attempts",
        "due_at",
    )
    return Delivery(
        lease=Lease(row_id, token), **dict(zip(names, values, strict=True)), suspect=suspect, handled=frozenset(handled)
    )


def _fanned_out(rows: list[tuple[Any, ...]]) -> tuple[FannedOut, ...]:
    contexts: dict[UUID, list[str]] = {}
    for parent_id, context in rows:
        contexts.setdefault(parent_id, [])
        if context is not None:
            contexts[parent_id].append(context)
    return tuple(FannedOut(parent_id, tuple(each)) for parent_id, each in contexts.items())
