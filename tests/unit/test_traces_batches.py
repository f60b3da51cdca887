"""Spans after the fact: claims and settlements, each a trace of its own that took as long as it did."""

from __future__ import annotations

import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from spectral.core.events.infrastructure.observability.spans import BatchSpans
from spectral.core.events.probe import Claimed, Note, SettlementWritten, Stopped
from spectral.core.events.settings import Identity


def told(*notes: Note) -> tuple[ReadableSpan, ...]:
    """What is exported of these notes, told by somebody who is in a span."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    tool = BatchSpans(Identity(generation=3), "worker-1", provider)
    with provider.get_tracer("tests").start_as_current_span("program"):
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        for note in notes:
            tool.tell(note)
        return exporter.get_finished_spans()


def test_a_claim_is_a_span_of_its_context() -> None:
    (span,) = told(Claimed("platform", 7, 0.5, deaf=False))
    assert (span.name, span.kind, span.parent) == ("claim platform", SpanKind.CLIENT, None)
    assert dict(span.attributes or {}) == {
        "messaging.system": "spectral",
        "messaging.operation.name": "claim",
        "messaging.operation.type": "receive",
        "messaging.consumer.group.name": "platform",
        "messaging.batch.message_count": 7,
        "spectral.generation": 3,
        "spectral.deaf": False,
    }


def test_a_settlement_is_a_span() -> None:
    (span,) = told(SettlementWritten(7, 0.5))
    assert (span.name, span.kind, span.parent) == ("settle", SpanKind.CLIENT, None)
    assert dict(span.attributes or {}) == {
        "messaging.system": "spectral",
        "messaging.operation.name": "settle",
        "messaging.operation.type": "settle",
        "messaging.batch.message_count": 7,
        "spectral.generation": 3,
    }


@pytest.mark.parametrize("note", [Claimed("platform", 7, 0.5, deaf=True), SettlementWritten(7, 0.5)])
def test_it_took_as_long_as_it_did_and_ended_now(note: Note) -> None:
    before = time.time_ns()
    (span,) = told(note)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 500_000_000
    assert before <= span.end_time <= time.time_ns()


def test_other_notes_are_no_spans() -> None:
    assert told(Stopped()) == ()


def test_without_a_provider_nothing_is_recorded() -> None:
    tool = BatchSpans(Identity(generation=3))
    tool.tell(Claimed("platform", 7, 0.5, deaf=False))
    assert tool._source.tracer() is None
