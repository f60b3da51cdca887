"""Where a trace context comes from: the span the program is in, and nothing otherwise."""

from __future__ import annotations

import asyncio

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from spectral.core.events.envelope import is_traceparent
from spectral.core.events.infrastructure.observability.traces import current_traceparent


def tracer(sampler: Sampler = ALWAYS_ON) -> trace.Tracer:
    """A tracer of the SDK that exports nowhere and is not the process's own."""
    return TracerProvider(sampler=sampler, shutdown_on_exit=False).get_tracer("tests")


def injected() -> str:
    """What OpenTelemetry itself would send along."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier["traceparent"]


def test_outside_a_span_there_is_none() -> None:
    assert current_traceparent() is None


def test_inside_a_span_it_names_the_trace_and_the_span() -> None:
    with tracer().start_as_current_span("work") as span:
        context = span.get_span_context()
        assert current_traceparent() == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_inside_a_span_it_is_what_opentelemetry_sends_along() -> None:
    with tracer().start_as_current_span("work"):
        assert current_traceparent() == injected()


def test_it_is_a_traceparent_an_envelope_keeps() -> None:
    with tracer().start_as_current_span("work"):
        assert is_traceparent(current_traceparent() or "")


def test_of_nested_spans_the_inner_one_is_named() -> None:
    spans = tracer()
    with spans.start_as_current_span("outer"):
        outer = current_traceparent() or ""
        with spans.start_as_current_span("inner"):
            inner = current_traceparent() or ""
        assert current_traceparent() == outer
    assert (outer[:36] == inner[:36], outer == inner) == (True, False)


def test_after_a_span_there_is_none() -> None:
    with tracer().start_as_current_span("work"):
        pass
    assert current_traceparent() is None


def test_a_sampled_span_says_so() -> None:
    with tracer(ALWAYS_ON).start_as_current_span("work"):
        assert (current_traceparent() or "")[-2:] in {"01", "03"}


def test_a_span_that_is_not_sampled_still_names_its_trace() -> None:
    with tracer(ALWAYS_OFF).start_as_current_span("work"):
        given = current_traceparent() or ""
        assert given == injected()
    assert given[-2:] in {"00", "02"}


def test_a_span_of_another_process_is_named_as_it_came() -> None:
    came = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
    context = TraceContextTextMapPropagator().extract({"traceparent": came})
    with trace.use_span(trace.get_current_span(context)):
        assert current_traceparent() == came


def test_a_span_without_ids_is_none() -> None:
    with trace.use_span(trace.INVALID_SPAN):
        assert current_traceparent() is None


async def test_each_task_sees_its_own_span() -> None:
    spans = tracer()

    async def work(name: str) -> tuple[str | None, str | None]:
        with spans.start_as_current_span(name):
            before = current_traceparent()
            await asyncio.sleep(0)
            return before, current_traceparent()

    one, other = await asyncio.gather(work("one"), work("other"))
    assert one[0] == one[1] != other[0] == other[1]
