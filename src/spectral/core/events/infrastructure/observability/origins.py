"""The span that an event came with, as far as it is needed: most are only handed on, and nobody looks into them."""

from __future__ import annotations

import re
from contextvars import copy_context
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanContext, TraceFlags

if TYPE_CHECKING:
    import contextvars

NOTHING: Final = Context()
"""Where a span without a parent starts; the ambient context may have a span of whoever started the worker."""

_MAX_KNOWN: Final = 1_000
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
# The API has a function for it, which copies what it is given; a worker would call it for each event.
(_CURRENT_SPAN,) = trace.set_span_in_context(trace.INVALID_SPAN, NOTHING)


def remote_span(traceparent: str | None) -> SpanContext | None:
    """The span of another process that this names; none if it names none."""
    # By hand: the propagator takes several times as long.
    if traceparent is None or _TRACEPARENT.fullmatch(traceparent) is None:
        return None
    flags = TraceFlags(int(traceparent[53:], 16))
    return SpanContext(int(traceparent[3:35], 16), int(traceparent[36:52], 16), is_remote=True, trace_flags=flags)


class _RemoteSpan(NonRecordingSpan):
    """The span that published an event; what names it is read when somebody asks for it."""

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent
        self._known: SpanContext | None = None

    def get_span_context(self) -> SpanContext:
        """See `Span`."""
        if self._known is None:
            self._known = remote_span(self._traceparent) or INVALID_SPAN_CONTEXT
        return self._known

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self._traceparent})"


class Origin(NamedTuple):
    """The span that published an event, and a context in which it is the current one."""

    span: NonRecordingSpan
    context: Context


@lru_cache(maxsize=_MAX_KNOWN)
def origin_of(traceparent: str | None) -> Origin | None:
    """Kept for a while: events that were published together have it in common, and so have an event's handlers."""
    if traceparent is None or _TRACEPARENT.fullmatch(traceparent) is None:
        return None
    span = _RemoteSpan(traceparent)
    return Origin(span, Context({_CURRENT_SPAN: span}))


def is_sampled(traceparent: str) -> bool:
    """Whether whoever published it wants its trace recorded."""
    return int(traceparent[53:], 16) & TraceFlags.SAMPLED != 0


def copy_with(current: Context) -> contextvars.Context:
    """A copy of where we are, but for the span and the baggage, which are those of whoever runs the worker."""
    copy = copy_context()
    copy.run(attach, current)
    return copy
