"""Lean spans: a collector reads what the SDK's own would have been, and whoever touches one has one of the SDK's."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_as_ever
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_OFF, DEFAULT_ON, ParentBasedTraceIdRatio
from opentelemetry.trace import Span, SpanContext, StatusCode, TraceFlags

from spectral.core.events.infrastructure.observability.slim import MUCH
from spectral.core.events.infrastructure.observability.tools import Carried, Lean
from spectral.core.events.infrastructure.observability.traces import OpenTelemetryTracer
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.probe import Handle
from spectral.core.events.settings import Identity
from spectral_workers import losses
from spectral_workers.lean_spans import FirstSpan, KeptSpan, LeanProvider
from spectral_workers.otlp_spans import encode_spans, write_spans
from spectral_workers.span_heaps import HeapQueue
from spectral_workers.span_queue import Limits, SpanQueue
from tests.unit.log_notes import delivery
from tests.unit.test_watch import fail

PUBLISHED = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
UNSAMPLED = f"{PUBLISHED[:-2]}00"
RANDOM = f"{PUBLISHED[:-2]}03"
RESOURCE = Resource({"service.name": "tests"})
PATIENCE = 10.0


def act(trace_context: str | None = PUBLISHED, **different: Any) -> Handle:  # noqa: ANN401  of a delivery
    return Handle(delivery()._replace(trace_context=trace_context, **{"attempts": 1, **different}), "worlds.index")


ACTS = {
    "child": act(),
    "random": act(RANDOM),
    "retry": act(attempts=2),
    "replay": act(replays=1),
    "rootless": act(None),
}


LIMITS = Limits(16_384, 2_048, 5.0)


class Kept(NamedTuple):
    """A heap of spans as they are, instead of as they are written."""

    kept: Sequence[KeptSpan]

    @property
    def spans(self) -> int:
        return len(self.kept)


def as_they_are(spans: Sequence[KeptSpan]) -> list[Kept]:
    return [Kept(spans)]


def exported(*exporters: InMemorySpanExporter) -> list[Any]:
    """One by one, whatever they came as."""
    spans: list[Any] = [span for exporter in exporters for span in exporter.get_finished_spans()]
    return [one for span in spans for one in (span.kept if isinstance(span, Kept) else [span])]


class Lightly:
    """A lean provider and what it exports, watched as a worker is."""

    def __init__(self) -> None:
        self._spans, self._heaps = InMemorySpanExporter(), InMemorySpanExporter()
        queues = SpanQueue(self._spans), HeapQueue(self._heaps, LIMITS)
        self.provider = LeanProvider(RESOURCE, *queues, as_they_are)
        self.watch = Watch({}, tracer=OpenTelemetryTracer(Identity(generation=3), "worker-1", self.provider))

    def run(self, handle: Handle, do: Callable[[Span], object] = lambda _: None) -> None:
        activity = self.watch.begin(handle)
        assert activity.context is not None
        span = activity.context.run(trace.get_current_span)
        own = span.get_span_context()
        if activity.traceparent is not None:  # else it is in the trace that its event came with
            assert int(activity.traceparent[36:52], 16) == own.span_id
        assert f"{own.trace_id:032x}" == (activity.traceparent or handle.delivery.trace_context or "")[3:35]
        try:
            activity.context.run(do, span)
        except Exception as error:  # noqa: BLE001  as a worker does
            activity.end(error)
        else:
            activity.end()

    def spans(self) -> list[Any]:
        assert self.watch.flush(PATIENCE)
        self.provider.force_flush()
        return exported(self._heaps, self._spans)

    def only(self) -> Any:  # noqa: ANN401  one of the SDK's or one of ours
        (span,) = self.spans()
        return span


@pytest.fixture
def lightly() -> Iterator[Lightly]:
    made = Lightly()
    yield made
    made.provider.shutdown()


def by_the_sdk(handle: Handle, sampler: Any = None) -> ReadableSpan:  # noqa: ANN401  of the SDK
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=RESOURCE, sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    watch = Watch({}, tracer=OpenTelemetryTracer(Identity(generation=3), "worker-1", provider))
    watch.begin(handle).end()
    assert watch.flush(PATIENCE)
    (span,) = exporter.get_finished_spans()
    return span


def wire(request: Any) -> tuple[Any, ...]:  # noqa: ANN401  a message
    """Everything but what order attributes are in."""
    (around,) = request.resource_spans
    (scope,) = around.scope_spans
    (span,) = scope.spans
    attributes = sorted(map(str, span.attributes))
    span.ClearField("attributes")
    return str(around.resource), around.schema_url, str(scope.scope), scope.schema_url, attributes, span


def sent(span: Any) -> tuple[Any, ...]:  # noqa: ANN401  as above
    return wire(ExportTraceServiceRequest.FromString(encode_spans(written([span])).SerializePartialToString()))


def written(spans: list[Any]) -> list[Any]:
    """As an exporter is given them."""
    return [each for span in spans for each in (write_spans([span]) if isinstance(span, KeptSpan) else [span])]


# on the wire


@pytest.mark.parametrize("handle", ACTS.values(), ids=ACTS)
def test_a_collector_reads_what_it_would_have_been_sent_by_the_sdk(lightly: Lightly, handle: Handle) -> None:
    lightly.run(handle)
    kept, full = lightly.only(), by_the_sdk(handle)
    assert isinstance(kept, KeptSpan)
    assert sent(kept) == wire(encode_as_ever([kept.readable()]))
    *around, light = sent(kept)
    *around_it, other = wire(encode_as_ever([full]))
    assert around == around_it
    assert light.start_time_unix_nano <= light.end_time_unix_nano
    for each in (light, other):
        each.ClearField("span_id")
        each.ClearField("start_time_unix_nano")
        each.ClearField("end_time_unix_nano")
        if not each.parent_span_id:
            each.ClearField("trace_id")
    assert light == other
    assert kept.get_span_context().trace_flags == full.context.trace_flags


def alike(span: KeptSpan) -> tuple[Any, ...]:
    *around, light = sent(span)
    for field in ("span_id", "start_time_unix_nano", "end_time_unix_nano"):
        light.ClearField(field)
    if not light.parent_span_id:
        light.ClearField("trace_id")
    return (*around, light)


def test_those_that_begin_together_are_what_they_would_have_been_one_by_one(lightly: Lightly) -> None:
    acts = [*ACTS.values(), act(UNSAMPLED), act(UNSAMPLED, attempts=2), *ACTS.values()]
    for each in acts:
        lightly.run(each)
    one_by_one = lightly.spans()
    activities = lightly.watch.begin_many(acts)
    for each, activity in zip(acts, activities, strict=True):
        assert activity.context is not None
        own = activity.context.run(trace.get_current_span).get_span_context()
        assert f"{own.trace_id:032x}" == (activity.traceparent or each.delivery.trace_context or "")[3:35]
        activity.leave()
    lightly.watch.end_many(activities)
    together = lightly.spans()[len(one_by_one) :]
    assert len(together) == len(acts) - 1, "of what was not sampled nobody has a span, unless it is a retry"
    assert [alike(span) for span in together] == [alike(span) for span in one_by_one]


def test_where_one_cannot_be_lean_none_of_those_that_begin_together_is(lightly: Lightly) -> None:
    exporter = InMemorySpanExporter()
    lightly.provider.add_span_processor(SimpleSpanProcessor(exporter))
    activities = lightly.watch.begin_many([act(), act()])
    for activity in activities:
        activity.leave()
    lightly.watch.end_many(activities)
    assert len(lightly.spans()) == len(exporter.get_finished_spans()) == 2


@pytest.mark.parametrize("others", [{"attempts": 2}, {"trace_context": None}], ids=["retry", "root"])
def test_where_a_span_of_the_sdks_is_wanted_none_is_begun_that_nobody_ends(
    lightly: Lightly, others: dict[str, Any]
) -> None:
    lightly.provider.add_span_processor(looks := Looks())
    activities = lightly.watch.begin_many([act(**others), act(), act()])
    for activity in activities:
        activity.leave()
    lightly.watch.end_many(activities)
    assert len(lightly.spans()) == len(looks.started) == 3


def test_a_heap_of_all_sorts_is_written_as_one_by_one(lightly: Lightly) -> None:
    some = [*ACTS.values(), act(event_type="worlds.card.sent"), act(generation=12), act("no traceparent" * 5)]
    for each in (some + some[::-1]) * 3:
        lightly.watch.begin(each).end()
    spans = lightly.spans()
    (heap,) = write_spans(spans)
    singly = [one.data for span in spans for one in write_spans([span])]
    assert (heap.spans, bytes(heap.data)) == (len(spans), b"".join(singly))
    request = ExportTraceServiceRequest.FromString(encode_spans([heap]).SerializePartialToString())
    assert len(request.resource_spans[0].scope_spans[0].spans) == len(spans)


def test_of_nothing_that_can_be_written_there_is_no_heap(lightly: Lightly) -> None:
    lightly.watch.begin(act(f"00-{'no digits':032}-{'0' * 16}-01")).end()
    assert write_spans(lightly.spans()) == write_spans([]) == []


def test_many_of_both_kinds_go_in_one_request(lightly: Lightly) -> None:
    lightly.run(act())
    lightly.run(act(), lambda span: span.set_attribute("mine", 1))
    lightly.run(act())
    spans = lightly.spans()
    request = ExportTraceServiceRequest.FromString(encode_spans(written(spans)).SerializePartialToString())
    (around,) = request.resource_spans
    assert sum(len(scope.spans) for scope in around.scope_spans) == 3


def test_what_finds_no_room_is_counted_and_said_and_not_even_written(caplog: pytest.LogCaptureFixture) -> None:
    exporter = InMemorySpanExporter()
    queue = HeapQueue(exporter, Limits(queued=5, sent=100, delay=600.0))
    before, _ = losses.SPANS.counted()
    made: list[KeptSpan] = []

    def write(spans: Sequence[KeptSpan]) -> Sequence[Kept]:
        made.extend(spans)
        return as_they_are(spans)

    provider = LeanProvider(RESOURCE, SpanQueue(InMemorySpanExporter()), queue, write)
    watch = Watch({}, tracer=OpenTelemetryTracer(Identity(generation=3), "worker-1", provider))
    for events in (8, 4):
        for _ in range(events):
            watch.begin(act()).end()
        assert watch.flush(PATIENCE)
    provider.shutdown()
    assert len(exported(exporter)) == 5
    assert (losses.SPANS.counted()[0] - before, len(made)) == (7, 5)
    assert [record.message for record in caplog.records] == ["No room for 3 spans.", "No room for 4 spans."]


def test_no_heap_is_larger_than_a_request_may_be() -> None:
    exporter = InMemorySpanExporter()
    queue = HeapQueue(exporter, Limits(queued=100, sent=4, delay=600.0))
    provider = LeanProvider(RESOURCE, SpanQueue(InMemorySpanExporter()), queue, as_they_are)
    watch = Watch({}, tracer=OpenTelemetryTracer(Identity(generation=3), "worker-1", provider))
    activities = watch.begin_many([act() for _ in range(10)])
    for activity in activities:
        activity.leave()
    watch.end_many(activities)
    watch.catch_up()
    provider.shutdown()
    heaps: Sequence[Any] = exporter.get_finished_spans()
    assert [heap.spans for heap in heaps] == [4, 4, 2]


def test_what_is_in_an_event_does_not_wait_with_its_span_if_it_is_much(lightly: Lightly) -> None:
    acts = [act(payload=payload) for payload in ("{}", f'"{"x" * MUCH}"')]
    for each in acts:
        lightly.run(each)
    small, large = lightly.spans()
    assert isinstance(small, FirstSpan)
    assert acts[1].delivery not in gc.get_referents(large, large.__dict__, large.facts())
    assert alike(small) == alike(large)


def test_after_the_end_nothing_is_queued(lightly: Lightly) -> None:
    lightly.provider.shutdown()
    for _ in range(3):
        lightly.run(act())
    assert lightly.watch.flush(PATIENCE)
    assert lightly.spans() == []


def test_one_that_cannot_be_written_costs_no_other(lightly: Lightly) -> None:
    for carried in (PUBLISHED, f"00-{'no digits':032}-{'0' * 16}-01"):
        lightly.watch.begin(act(carried)).end()
    good, bad = lightly.spans()
    (heap,) = write_spans([good, bad, good])
    assert heap.spans == 2
    assert heap.data == 2 * write_spans([good])[0].data


@pytest.mark.parametrize(("write", "unwritten"), [(lambda spans: as_they_are(spans[2:]), 2), (lambda _: fail(), 6)])
def test_what_is_not_written_is_counted(write: Any, unwritten: int) -> None:  # noqa: ANN401  as the provider takes it
    exporter = InMemorySpanExporter()
    queues = SpanQueue(InMemorySpanExporter()), HeapQueue(exporter, LIMITS)
    provider = LeanProvider(RESOURCE, *queues, write)
    watch = Watch({}, tracer=OpenTelemetryTracer(Identity(generation=3), "worker-1", provider))
    _, before = losses.SPANS.counted()
    for _ in range(6):
        watch.begin(act()).end()
    watch.catch_up()
    provider.shutdown()
    assert len(exported(exporter)) == 6 - unwritten
    assert losses.SPANS.counted()[1] - before == unwritten


class Slow(InMemorySpanExporter):
    """Says what it has been given, and takes it when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.let_go = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.given.set()
        self.let_go.wait(PATIENCE)
        return super().export(spans)


