"""The evidence the oracle judges by, read from the database in one snapshot."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.testing.effects import EFFECTS_TABLE, checked_table

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    import psycopg

_ANSWER: Final = timedelta(seconds=60)
_QUICK_ANSWER: Final = timedelta(seconds=5)
_POLL: Final = 0.05
_APPLICATION: Final = "spectral oracle"

_LEFT: Final = b"select count(*) from core.outbox where status in ('pending', 'in_flight')"
_SNAPSHOT: Final = b"set transaction isolation level repeatable read, read only"
_ROWS: Final = (
    b"select id, coalesce(parent_id, id), event_type, target, idempotency_key, generation, status, delivered_at,"
    b" jsonb_array_length(failure_history), coalesce(last_error, '') from core.outbox"
)
_HANDLED: Final = b"select handler_name, idempotency_key from core.event_handled"
_SUBSCRIPTIONS: Final = b"select generation, context, event_type, handler_name, recorded_at from core.subscriptions"
_MOVES: Final = (
    b"select unnest(event_ids), recorded_at, (detail ->> 'generation')::bigint from core.audit"
    b" where detail ? 'generation' order by recorded_at"
)
# What was done last to each row: a discard may have been taken back.
_DISCARDED: Final = (
    b"select row_id from (select distinct on (row_id) row_id, action from core.audit, unnest(event_ids) as row_id"
    b" where action in ('discard', 'undo_discard') order by row_id, id desc) as done where action = 'discard'"
)


class Row(NamedTuple):
    """A row of the outbox; `event_id` is the broadcast's where it is one context's share of one."""

    row_id: UUID
    event_id: UUID
    event_type: str
    target: str | None
    key: str
    generation: int
    status: str
    delivered_at: datetime | None
    cycles: int
    last_error: str


class Effect(NamedTuple):
    """A row of the table of effects."""

    handler: str
    key: str
    event_id: UUID
    worker: str
    generation: int
    context: str
    external: bool
    recorded_at: datetime


class Subscribed(NamedTuple):
    """Which handler wants which type; since always, unless told."""

    generation: int
    context: str
    event_type: str
    handler_name: str
    since: datetime | None = None


class Move(NamedTuple):
    """When a row came to another generation."""

    row_id: UUID
    at: datetime
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the oracle looks at.

    `handled` is the dedup log: pairs of handler and key. `discarded` are rows that somebody discarded, swept ones too.
    """

    rows: tuple[Row, ...] = ()
    effects: tuple[Effect, ...] = ()
    handled: frozenset[tuple[str, str]] = frozenset()
    subscriptions: tuple[Subscribed, ...] = ()
    moves: tuple[Move, ...] = ()
    discarded: frozenset[UUID] = frozenset()


async def collect(dsn: str, *, table: str = EFFECTS_TABLE) -> Evidence:
    """Read it all, as it was at one moment. The role must see every workspace: a superuser or `spectral_operator`."""
    found = f"select to_regclass('{checked_table(table)}')".encode()
    effects = (
        "select handler, key, event_id, worker, generation, context, external, recorded_at"  # noqa: S608  checked
        f" from {checked_table(table)} order by id"
    ).encode()

    async def read(connection: psycopg.AsyncConnection[Any]) -> Evidence:
        async def all_of(query: bytes) -> list[tuple[Any, ...]]:
            return await (await connection.execute(query)).fetchall()

        async with connection.transaction():
            await connection.execute(_SNAPSHOT)
            if await all_of(found) == [(None,)]:
                raise ConfigurationError(f"there is no table {table}; create it with effects_schema({table!r})")
            return Evidence(
                rows=tuple(Row(*row) for row in await all_of(_ROWS)),
                effects=tuple(Effect(*row) for row in await all_of(effects)),
                handled=frozenset((handler, key) for handler, key in await all_of(_HANDLED)),
                subscriptions=tuple(Subscribed(*row) for row in await all_of(_SUBSCRIPTIONS)),
                moves=tuple(Move(*row) for row in await all_of(_MOVES)),
                discarded=frozenset(row_id for (row_id,) in await all_of(_DISCARDED)),
            )

    session = Session(dsn, _APPLICATION, _ANSWER, settings={})
    try:
        return await session.ask(read)
    finally:
        await session.drop()


async def settle_down(dsn: str, deadline: timedelta) -> bool:
    """Wait until nothing is pending or in flight, however often the database goes away meanwhile.

    Answers whether that was reached before the deadline (a duration from now).
    """
    clock = asyncio.get_running_loop().time
    end = clock() + deadline.total_seconds()
    session = Session(dsn, _APPLICATION, _QUICK_ANSWER, settings={})
    try:
        while True:
            try:
                ((left,),) = await session.ask(_left)
            except SubstrateLostError:
                left = None
            if left == 0:
                return True
            if clock() >= end:
                return False
            await asyncio.sleep(_POLL)
    finally:
        await session.drop()


async def _left(connection: psycopg.AsyncConnection[Any]) -> list[tuple[Any, ...]]:
    return await (await connection.execute(_LEFT)).fetchall()
