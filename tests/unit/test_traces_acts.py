"""Spans of acts: what is recorded of a publish and of a handler, whose child it is, and what is current meanwhile."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from uuid import UUID, uuid4

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes

from spectral.core.events import EventEnvelope
from spectral.core.events.infrastructure.observability.origins import remote_span
from spectral.core.events.infrastructure.observability.tools import Carried, Lean, Traced
from spectral.core.events.infrastructure.observability.traces import (
    SCHEMA_URL,
    OpenTelemetryTracer,
    current_traceparent,
)
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.probe import Failure, Handle, Publish
from spectral.core.events.settings import Identity

IDENTITY = Identity(generation=3)
PUBLISHED = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
EVENT_ID = UUID("018f3b1e-0000-7000-8000-000000000001")
DELIVERY = Delivery(
    lease=Lease(uuid4(), uuid4()),
    event_id=EVENT_ID,
    event_type="worlds.scan.completed",
    event_version=1,
    occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
    source="worlds",
    target="platform",
    workspace_id=None,
    payload='{"secret": "canary"}',
    idempotency_key="key",
    trace_context=PUBLISHED,
    content_class="event",
    channel="outbox_gen_3",
    generation=3,
    attempts=1,
    due_at=datetime(2026, 1, 1, tzinfo=UTC),
    suspect=False,
    handled=frozenset(),
)
FIRST = Handle(DELIVERY, "platform.index")
SECOND = Handle(DELIVERY._replace(attempts=2), "platform.index")
REPLAYED = Handle(DELIVERY._replace(replays=1), "platform.index")


def envelope(event_type: str = "worlds.scan.completed", trace_context: str | None = None) -> EventEnvelope:
    return EventEnvelope(
        event_type=event_type, source="worlds", target="platform", payload={"n": 1}, trace_context=trace_context
    )


class Recorded:
    """A tracer on a provider of the SDK, and what it has exported."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OpenTelemetryTracer(IDENTITY, "worker-1", self.provider)

    def begin(self, act: Publish | Handle) -> Traced:
        traced = self.tracer.start(act)
        assert traced is not None
        assert not isinstance(traced, Carried | Lean)
        return traced

    def done(self, act: Publish | Handle, failure: Failure | None = None) -> ReadableSpan:
        """The span of an act that began and ended."""
        traced = self.begin(act)
        traced.leave()
        traced.end(failure)
        return self.spans()[-1]

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def traceparent_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}"


def links_of(span: ReadableSpan) -> list[str]:
    return [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in span.links]


# handlers


def test_the_first_attempt_is_a_child_of_the_publish_and_linked_to_it(recorded: Recorded) -> None:
    span = recorded.done(FIRST)
    assert (parent_of(span), links_of(span)) == (PUBLISHED[3:-3], [PUBLISHED[3:-3]])
    assert span.parent is not None
    assert span.parent.is_remote


@pytest.mark.parametrize("act", [SECOND, REPLAYED], ids=["retry", "replay"])
def test_a_later_attempt_is_a_trace_of_its_own_with_a_link(recorded: Recorded, act: Handle) -> None:
    # Whoever started the worker may have done so in a span: that is nobody's parent either.
    with recorded.provider.get_tracer("tests").start_as_current_span("program"):
        span = recorded.done(act)
    assert (parent_of(span), links_of(span)) == (None, [PUBLISHED[3:-3]])
    assert PUBLISHED[3:35] not in traceparent_of(span)


def test_an_event_without_a_trace_begins_one(recorded: Recorded) -> None:
    with recorded.provider.get_tracer("tests").start_as_current_span("program"):
        span = recorded.done(Handle(DELIVERY._replace(trace_context=None), "platform.index"))
    assert (parent_of(span), links_of(span)) == (None, [])


def test_a_handler_is_described_by_the_messaging_conventions(recorded: Recorded) -> None:
    span = recorded.done(FIRST)
    assert (span.name, span.kind) == ("process worlds.scan.completed", SpanKind.CONSUMER)
    assert dict(span.attributes or {}) == {
        "messaging.system": "spectral",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "worlds.scan.completed",
        "messaging.consumer.group.name": "platform",
        "messaging.message.id": str(EVENT_ID),
        "spectral.handler": "platform.index",
        "spectral.generation": 3,
        "spectral.attempt": 1,
        "spectral.outcome": "ok",
    }
    assert (span.status.status_code, span.events) == (StatusCode.UNSET, ())


def test_each_event_keeps_its_own_attributes(recorded: Recorded) -> None:
    other = DELIVERY._replace(event_id=uuid4(), attempts=4)
    found = [recorded.done(act).attributes or {} for act in (FIRST, Handle(other, "platform.index"), FIRST)]
    assert [(each["messaging.message.id"], each["spectral.attempt"]) for each in found] == [
        (str(EVENT_ID), 1),
        (str(other.event_id), 4),
        (str(EVENT_ID), 1),
    ]


