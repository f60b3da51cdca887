"""The span that an event came with, as far as it is needed: most are only handed on, and nobody looks into them."""

from __future__ import annotations

import contextvars
import re
from functools import partial
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanContext, TraceFlags

from spectral.core.events.infrastructure.observability.tools import Carried

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Span

NOTHING: Final = Context()
"""Where a span without a parent starts; the ambient context may have a span of whoever started the worker."""

TRACEPARENT_LENGTH: Final = 55
"""The outbox takes no trace context that is none; of one from elsewhere it is seen when somebody looks into it."""

NOT_SAMPLED: Final = frozenset("02468ace")
"""How the flags of a traceparent end if whoever published it does not want its trace recorded."""

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


class RemoteSpan(NonRecordingSpan):
    """The span that published an event; what names it is read when somebody asks for it."""

    _known: SpanContext | None = None

    def __init__(self, traceparent: str) -> None:
        self.traceparent = traceparent

    def get_span_context(self) -> SpanContext:
        """See `Span`."""
        if self._known is None:
            self._known = remote_span(self.traceparent) or INVALID_SPAN_CONTEXT
        return self._known

    def handed_on(self) -> str | None:
        """What names it, if it is one; in the words of the version that we speak."""
        is_one = _TRACEPARENT.fullmatch(self.traceparent) is not None
        return f"00{self.traceparent[2:]}" if is_one else None

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.traceparent})"


def with_span(span: Span) -> Context:
    """Where this is the current span, and there is nothing else."""
    return Context({_CURRENT_SPAN: span})


def copy_within(span: Span) -> contextvars.Context:
    """A copy of where we are, but for the span, which is this one, and the baggage of whoever runs the worker."""
    copy = contextvars.copy_context()
    copy.run(_set, Context({_CURRENT_SPAN: span}))
    return copy


def copies_within(spans: Sequence[Span]) -> list[contextvars.Context]:
    """The same for each of them."""
    return contextvars.copy_context().run(_copies, spans)


def _copies(spans: Sequence[Span]) -> list[contextvars.Context]:
    copies: list[contextvars.Context] = []
    for span in spans:
        _set(Context({_CURRENT_SPAN: span}))
        copies.append(contextvars.copy_context())
    return copies


def current_span() -> object:
    """The current span, as the API has it, or none; it is looked for at each publish."""
    if _variable is None:
        return trace.get_current_span()
    context = _variable.get(None)
    return None if context is None else context.get(_CURRENT_SPAN)


def enter(span: Span) -> Callable[[], None]:
    """Have it be the current span here, beside whatever else there is; answers what goes back."""
    if _variable is None:
        return partial(detach, attach(trace.set_span_in_context(span)))
    return partial(_variable.reset, _variable.set(Context({**_variable.get(NOTHING), _CURRENT_SPAN: span})))


def _where_contexts_are() -> contextvars.ContextVar[Context] | None:
    """What `attach` sets in the end, without the two calls on its way there: it is done for each event."""
    tried, marked = contextvars.Context(), Context()
    tried.run(attach, marked)
    return next((variable for variable in tried if tried[variable] is marked), None)


_variable: Final = _where_contexts_are()
_set: Final[Callable[[Context], object]] = attach if _variable is None else _variable.set


def carried(traceparent: str) -> Carried:
    """Nobody records: the span that published the event stays the current one."""
    # As `copy_within` does, without the call: right after a wait, each takes a few microseconds.
    copy = contextvars.copy_context()
    copy.run(_set, Context({_CURRENT_SPAN: RemoteSpan(traceparent)}))
    return tuple.__new__(Carried, (traceparent, copy))  # pyright: ignore[reportUnknownMemberType]
