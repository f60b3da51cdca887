"""OpenTelemetry, read side: which span is the program in?"""

from __future__ import annotations

from opentelemetry import trace


def current_traceparent() -> str | None:
    """The current span as a W3C traceparent; none outside a recording or propagated span."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
