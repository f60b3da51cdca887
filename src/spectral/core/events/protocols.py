"""The ports: what the rest of a system sees of the substrate, and what the flow asks of its adapters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from spectral.core.events.envelope import EventEnvelope

if TYPE_CHECKING:
    from uuid import UUID

EventHandler: TypeAlias = Callable[[EventEnvelope], Awaitable[None]]
"""Handles one event. Raising means failure; the retry policy decides what follows."""

TraceContextSource: TypeAlias = Callable[[], str | None]
"""The W3C traceparent of whatever the program is doing now, if it is traced."""


@runtime_checkable
class EventPublisher(Protocol):
    """Publishes inside the caller's transaction and never commits: delivered if it commits, never if it rolls back."""

    async def publish(self, envelope: EventEnvelope) -> None:
        """Write the event; raises a `PublishError` if it cannot be published."""
        ...


@runtime_checkable
class EventListener(Protocol):
    """Runs a handler for the events of a channel.

    `handler_name` is qualified by its scope (`worlds.scan_completed_indexer`) and unique in the whole system: with
    the event's idempotency key it is what makes the handler take effect once.
    """

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler) -> None:
        """Deliver events to the handler until cancelled."""
        ...


class Rows(Protocol):
    """What a statement answered."""

    @property
    def rowcount(self) -> int:
        """How many rows it touched."""
        ...

    async def fetchone(self) -> tuple[Any, ...] | None:
        """The next row, if there is one."""
        ...

    async def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        ...


class Transaction(Protocol):
    """The transaction a handler may ask for: what it writes here, its dedup record and the ack commit together.

    It ends when the handler returns, and it is the worker that commits it: a handler that commits, rolls back, changes
    its role or swallows an SQL error without a nested transaction has failed, and nothing it wrote is kept.
    """

    @property
    def connection(self) -> Any:  # noqa: ANN401  the driver's own type, which the kernel does not know
        """The driver's connection (`psycopg.AsyncConnection`), for everything that is not here."""
        ...

    async def execute(self, query: str, params: Sequence[object] | Mapping[str, object] | None = None) -> Rows:
        """Run one statement with the driver's placeholders (`%s`, `%(name)s`)."""
        ...

    async def publish(self, envelope: EventEnvelope) -> None:
        """Publish an event that is delivered if this transaction commits, stamped with the worker's generation."""
        ...


class Logger(Protocol):
    """What a handler logs with; the event's fields are on every line."""

    def debug(self, event: str, **fields: object) -> object:
        """For whoever looks closely."""
        ...

    def info(self, event: str, **fields: object) -> object:
        """For the record."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Somebody should know."""
        ...

    def error(self, event: str, **fields: object) -> object:
        """Somebody should act."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """How this event comes to this handler; attempts count from 1."""

    event_id: UUID
    event_type: str
    handler_name: str
    attempt: int
    max_attempts: int
    generation: int
    worker: str
    logger: Logger

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final."""
        return self.attempt >= self.max_attempts
