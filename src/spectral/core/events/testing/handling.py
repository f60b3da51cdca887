"""One handler on one envelope, without a worker: its arguments are filled like a worker fills them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from psycopg.pq import TransactionStatus

from spectral.core.events.bootstrap import publishing
from spectral.core.events.channels import channel_for
from spectral.core.events.consumer import Consumer, Handler
from spectral.core.events.envelope import DEFAULT_CONTEXTS
from spectral.core.events.failure import ConfigurationError, TransactionMisusedError
from spectral.core.events.infrastructure.observability.logs import handler_logger
from spectral.core.events.infrastructure.postgres.transaction import PostgresTransaction
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.payload import encode_payload
from spectral.core.events.protocols import DeliveryContext
from spectral.core.events.settings import PublishSettings
from spectral.core.events.signature import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    import psycopg

    from spectral.core.events.envelope import EventEnvelope

HandlerFunction: TypeAlias = Callable[..., Awaitable[None]]

_WORKER = "test"


async def run_handler(  # noqa: PLR0913  each can be left out
    handler: HandlerFunction | str,
    envelope: EventEnvelope,
    *,
    consumer: Consumer | None = None,
    tx: psycopg.AsyncConnection[Any] | None = None,
    attempt: int = 1,
    generation: int = 1,
    contexts: Iterable[str] = (),
) -> None:
    """Run one handler on one envelope, and let out whatever it raises.

    Nothing is claimed, deduplicated or settled. The handler's own transaction is nested in the one the connection is
    in, for the test to commit or roll back; a connection that is in none commits if the handler succeeds.

    Args:
        handler: the function, or the name it is registered by.
        envelope: the event.
        consumer: where the handler is registered; needed to find it by name.
        tx: the connection for a handler that asks for the `Transaction`.
        attempt: which attempt the handler is told this is.
        generation: the generation the handler is told, and publishes in.
        contexts: what it may publish to besides the usual ones, its own and the event's source.

    Raises:
        ConfigurationError: there is no such handler, it would not be given such an event, or it needs a connection.
        TransactionMisusedError: it returned although a statement of its transaction had failed.
    """
    context = envelope.target or "test"
    owner = consumer if consumer is not None else Consumer(context)
    declared = DEFAULT_CONTEXTS | {owner.context, envelope.source, *contexts}
    run = _Run(_find(handler, owner, envelope.event_type), owner.context, generation, attempt, declared)
    if not run.handler.transactional:
        await run.call(envelope, None)
        return
    if tx is None:
        raise ConfigurationError(
            f"handler {run.handler.name} asks for the Transaction: give run_handler a connection, "
            "tx=await psycopg.AsyncConnection.connect(...)"
        )
    async with tx.transaction():
        await run.call(envelope, tx)
        if tx.info.transaction_status is TransactionStatus.INERROR:
            raise TransactionMisusedError(
                f"{run.handler.name} returned although an SQL statement of its transaction had failed; let the error "
                "out, or wrap what may fail in `async with tx.connection.transaction():`"
            )


def _find(wanted: HandlerFunction | str, consumer: Consumer, event_type: str) -> Handler:
    """The handler as it is registered, or the function as if it were."""
    registered = [each for each in consumer.handlers if wanted in (each.name, each.function)]
    if not registered:
        if callable(wanted):
            return consumer.handler(wanted)
        known = ", ".join(each.name for each in consumer.handlers) or "none at all"
        raise ConfigurationError(f"{consumer.context!r} has no handler {wanted!r}; it has {known}")
    fitting = [each for each in registered if each in consumer.handlers_of(event_type)]
    if not fitting:
        raise ConfigurationError(
            f"handler {name_of(registered[0].function)} is not registered for {event_type}: no worker would run it"
        )
    return fitting[0]


@dataclass(frozen=True, slots=True)
class _Run:
    """One execution."""

    handler: Handler
    context: str
    generation: int
    attempt: int
    contexts: frozenset[str]

    async def call(self, envelope: EventEnvelope, connection: psycopg.AsyncConnection[Any] | None) -> None:
        delivery = self._delivery(envelope)
        transaction = None
        if connection is not None:
            shared = publishing(PublishSettings(generation=self.generation, contexts=self.contexts))
            transaction = PostgresTransaction(connection, shared)
        context = DeliveryContext(
            event_id=envelope.event_id,
            event_type=envelope.event_type,
            handler_name=self.handler.name,
            attempt=self.attempt,
            max_attempts=self.handler.retry.max_attempts,
            generation=self.generation,
            worker=_WORKER,
            logger=handler_logger(delivery, self.handler.name, envelope.trace_context),
        )
        try:
            await self.handler.call(delivery, context, transaction)
        finally:
            if transaction is not None:  # as for a worker: what the handler left behind must not write any more
                transaction.end()

    def _delivery(self, envelope: EventEnvelope) -> Delivery:
        now = datetime.now(UTC)
        return Delivery(
            lease=Lease(envelope.event_id, uuid4()),
            event_id=envelope.event_id,
            event_type=envelope.event_type,
            event_version=envelope.event_version,
            occurred_at=envelope.occurred_at,
            source=envelope.source,
            target=envelope.target or self.context,
            workspace_id=envelope.workspace_id,
            payload=encode_payload(envelope.payload),
            idempotency_key=envelope.idempotency_key,
            trace_context=envelope.trace_context,
            content_class="event",
            channel=channel_for(self.generation),
            generation=self.generation,
            attempts=self.attempt,
            due_at=now,
            suspect=False,
            handled=frozenset(),
        )