def test_a_failure_is_an_error_by_its_class_with_the_text_that_may_be_kept(recorded: Recorded) -> None:
    span = recorded.done(FIRST, Failure("ValueError", "ValueError: no"))
    attributes = span.attributes or {}
    assert (attributes["spectral.outcome"], attributes["error.type"]) == ("failed", "ValueError")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError: no")
    assert span.events == ()
    assert "canary" not in span.to_json()


def test_the_scope_is_this_library_in_its_version_and_the_worker(recorded: Recorded) -> None:
    scope = recorded.done(FIRST).instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.schema_url) == ("spectral", SCHEMA_URL)
    assert (scope.version, dict(scope.attributes or {})) == (
        version("spectral-events"),
        {"messaging.client.id": "worker-1"},
    )


def test_a_span_ends_when_its_act_does_and_not_when_somebody_finds_the_time(recorded: Recorded) -> None:
    traced = recorded.begin(FIRST)
    traced.leave()
    with recorded.provider.get_tracer("tests").start_as_current_span("later"):
        pass
    traced.end(None)
    later, span = recorded.spans()
    assert span.end_time is not None
    assert later.end_time is not None
    assert span.end_time <= later.end_time


def test_in_the_context_of_a_handler_its_span_is_current_and_outside_it_is_not(recorded: Recorded) -> None:
    traced = recorded.begin(FIRST)
    assert traced.context is not None
    assert traced.context.run(current_traceparent) == traced.traceparent
    assert current_traceparent() is None


def test_the_context_of_a_handler_has_what_the_program_keeps_there_but_not_its_baggage(recorded: Recorded) -> None:
    kept = contextvars.ContextVar("kept", default="nothing")
    kept.set("something")
    token = attach(baggage.set_baggage("tenant", "of whoever started the worker"))
    try:
        traced = recorded.begin(FIRST)
    finally:
        detach(token)
    assert traced.context is not None
    assert traced.context.run(kept.get) == "something"
    assert traced.context.run(baggage.get_all) == {}


def test_a_sampler_sees_the_attributes_and_the_link() -> None:
    seen: list[tuple[Attributes, Sequence[Link] | None]] = []

    class Curious(Sampler):
        def should_sample(  # noqa: PLR0913, PLR0917  the SDK's own signature
            self,
            parent_context: Context | None,
            trace_id: int,
            name: str,
            kind: SpanKind | None = None,
            attributes: Attributes = None,
            links: Sequence[Link] | None = None,
            trace_state: trace.TraceState | None = None,
        ) -> SamplingResult:
            del parent_context, trace_id, name, kind, trace_state
            seen.append((attributes, links))
            return SamplingResult(Decision.DROP)

        def get_description(self) -> str:
            return "curious"

    Recorded(Curious()).begin(SECOND)
    ((attributes, links),) = seen
    assert attributes is not None
    assert (attributes["spectral.handler"], attributes["messaging.consumer.group.name"]) == (
        "platform.index",
        "platform",
    )
    assert [link.context for link in links or ()] == [remote_span(PUBLISHED)]


def test_what_is_not_sampled_is_not_recorded_but_continues_its_trace() -> None:
    recorded = Recorded(ALWAYS_OFF)
    traced = recorded.begin(FIRST)
    assert traced.context is not None
    assert (traced.context.run(current_traceparent) or "")[:36] == PUBLISHED[:36]
    assert (traced.traceparent or "")[-2:] in {"00", "02"}
    traced.leave()
    traced.end(Failure("ValueError", "no"))
    assert recorded.spans() == ()


UNSAMPLED = PUBLISHED[:-2] + "00"


def test_an_event_that_its_publisher_has_not_sampled_is_handed_on_as_it_came() -> None:
    recorded = Recorded(ParentBased(ALWAYS_ON))
    carried = recorded.tracer.start(Handle(DELIVERY._replace(trace_context=UNSAMPLED), "platform.index"))
    assert isinstance(carried, Carried)
    assert carried.context is not None
    assert carried.context.run(current_traceparent) == carried.traceparent == UNSAMPLED
    assert carried.context.run(trace.get_current_span).get_span_context() == remote_span(UNSAMPLED)


@pytest.mark.parametrize(
    ("sampler", "changes"),
    [
        (ParentBased(ALWAYS_ON), {"trace_context": PUBLISHED}),
        (ParentBased(ALWAYS_ON), {"trace_context": UNSAMPLED, "attempts": 2}),
        (ParentBased(ALWAYS_ON), {"trace_context": None}),
        (ParentBased(ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON), {"trace_context": UNSAMPLED}),
        (ParentBased(ParentBased(ALWAYS_ON), remote_parent_not_sampled=ALWAYS_ON), {"trace_context": UNSAMPLED}),
        (ALWAYS_ON, {"trace_context": UNSAMPLED}),
    ],
    ids=["sampled", "retry", "no trace", "other rule", "rule within a rule", "always"],
)
def test_whatever_else_a_sampler_may_want_is_put_to_it(sampler: Sampler, changes: dict[str, Any]) -> None:
    recorded = Recorded(sampler)
    recorded.done(Handle(DELIVERY._replace(**changes), "platform.index"))
    assert len(recorded.spans()) == 1