def test_at_the_end_neither_queue_waits_for_the_other_s_collector() -> None:
    of_spans, of_heaps = Slow(), Slow()
    queues = SpanQueue(of_spans, schedule_delay_millis=600_000), HeapQueue(of_heaps, LIMITS._replace(delay=600.0))
    provider = LeanProvider(RESOURCE, *queues, as_they_are)
    watch = Watch({}, tracer=OpenTelemetryTracer(Identity(generation=3), "worker-1", provider))
    watch.begin(act()).end()
    watch.begin(act()).end(RuntimeError("no"))
    assert watch.flush(PATIENCE)
    ending = threading.Thread(target=provider.shutdown)
    ending.start()
    for exporter in (of_spans, of_heaps):
        assert exporter.given.wait(PATIENCE)
    assert ending.is_alive()
    for exporter in (of_spans, of_heaps):
        exporter.let_go.set()
    ending.join(PATIENCE)
    assert not ending.is_alive()
    assert [len(exported(exporter)) for exporter in (of_spans, of_heaps)] == [1, 1]


# touched


@pytest.mark.parametrize(
    ("touch", "seen"),
    [
        (lambda span: span.set_attribute("mine", 1), lambda span: span.attributes["mine"] == 1),
        (lambda span: span.set_attributes({"mine": 1}), lambda span: span.attributes["mine"] == 1),
        (lambda span: span.add_event("seen", {"a": 1}), lambda span: span.events[0].name == "seen"),
        (lambda span: span.record_exception(ValueError("x")), lambda span: span.events[0].name == "exception"),
        (lambda span: span.update_name("mine"), lambda span: span.name == "mine"),
        (lambda span: span.set_status(StatusCode.ERROR, "no"), lambda span: span.status.description == "no"),
        (
            lambda span: span.add_link(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))),
            lambda span: [link.context.trace_id for link in span.links][-1] == 1,
        ),
        (lambda span: span.attributes["spectral.handler"], lambda span: span.name == "process platform.order.placed"),
        (lambda span: span.end(5), lambda span: span.end_time == 5),
    ],
    ids=["attribute", "attributes", "event", "exception", "name", "status", "link", "read", "end"],
)
def test_whatever_is_done_to_it_is_done_to_one_of_the_sdk(
    lightly: Lightly, touch: Callable[[Any], object], seen: Callable[[Any], bool]
) -> None:
    ids: list[SpanContext] = []

    def do(span: Span) -> None:
        ids.append(span.get_span_context())
        touch(span)

    lightly.run(act(), do)
    span = lightly.only()
    assert isinstance(span, ReadableSpan)
    assert span.context == ids[0]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PUBLISHED[36:52]
    assert next(link.context.span_id for link in span.links) == span.parent.span_id
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "spectral"
    assert seen(span)


