"""Spans of what a handler publishes: the same on the wire as the SDK's own, and as many as its sampler says."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_as_ever
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Span, StatusCode

from spectral.core.events import EventEnvelope
from spectral.core.events.infrastructure.observability.lean import Sort
from spectral.core.events.infrastructure.observability.origins import RemoteSpan, copy_within
from spectral.core.events.infrastructure.observability.traces import OpenTelemetryTracer
from spectral.core.events.probe import Publish
from spectral.core.events.settings import Identity
from spectral_workers.lean_spans import KeptSpan, LeanTracer
from tests.unit.test_lean_spans import PUBLISHED, UNSAMPLED, Lightly, act, lightly, sent, wire

__all__ = ["lightly"]

OWN = "00-1bf7651916cd43dd8448eb211c80319c-10f067aa0ba902b7-01"


def event(**fields: Any) -> EventEnvelope:  # noqa: ANN401  of an envelope
    return EventEnvelope(event_type="worlds.card.sent", source="worlds", payload={}, **fields)


class Publishes:
    """What a handler does: publish, and see what is current meanwhile."""

    def __init__(self, made: Lightly, *events: EventEnvelope, error: Exception | None = None) -> None:
        self._made = made
        self._act = Publish(events, 3)
        self._error = error
        self.traceparent: str | None = None
        self.meanwhile: Span = trace.INVALID_SPAN

    def __call__(self, around: Span) -> None:
        activity = self._made.watch.begin(self._act)
        self.traceparent = activity.traceparent
        self.meanwhile = trace.get_current_span()
        activity.end(self._error)
        assert trace.get_current_span() is around


def published(made: Lightly) -> Any:  # noqa: ANN401  one of the SDK's or one of ours
    (span,) = [
        each for each in made.spans() if (each.sort.shape if isinstance(each, KeptSpan) else each).name != PROCESS
    ]
    return span


PROCESS = "process platform.order.placed"


def by_the_sdk(one: EventEnvelope) -> Any:  # noqa: ANN401  as above
    """The span of a publish, where only those of handlers are lean."""
    start = LeanTracer.start_lean

    def refuse(self: LeanTracer, sort: Sort, *given: Any) -> KeptSpan | None:  # noqa: ANN401  as it is given
        return None if sort.attempt is None else start(self, sort, *given)

    with patch.object(LeanTracer, "start_lean", refuse):
        made = Lightly()
        made.run(act(), Publishes(made, one))
        span = published(made)
        made.provider.shutdown()
    return span


@pytest.mark.parametrize("fields", [{}, {"trace_context": OWN}, {"target": "platform"}], ids=["plain", "own", "sent"])
def test_a_collector_reads_what_it_would_have_been_sent_by_the_sdk(lightly: Lightly, fields: dict[str, Any]) -> None:
    one = event(**fields)
    lightly.run(act(), do := Publishes(lightly, one))
    kept = published(lightly)
    assert isinstance(kept, KeptSpan)
    assert do.meanwhile is kept
    assert do.traceparent == kept.traceparent
    assert sent(kept) == wire(encode_as_ever([kept.readable()]))
    full = by_the_sdk(one)
    assert isinstance(full, ReadableSpan)
    *around, light = sent(kept)
    *around_it, other = wire(encode_as_ever([full]))
    assert around == around_it
    for each in (light, other):
        for field in ("span_id", "parent_span_id", "start_time_unix_nano", "end_time_unix_nano"):
            each.ClearField(field)
    assert light == other


def test_it_is_the_child_of_the_handler_and_whatever_a_driver_does_is_its_own(lightly: Lightly) -> None:
    spans: list[Span] = []

    def do(around: Span) -> None:
        activity = lightly.watch.begin(Publish([event()], 3))
        lightly.provider.get_tracer("driver").start_span("insert").end()
        activity.end()
        spans.append(around)

    lightly.run(act(), do)
    insert = next(each for each in lightly.spans() if getattr(each, "name", None) == "insert")
    (kept,) = [each for each in lightly.spans() if isinstance(each, KeptSpan) and each.sort.attempt is None]
    assert insert.parent == kept.get_span_context()
    assert kept.parent_context() == spans[0].get_span_context()


def test_a_refusal_is_told_as_ever(lightly: Lightly) -> None:
    lightly.run(act(), Publishes(lightly, event(), error=ValueError("no")))
    span = published(lightly)
    assert isinstance(span, ReadableSpan)
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert "spectral.attempt" not in span.attributes
    assert span.attributes["error.type"] == "ValueError"
    assert span.parent is not None
    assert not span.parent.is_remote


@pytest.mark.parametrize("events", [[event(), event()]], ids=["several"])
def test_what_there_is_more_to_say_of_is_said_by_the_sdk(lightly: Lightly, events: list[EventEnvelope]) -> None:
    lightly.run(act(), Publishes(lightly, *events))
    span = published(lightly)
    assert isinstance(span, ReadableSpan)
    assert span.attributes is not None
    assert span.attributes["messaging.batch.message_count"] == len(events)


@pytest.mark.parametrize("events", [1, 2])
def test_nobody_records_what_is_published_in_a_trace_that_nobody_records(lightly: Lightly, events: int) -> None:
    do = Publishes(lightly, *(event() for _ in range(events)))
    lightly.run(act(UNSAMPLED), do)
    assert lightly.spans() == []
    assert do.traceparent == UNSAMPLED, "which the row carries on"


@pytest.mark.parametrize(
    ("came", "goes"), [(f"cc{UNSAMPLED[2:]}", UNSAMPLED), (f"00-{'0' * 32}{UNSAMPLED[35:]}", None)]
)
def test_a_trace_is_handed_on_in_our_own_version_if_it_is_one(lightly: Lightly, came: str, goes: str | None) -> None:
    seen: list[str | None] = []
    context = copy_within(RemoteSpan(came))
    context.run(lambda: seen.append(lightly.watch.begin(Publish([event()], 3)).traceparent))
    assert seen == [goes]


def test_a_sampler_that_records_everything_records_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    made = Lightly()
    made.run(act(UNSAMPLED), do := Publishes(made, event()))
    assert len(made.spans()) == 2
    assert do.traceparent is not None
    assert do.traceparent[3:35] == UNSAMPLED[3:35]
    assert do.traceparent != UNSAMPLED
    made.provider.shutdown()


def test_a_span_of_the_handlers_own_is_the_parent(lightly: Lightly) -> None:
    def do(_: Span) -> None:
        with lightly.provider.get_tracer("mine").start_as_current_span("within"):
            lightly.watch.begin(Publish([event()], 3)).end()

    lightly.run(act(), do)
    spans = {each.name: each for each in lightly.spans() if isinstance(each, ReadableSpan)}
    assert spans["publish worlds.card.sent"].parent == spans["within"].context


def test_the_same_types_are_not_kept_for_ever(lightly: Lightly, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectral.core.events.infrastructure.observability.traces._MAX_KNOWN", 1)
    tracer = OpenTelemetryTracer(Identity(generation=3), "worker-1", lightly.provider)
    traced = tracer.start(act(PUBLISHED))
    assert traced is not None
    assert traced.context is not None
    for generation in range(3):
        lean = traced.context.run(tracer.start, Publish([event()], generation))
        assert lean is not None
    assert len(tracer._known_publishes) == 1