# without a provider


def test_without_a_provider_a_handler_runs_in_the_trace_of_its_event() -> None:
    for act in (FIRST, SECOND):
        traced = OpenTelemetryTracer(IDENTITY).start(act)
        assert traced is not None
        assert traced.context is not None
        assert traced.context.run(current_traceparent) == traced.traceparent == PUBLISHED


def test_without_a_provider_and_a_trace_there_is_nothing_to_follow() -> None:
    tracer = OpenTelemetryTracer(IDENTITY)
    assert tracer.start(Handle(DELIVERY._replace(trace_context=None), "platform.index")) is None
    assert tracer.start(Publish([envelope()], 3)) is None


def test_a_provider_that_is_switched_off_is_as_good_as_none() -> None:
    tracer = OpenTelemetryTracer(IDENTITY, None, trace.NoOpTracerProvider())
    followed = tracer.start(SECOND)
    assert followed is not None
    assert followed.traceparent == PUBLISHED
    assert tracer.start(Publish([envelope()], 3)) is None
    assert tracer.start(Handle(DELIVERY._replace(trace_context=None), "platform.index")) is None


@pytest.mark.parametrize(
    "text", ["", "00", "0" * 55, PUBLISHED + "0", "00-" + "z" * 32 + PUBLISHED[35:], PUBLISHED[:53] + "zz"]
)
def test_what_is_no_traceparent_names_no_span(text: str) -> None:
    assert remote_span(text) is None


def test_a_traceparent_is_read_as_opentelemetry_reads_it() -> None:
    read = trace.get_current_span(TraceContextTextMapPropagator().extract({"traceparent": PUBLISHED}))
    assert remote_span(PUBLISHED) == read.get_span_context()


# publishing


def test_a_publish_is_a_child_of_the_callers_span_and_current_until_it_is_left(recorded: Recorded) -> None:
    with recorded.provider.get_tracer("tests").start_as_current_span("request"):
        request = current_traceparent() or ""
        traced = recorded.begin(Publish([envelope()], 3))
        assert current_traceparent() == traced.traceparent != request
        traced.leave()
        assert current_traceparent() == request
    traced.end(None)
    span = recorded.spans()[-1]
    assert (parent_of(span), span.kind) == (request[3:-3], SpanKind.PRODUCER)
    assert traceparent_of(span) == traced.traceparent


def test_a_publish_of_one_event_names_it(recorded: Recorded) -> None:
    event = envelope()
    span = recorded.done(Publish([event], 3))
    assert span.name == "publish worlds.scan.completed"
    assert dict(span.attributes or {}) == {
        "messaging.system": "spectral",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "worlds.scan.completed",
        "messaging.message.id": str(event.event_id),
        "spectral.generation": 3,
        "spectral.outcome": "ok",
    }


def test_a_publish_of_several_events_counts_them(recorded: Recorded) -> None:
    alike = recorded.done(Publish([envelope(), envelope()], 3))
    mixed = recorded.done(Publish([envelope(), envelope("worlds.scan.started")], 3))
    assert (alike.name, mixed.name) == ("publish worlds.scan.completed", "publish")
    for span in (alike, mixed):
        assert (span.attributes or {})["messaging.batch.message_count"] == 2
        assert "messaging.message.id" not in (span.attributes or {})
    assert "messaging.destination.name" not in (mixed.attributes or {})


def test_a_publish_of_nothing_has_no_span(recorded: Recorded) -> None:
    assert recorded.tracer.start(Publish([], 3)) is None


def test_an_event_with_a_trace_of_its_own_is_linked(recorded: Recorded) -> None:
    assert links_of(recorded.done(Publish([envelope(trace_context=PUBLISHED)], 3))) == [PUBLISHED[3:-3]]


def test_a_refused_publish_is_an_error(recorded: Recorded) -> None:
    span = recorded.done(Publish([envelope()], 3), Failure("DuplicateEventError", "known"))
    assert (span.status.status_code, (span.attributes or {})["error.type"]) == (StatusCode.ERROR, "DuplicateEventError")


def test_a_worker_without_a_name_is_not_named() -> None:
    recorded = Recorded()
    recorded.tracer = OpenTelemetryTracer(IDENTITY, None, recorded.provider)
    scope = recorded.done(FIRST).instrumentation_scope
    assert scope is not None
    assert not scope.attributes


def test_behind_a_watch_a_span_ends_in_its_outlet(recorded: Recorded) -> None:
    watch = Watch({}, None, recorded.tracer)
    watch.begin(FIRST).end(ValueError("no"))
    watch.flush(10)
    (span,) = recorded.spans()
    assert ((span.attributes or {})["error.type"], watch.troubles()["traces"]) == ("ValueError", (0, 0))
