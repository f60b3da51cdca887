"""The effects of handlers, as the oracle reads them: one row for each time a handler took effect.

A transactional handler records its effect in the transaction it is given, so that effect, dedup record and ack stand or
fall together. A plain handler records on a connection of its own, as an external effect: those may repeat, and are only
counted. The table has no unique key on purpose: a duplicate has to be seen, not prevented.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from spectral.core.events.protocols import DeliveryContext

EFFECTS_TABLE: Final = "public.spectral_effects"
_TABLE_PATTERN: Final = r"[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?"


def checked_table(table: str) -> str:
    """The table's name, which becomes part of statements.

    Raises:
        ConfigurationError: it is none that needs no quotes.
    """
    if re.fullmatch(_TABLE_PATTERN, table) is None:
        raise ConfigurationError(f"{table[:80]!r} is no name for a table of effects; try {EFFECTS_TABLE!r}")
    return table


def effects_schema(table: str = EFFECTS_TABLE) -> str:
    """The statement that creates the table of effects, if it is not there."""
    return f"""create table if not exists {checked_table(table)} (
    id           bigint      not null generated always as identity primary key,
    handler      text        not null,
    key          text        not null, -- the event's idempotency key
    event_id     uuid        not null,
    value        text,
    worker       text        not null,
    generation   bigint      not null, -- the worker's
    context      text        not null, -- the handler's
    attempt      integer     not null,
    external     boolean     not null default false,
    recorded_at  timestamptz not null default clock_timestamp()
)"""


EFFECTS_SCHEMA: Final = effects_schema()
"""Creates the table of effects under its usual name."""


class Executes(Protocol):
    """A `Transaction`, or an async connection of psycopg."""

    def execute(self, query: Any, params: Any = ..., /) -> Awaitable[Any]:  # noqa: ANN401  two drivers' views of SQL
        """Run one statement."""
        ...


async def record_effect(  # noqa: PLR0913  one column each
    on: Executes,
    delivery: DeliveryContext,
    key: str,
    *,
    value: object = None,
    generation: int | None = None,
    context: str | None = None,
    external: bool = False,
    table: str = EFFECTS_TABLE,
) -> None:
    """Record that this handler takes effect for this key.

    Args:
        on: the transaction the handler is given; for an external effect, a connection of its own in autocommit mode.
        delivery: says which handler, event, worker and attempt this is.
        key: the event's idempotency key.
        value: whatever the test wants to find again.
        generation: the worker's, if it is not the one the delivery names.
        context: the handler's context, if it is not the first part of the handler's name.
        external: whether this effect lies outside of the transaction that settles the event.
        table: where to.
    """
    await on.execute(
        f"insert into {checked_table(table)}"  # noqa: S608  the name is checked
        " (handler, key, event_id, value, worker, generation, context, attempt, external)"
        " values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [
            delivery.handler_name,
            key,
            delivery.event_id,
            None if value is None else str(value),
            delivery.worker,
            delivery.generation if generation is None else generation,
            delivery.handler_name.partition(".")[0] if context is None else context,
            delivery.attempt,
            external,
        ],
    )
