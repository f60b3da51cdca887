"""A note of every kind, the level and the message of its line, and a structlog that keeps what it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import structlog

from spectral.core.events import probe
from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.infrastructure.observability import logs
from spectral.core.events.infrastructure.observability.logs import LogTool
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry
from spectral.core.events.settings import Identity

ROW = UUID(int=1)
WORKSPACE = UUID(int=2)
TRACE, OTHER_TRACE = "a" * 32, "b" * 32
WHO = Identity(generation=3, service="shop", environment="test")
A_MINUTE = timedelta(minutes=1)
CANARY = "canary"

Line = dict[str, Any]


def traceparent(trace: str) -> str:
    return f"00-{trace}-{'c' * 16}-01"


def delivery(event_id: UUID = ROW, trace: str | None = TRACE) -> Delivery:
    return Delivery(
        lease=Lease(ROW, uuid4()),
        event_id=event_id,
        event_type="platform.order.placed",
        event_version=1,
        occurred_at=datetime.now(UTC),
        source="platform",
        target="worlds",
        workspace_id=WORKSPACE,
        payload=json.dumps({"secret": CANARY}),
        idempotency_key="key",
        trace_context=None if trace is None else traceparent(trace),
        content_class="event",
        channel="outbox_3",
        generation=3,
        attempts=2,
        due_at=datetime.now(UTC),
        suspect=False,
        handled=frozenset(),
    )


def envelope(**different: object) -> EventEnvelope:
    given: dict[str, Any] = {
        "event_type": "platform.order.placed",
        "event_version": 1,
        "occurred_at": datetime.now(UTC),
        "source": "platform",
        "target": "worlds",
        "workspace_id": WORKSPACE,
        "payload": {"secret": CANARY},
        "idempotency_key": str(uuid4()),
    }
    return EventEnvelope(**{**given, **different})


def published(*envelopes: EventEnvelope, failure: probe.Failure | None = None) -> probe.Published:
    return probe.Published(probe.Publish(envelopes, 3), 0.0125, failure, traceparent(OTHER_TRACE))


def ran(failure: probe.Failure | None = None) -> probe.HandlerRan:
    return probe.HandlerRan(probe.Handle(delivery(), "worlds.index"), 0.0125, failure, traceparent(OTHER_TRACE))


def finished(outcome: Outcome) -> probe.Finished:
    return probe.Finished(delivery(), outcome, ("worlds.index", "worlds.count"), 0.0125, 0.5, traceparent(OTHER_TRACE))


def event_ref(event_id: UUID = ROW, target: str | None = "worlds", trace: str = TRACE) -> probe.EventRef:
    return probe.EventRef(event_id, "platform.order.placed", "platform", target, WORKSPACE, traceparent(trace))


def row_ref(event_id: UUID = ROW, row_id: UUID | None = None, trace: str = TRACE) -> probe.RowRef:
    return probe.RowRef(row_id or event_id, event_ref(event_id, trace=trace))


def dead_row(event_id: UUID = ROW) -> probe.DeadRow:
    event = event_ref(event_id)
    return probe.DeadRow(
        ROW,
        event.event_id,
        event.event_type,
        event.source,
        "worlds",
        event.workspace_id,
        event.trace_context,
        attempts=5,
        last_error="X: no",
        generation=3,
    )


NOTES: list[tuple[probe.Note, str, str]] = [
    (published(envelope()), "info", logs.PUBLISHED),
    (published(envelope(), failure=probe.Failure("X", "X: no")), "warning", logs.PUBLISH_REFUSED),
    (ran(), "debug", logs.HANDLER_RAN),
    (probe.Claimed("worlds", 10, 0.01, deaf=True), "debug", logs.CLAIMED),
    (probe.SettlementWritten(10, 0.01), "debug", logs.SETTLED),
    (finished(Handled()), "info", logs.HANDLED),
    (finished(AlreadyHandled()), "info", logs.HANDLED),
    (finished(Released()), "info", logs.HANDLED),
    (finished(Retry("X: no", A_MINUTE)), "warning", logs.HANDLED),
    (finished(DeadLetter("X: no")), "error", logs.HANDLED),
    (probe.LeaseWasLost(delivery()), "warning", logs.LEASE_LOST),
    (probe.LeftInDoubt(delivery()), "warning", logs.LEFT_IN_DOUBT),
    (probe.SettleGivenUp(delivery(), "X: no"), "error", logs.SETTLE_GIVEN_UP),
    (probe.Reaped(ROW, "pending", "expired", "other", 2, event_ref()), "warning", logs.REAPED),
    (probe.Reaped(ROW, "failed", "expired", "other", 5, event_ref(), dead_row()), "error", logs.REAPED),
    (probe.Unhandled("worlds", [dead_row()]), "error", logs.NOBODY_HANDLES),
    (probe.FannedOut(event_ref(target=None), ("worlds",)), "info", logs.FANNED_OUT),
    (probe.FannedOut(event_ref(target=None), ()), "warning", logs.BROADCAST_UNHEARD),
    (probe.HandlerRanAway(delivery(), "worlds.index"), "error", logs.HANDLER_RAN_AWAY),
    (probe.Quarantined(delivery()), "warning", logs.RUNNING_ALONE),
    (probe.Conflicted(delivery(), 2), "info", logs.CONFLICTED),
    (probe.EarOpened(("outbox_3",)), "info", logs.LISTENING),
    (probe.EarLost("X: no", A_MINUTE), "warning", logs.EAR_LOST),
    (probe.SubstrateLost("claim", "X: no", A_MINUTE), "warning", logs.DATABASE_LOST),
    (probe.KeptApart("worlds.index", A_MINUTE, one_group=True), "warning", logs.KEPT_APART),
    (probe.LoopBlocked(1.23), "error", logs.LOOP_BLOCKED),
    (probe.NeverAllocated(3, 1), "warning", logs.NEVER_ALLOCATED),
    (probe.Started("me", 3, ("worlds",)), "info", logs.STARTED),
    (probe.Stopping(4, A_MINUTE), "info", logs.STOPPING),
    (probe.Stopped(), "info", logs.STOPPED),
    (probe.Crashed("X: no"), "critical", logs.CRASHED),
    (probe.Relayed("nats", 3, "outbox_gen_3", "worlds", 9, 2, 1, 0.01, 0.2), "debug", logs.RELAYED),
    (probe.ReferencesVoid("worlds", 2), "debug", logs.REFERENCES_VOID),
    (probe.BrokerLost("nats", "X: no", A_MINUTE), "warning", logs.BROKER_LOST),
    (probe.BrokerBack("nats", 3.21), "info", logs.BROKER_BACK),
    (probe.BrokerBack("redis", 0.0, ("set: appendonly yes",)), "warning", logs.BROKER_BACK),
    (probe.RelaySwitched("nats"), "info", logs.RELAY_SWITCHED),
    (probe.Replayed([row_ref()], 4, "ada", "fixed"), "info", logs.REPLAYED),
    (probe.Discarded([row_ref()], "ada", "a test"), "info", logs.DISCARDED),
    (probe.Swept(5, 6, 1.5, finished=True), "info", logs.SWEPT),
]


@contextmanager
def unconfigured_structlog() -> Iterator[None]:
    """As if nobody had configured it; what earlier tests have said is written before, or it would be in these lines."""
    assert flush_all(10)
    structlog.reset_defaults()
    try:
        yield
    finally:
        structlog.reset_defaults()


@contextmanager
def kept_lines() -> Iterator[list[Line]]:
    """What a project's own structlog is given."""
    kept: list[Line] = []

    def keep(_logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        kept.append({"level": method, **event})
        raise structlog.DropEvent

    with unconfigured_structlog():
        structlog.configure(processors=[keep])
        yield kept


def told(lines: list[Line], note: probe.Note, worker: str | None = "me") -> list[Line]:
    """The lines of one note."""
    lines.clear()
    LogTool(WHO, worker).tell(note)
    return list(lines)
