"""The ports: what the rest of a system sees of the substrate, and what the flow asks of its adapters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, runtime_checkable

from spectral.core.events.envelope import EventEnvelope

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
