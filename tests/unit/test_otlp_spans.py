"""Spans on the wire: whatever is in them, a collector reads what OpenTelemetry's own encoder would have sent it."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_as_ever
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

from spectral_workers import otlp_spans, telemetry
from spectral_workers.otlp_spans import encode_spans

REMOTE = SpanContext(2**127 + 5, 2**63 + 7, is_remote=True, trace_flags=TraceFlags(1))
LOCAL = SpanContext(3, 4, is_remote=False, trace_flags=TraceFlags(1))
STATEFUL = SpanContext(5, 6, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("a", "b")]))
PLAIN: dict[str, Any] = {
    "messaging.system": "spectral",
    "messaging.message.id": "018f3b1e-0000-7000-8000-000000000001",
    "spectral.attempt": 1,
    "spectral.deaf": False,
}


class Made:
    """Spans of a provider, as its exporter is given them."""

    def __init__(self, service: str = "tests", limits: SpanLimits | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(
            resource=Resource({"service.name": service}), span_limits=limits, shutdown_on_exit=False
        )
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def span(
        self,
        attributes: dict[str, Any] | None = None,
        *,
        scope: str = "one",
        **options: Any,  # noqa: ANN401  whatever a span may be started with
    ) -> trace.Span:
        tracer = self.provider.get_tracer(scope, "1", "https://schema", {"client": "w"})
        parent = options.pop("parent", None)
        context = None if parent is None else trace.set_span_in_context(NonRecordingSpan(parent))
        return tracer.start_span(options.pop("name", "process"), context, attributes=attributes, **options)

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


def read(request: ExportTraceServiceRequest) -> list[tuple[Any, ...]]:
    return sorted(
        (around.resource.SerializeToString(), around.schema_url, str(scope.scope), scope.schema_url, str(span))
        for around in request.resource_spans
        for scope in around.scope_spans
        for span in scope.spans
    )


def assert_same(spans: tuple[ReadableSpan, ...]) -> None:
    sent = ExportTraceServiceRequest.FromString(encode_spans(spans).SerializePartialToString())
    assert read(sent) == read(encode_as_ever(spans))
    assert len(read(sent)) == len(spans)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        PLAIN,
        {"yes": True, "one": 1, "text": "1", "float": 1.0},
        {"negative": -1, "largest": 2**63 - 1, "least": -(2**63)},
        {"text": "ä€𝄞 \x00\n", "empty": "", "long": "x" * 127, "longer": "x" * 128, "longest": "x" * 20_000},
        {"list": ["a", "b"], "map": {"a": 1}, "bytes": b"\xff", "none": None, "float": float("nan")},
        {"k" * 200: "value"},
    ],
    ids=["none", "plain", "alike", "numbers", "texts", "other kinds", "long key"],
)
def test_attributes(attributes: dict[str, Any]) -> None:
    made = Made()
    made.span(attributes).end()
    assert_same(made.spans())


@pytest.mark.parametrize("kind", SpanKind)
@pytest.mark.parametrize("parent", [None, REMOTE, LOCAL, STATEFUL], ids=["root", "remote", "local", "state"])
def test_kinds_and_parents(kind: SpanKind, parent: SpanContext | None) -> None:
    made = Made()
    made.span(PLAIN, kind=kind, parent=parent, start_time=1).end(2**63)
    assert_same(made.spans())


@pytest.mark.parametrize(
    "links",
    [[Link(REMOTE)], [Link(LOCAL), Link(REMOTE)], [Link(STATEFUL)], [Link(REMOTE, {"why": "again"})]],
    ids=["one", "two", "state", "attributes"],
)
def test_links(links: list[Link]) -> None:
    made = Made()
    made.span(PLAIN, links=links, name="p" * 300).end()
    assert_same(made.spans())


def test_what_went_wrong_and_what_was_dropped() -> None:
    made = Made(limits=SpanLimits(max_span_attributes=2, max_events=1, max_links=1))
    failed = made.span({"error.type": "ValueError"})
    failed.set_status(StatusCode.ERROR, "no")
    failed.end()
    fine = made.span()
    fine.set_status(StatusCode.OK)
    fine.end()
    eventful = made.span(PLAIN, links=[Link(REMOTE), Link(LOCAL)])
    eventful.add_event("one", {"a": 1})
    eventful.add_event("two")
    eventful.end()
    assert_same(made.spans())


def test_resources_and_scopes_are_kept_apart() -> None:
    one, other = Made("one"), Made("other")
    for made in (one, other):
        for scope in ("a", "b", "a"):
            made.span(PLAIN, scope=scope).end()
    assert_same((*one.spans(), *other.spans()))


def test_nothing() -> None:
    assert encode_spans([]).SerializePartialToString() == b""


def test_an_exporter_may_ask_it_for_whatever_a_message_has() -> None:
    made = Made()
    made.span(PLAIN).end()
    encoded: Any = encode_spans(made.spans())
    assert encoded.ByteSize() == encode_as_ever(made.spans()).ByteSize()
    assert len(encoded.resource_spans) == 1


def test_what_differs_from_span_to_span_does_not_pile_up() -> None:
    made = Made()
    for number in range(2_500):
        made.span({"messaging.message.id": str(number), "number": number}).end()
    assert_same(made.spans())
    assert len(otlp_spans._known) <= 2_000
    assert not [known for known in otlp_spans._known if known[0] == "messaging.message.id"]


def test_the_exporter_that_the_worker_sets_up_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trace_exporter.__dict__, "encode_spans", encode_as_ever)
    exporter = telemetry._span_exporter("otlp")
    exporter.shutdown()
    assert trace_exporter.__dict__["encode_spans"] is encode_spans
    assert "encode_spans" in trace_exporter.OTLPSpanExporter.export.__code__.co_names