def test_a_failure_is_told_as_ever(lightly: Lightly) -> None:
    def fail(_: Span) -> None:
        raise ValueError("the canary")

    lightly.run(act(payload='"the canary"'), fail)
    span = lightly.only()
    assert span.attributes["spectral.outcome"] == "failed"
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code is StatusCode.ERROR
    assert "canary" not in span.to_json()


def test_a_span_within_it_is_its_child(lightly: Lightly) -> None:
    def do(_: Span) -> None:
        lightly.provider.get_tracer("mine").start_span("within").end()

    lightly.run(act(), do)
    within, around = sorted(lightly.spans(), key=lambda span: isinstance(span, KeptSpan))
    assert isinstance(around, KeptSpan), "to have a child is not to be touched"
    assert within.parent == around.get_span_context()
    assert within.context.trace_id == around.get_span_context().trace_id


def test_threads_that_touch_it_touch_the_same(lightly: Lightly) -> None:
    def do(span: Span) -> None:
        ready = threading.Barrier(8)

        def touch(number: int) -> None:
            ready.wait(PATIENCE)
            span.set_attribute(f"mine.{number}", number)

        threads = [threading.Thread(target=touch, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)

    lightly.run(act(), do)
    assert {f"mine.{number}" for number in range(8)} <= set(lightly.only().attributes)


def test_what_comes_too_late_is_ignored(lightly: Lightly) -> None:
    spans: list[Any] = []
    lightly.run(act(), spans.append)
    (span,) = spans
    assert not span.is_recording()
    span.set_attribute("late", 1)
    span.end()
    assert isinstance(lightly.only(), KeptSpan)
    assert "late" not in span.attributes
    assert span.attributes["spectral.outcome"] == "ok"


# where the SDK has to be asked


class Looks(SpanProcessor):
    """One that the project hangs in."""

    def __init__(self) -> None:
        self.started: list[Span] = []

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:  # noqa: ANN401  of the SDK
        del parent_context
        self.started.append(span)


@pytest.mark.parametrize("begun", [True, False], ids=["after the first span", "before it"])
def test_a_processor_of_the_project_sees_every_span(lightly: Lightly, begun: bool) -> None:  # noqa: FBT001  a case
    if begun:
        lightly.run(act())
    lightly.provider.add_span_processor(looks := Looks())
    lightly.run(act())
    assert len(looks.started) == 1
    assert isinstance(lightly.spans()[-1], ReadableSpan)


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "3"},
        {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "5"},
        {"OTEL_SPAN_LINK_COUNT_LIMIT": "0"},
        {"OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED": "true"},
        {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.0"},
    ],
    ids=["few attributes", "short ones", "no links", "counted", "sampler"],
)
def test_what_may_be_limited_counted_or_dropped_is_left_to_the_sdk(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = Lightly()
    made.run(act())
    assert isinstance(made.only(), ReadableSpan)
    made.provider.shutdown()


@pytest.mark.parametrize("handle", [act(UNSAMPLED), act(), act(None), act(attempts=2)])
@pytest.mark.parametrize("sampler", ["always_on", "always_off", "parentbased_always_on", "parentbased_always_off"])
def test_as_many_are_recorded_as_the_sampler_says(
    monkeypatch: pytest.MonkeyPatch, sampler: str, handle: Handle
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    made = Lightly()
    made.watch.begin(handle).end()
    has_sampled_parent = handle.delivery.is_first and handle.delivery.trace_context == PUBLISHED
    has_parent = handle.delivery.is_first and handle.delivery.trace_context is not None
    wanted = {
        "always_on": True,
        "always_off": False,
        "parentbased_always_on": has_sampled_parent or not has_parent,
        "parentbased_always_off": has_sampled_parent,
    }
    assert len(made.spans()) == wanted[sampler]
    made.provider.shutdown()


@pytest.mark.parametrize("sampler", [DEFAULT_ON, DEFAULT_OFF, ParentBasedTraceIdRatio(0.5)])
def test_what_an_unsampled_parent_decides_is_handed_on(monkeypatch: pytest.MonkeyPatch, sampler: Any) -> None:  # noqa: ANN401  of the SDK
    monkeypatch.setattr("opentelemetry.sdk.trace.sampling._get_from_env_or_default", lambda: sampler)
    made = Lightly()
    tracer = OpenTelemetryTracer(Identity(generation=3), "worker-1", made.provider)
    assert isinstance(tracer.start(act(UNSAMPLED)), Carried)
    assert isinstance(tracer.start(act()), Lean)
    made.provider.shutdown()
