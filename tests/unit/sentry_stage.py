"""A program that has set Sentry up, without a network, and an event that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from spectral.core.events.infrastructure.observability.sentry import SentryTool
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.outcome import DeadLetter, Outcome
from spectral.core.events.probe import Finished
from spectral.core.events.settings import Identity

CANARY = "canary8472"
EVENT_ID = UUID("00000000-0000-4000-8000-000000000001")
TRACE_ID, SPAN_ID, ROW_SPAN_ID = "a" * 32, "b" * 16, "c" * 16
ERROR = "ValueError: platform.project: it does not fit"

DELIVERY = Delivery(
    lease=Lease(EVENT_ID, EVENT_ID),
    event_id=EVENT_ID,
    event_type="worlds.scan.completed",
    event_version=1,
    occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
    source="worlds",
    target="platform",
    workspace_id=None,
    payload=f'{{"name": "{CANARY}"}}',
    idempotency_key=CANARY,
    trace_context=f"00-{TRACE_ID}-{ROW_SPAN_ID}-01",
    content_class="x",
    channel="outbox_gen_3",
    generation=3,
    attempts=6,
    due_at=datetime(2026, 1, 1, tzinfo=UTC),
    suspect=False,
    handled=frozenset(),
)


class Kept(Transport):
    """Keeps what would be sent."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.texts: list[str] = []
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.texts.append(envelope.serialize().decode())
        for item in envelope.items:
            event = item.get_event()
            if event is not None:
                self.events.append(dict(event))


@contextmanager
def sentry(**options: Any) -> Iterator[Kept]:  # noqa: ANN401  whatever the SDK takes
    """A program that has set Sentry up, within this block."""
    kept = Kept({"dsn": None})
    with sentry_sdk.isolation_scope() as scope:
        scope.set_client(client_of(kept, **options))
        yield kept


@contextmanager
def sentry_everywhere(transport: Transport, **options: Any) -> Iterator[None]:  # noqa: ANN401  whatever the SDK takes
    """A program that has set Sentry up for all its threads and tasks, as `sentry_sdk.init` does."""
    scope = sentry_sdk.get_global_scope()
    scope.set_client(client_of(transport, **options))
    try:
        yield
    finally:
        scope.set_client(None)
        scope.clear_breadcrumbs()


def client_of(transport: Transport | None, **options: Any) -> sentry_sdk.Client:  # noqa: ANN401  as above
    given = {"dsn": "https://key@sentry.example/1", "default_integrations": False, **options}
    return sentry_sdk.Client(transport=transport, **given)


class Clock:
    """Stands still until it is told."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def tool(clock: Clock | None = None) -> SentryTool:
    identity = Identity(generation=4, service="shop", environment="staging")
    return SentryTool(identity, "worker-1", clock=clock or Clock())


def finished(outcome: Outcome | None = None, **changes: Any) -> Finished:  # noqa: ANN401  fields of the delivery
    handlers = ("platform.mail", "platform.project")
    traceparent = f"00-{TRACE_ID}-{SPAN_ID}-01"
    return Finished(DELIVERY._replace(**changes), outcome or DeadLetter(ERROR), handlers, 0.1, 0.2, traceparent)


def only(kept: Kept) -> dict[str, Any]:
    (event,) = kept.events
    return event
