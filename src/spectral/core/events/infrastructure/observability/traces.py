"""OpenTelemetry, spans of acts: a producer span around each publish, a consumer span around each run of a handler.

Here lives the invariant that an event continues its trace once: the first attempt is a child of the publish, every
later one, by a retry or a replay, is a trace of its own with a link. Only the API is used; while no provider is set
nothing is recorded, and what a handler publishes still belongs to the trace that its event came with.
"""

from __future__ import annotations

import time
from functools import cache
from importlib.metadata import version
from itertools import repeat
from typing import TYPE_CHECKING, Final, cast

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import Link, ProxyTracerProvider, SpanKind

from spectral.core.events.infrastructure.observability.lean import (
    PUBLISHING,
    LeanSpan,
    Shape,
    Sort,
    SortKey,
    end_span,
    sort_of_handler,
)
from spectral.core.events.infrastructure.observability.origins import (
    NOT_SAMPLED,
    NOTHING,
    TRACEPARENT_LENGTH,
    RemoteSpan,
    carried,
    copies_within,
    copy_within,
    current_span,
    enter,
    remote_span,
    with_span,
)
from spectral.core.events.infrastructure.observability.outlet import flush_first
from spectral.core.events.infrastructure.observability.tools import Carried, Lean
from spectral.core.events.probe import Handle

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Sequence
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from spectral.core.events.infrastructure.observability.lean import LeanSpans
    from spectral.core.events.infrastructure.observability.tools import Begun, Closing, Traced
    from spectral.core.events.probe import Act, Failure, Publish
    from spectral.core.events.settings import Identity

SCOPE: Final = "spectral"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that the names of attributes are taken from."""

_LOOK_EVERY: Final = 0.2  # seconds
_MAX_KNOWN: Final = 1_000


def current_traceparent() -> str | None:
    """The current span as a W3C traceparent; none outside a recording or propagated span."""
    # Of what a handler publishes, by the name that its span has: to make that of its context takes ten times as long.
    span = current_span()
    if isinstance(span, RemoteSpan):
        return span.handed_on()
    if isinstance(span, LeanSpan):
        return span.traceparent
    return _traceparent(trace.get_current_span().get_span_context())


def _traceparent(context: SpanContext) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@cache
def _version() -> str:
    return version("spectral-events")  # reads files


class TracerSource:
    """The tracer of this library, as soon as somebody has set a provider; or of the provider given.

    The worker's name is an attribute of the scope: there it is sent once with many spans, not with each of them.
    """

    __slots__ = ("_attributes", "_look_at", "_provider", "follows_its_parent", "known", "lean")

    def __init__(self, worker: str | None, provider: TracerProvider | None) -> None:
        self._attributes = None if worker is None else {"messaging.client.id": worker}
        self._provider = provider
        self.known: Tracer | None = None
        self._look_at = 0.0
        self.follows_its_parent = False
        """Whether it is known that no span is recorded whose parent, in another process, is not."""
        self.lean: LeanSpans | None = None
        """The tracer, if it is one that can begin spans with less effort."""

    def tracer(self, *, look: bool = False) -> Tracer | None:
        """None until there is a provider; from then on always the same, for a provider is set once.

        look: ask for it now, so that nothing is missed.
        """
        if self.known is None:
            # Else now and then: the API reads the environment each time, which a busy worker would notice.
            if not look and time.monotonic() < self._look_at:
                return None
            self._look_at = time.monotonic() + _LOOK_EVERY
            provider = self._provider or trace.get_tracer_provider()
            if isinstance(provider, ProxyTracerProvider):
                return None
            self.known = provider.get_tracer(SCOPE, _version(), SCHEMA_URL, self._attributes)
            self.follows_its_parent = _follows_its_parent(self.known)
            self.lean = cast("LeanSpans", self.known) if hasattr(self.known, "start_lean") else None
            flush_first()
        return self.known


def _follows_its_parent(tracer: Tracer) -> bool:
    """Whether its sampler is the SDK's own, and drops whatever a publisher has not sampled.

    Then nobody has to be asked for each event. One that we do not know may decide by anything, and is asked.
    """
    sampler: object = getattr(tracer, "sampler", None)
    then: object = getattr(sampler, "_remote_parent_not_sampled", None)  # by no public name
    ours = "opentelemetry.sdk.trace.sampling"
    if type(sampler).__module__ != ours or type(then).__module__ != ours:
        return False
    return str(getattr(then, "get_description", str)()) == "AlwaysOffSampler"


class OpenTelemetryTracer:
    """Implements `Tracer`. `provider` is asked instead of the program's own."""

    def __init__(self, _identity: Identity, worker: str | None = None, provider: TracerProvider | None = None) -> None:
        # The service and its environment are the resource's to say, the generation is the event's.
        self._source = TracerSource(worker, provider)
        self._known_publishes: dict[tuple[str, int, bool], Sort] = {}

    def start(self, act: Act) -> Traced | Carried | Lean | None:
        """See `Tracer`."""
        if not isinstance(act, Handle):
            tracer = self._source.tracer(look=True)
            return None if tracer is None or not act.envelopes else self._publish(tracer, act)
        source = self._source
        tracer = source.known or source.tracer()
        if tracer is None or source.lean is None or not _is_recorded_first(act, source):
            easily = self._easily(act, tracer)
            return easily if easily is not None or tracer is None else _handle_at_length(tracer, act)
        span = source.lean.start_first_one(act, time.time_ns())
        if span is None:
            return _handle_at_length(tracer, act)
        # As `Lean(...)`, without the call in between: it is done for each event.
        return tuple.__new__(Lean, (None, copy_within(span), span, None))  # pyright: ignore[reportUnknownMemberType]

    def _easily(self, act: Handle, tracer: Tracer | None) -> Carried | Lean | None:
        """Without a span of the SDK's, if that will do; not of one that is tried for the first time and recorded."""
        source, delivery = self._source, act[0]
        traceparent = delivery[10]
        if traceparent is not None and len(traceparent) != TRACEPARENT_LENGTH:
            traceparent = None
        if traceparent is not None:
            is_first = delivery[14] == 1 and delivery[19] == 0
            if tracer is None or (is_first and source.follows_its_parent and traceparent[-1] in NOT_SAMPLED):
                return carried(traceparent)
            if is_first:
                return None
        if source.lean is None:
            return None
        sort = _sort_of_root(act, is_linked=traceparent is not None)
        span = source.lean.start_lean(sort, None, traceparent, delivery.event_id, time.time_ns())
        return None if span is None else Lean(span.traceparent, copy_within(span), span)

    def start_many(self, acts: Sequence[Handle]) -> list[Begun] | None:
        """See `Tracer`."""
        source = self._source
        if source.known is None or source.lean is None:
            return None
        began = time.time_ns()
        begun: list[Begun] = []
        together: list[Handle] = []
        for act in acts:
            if _is_recorded_first(act, source):
                together.append(act)
                continue
            if not _begin_together(source.lean, together, began, begun):
                return None
            together = []
            started = self._easily(act, source.known)
            if started is None:
                return None
            begun.append((started.traceparent, started.context, started.span if isinstance(started, Lean) else None))
        return begun if _begin_together(source.lean, together, began, begun) else None

    def leave_many(self, spans: Sequence[Closing], seconds: Sequence[float]) -> Sequence[Closing]:
        """See `Tracer`."""
        lean = self._source.lean
        return spans if lean is None else lean.leave_lean_many(spans, seconds)

    def send(self, spans: Sequence[Closing]) -> None:
        """See `Tracer`."""
        if self._source.lean is not None:
            self._source.lean.send_lean(spans)

    def _publish(self, tracer: Tracer, act: Publish) -> Traced | Carried | Lean | None:
        """A span that is the current one until it is left, so that the driver's own spans belong to it."""
        around = current_span()
        if isinstance(around, RemoteSpan):
            # A handler's, whose event nobody records: then nobody does what it publishes.
            if self._source.follows_its_parent and around.traceparent[-1] in NOT_SAMPLED:
                return Carried(around.handed_on(), None)
        elif isinstance(around, LeanSpan) and self._source.lean is not None and len(act.envelopes) == 1:
            lean = self._lean_publish(self._source.lean, around, act)
            if lean is not None:
                return lean
        return _publish_at_length(tracer, act)

    def _lean_publish(self, tracer: LeanSpans, around: LeanSpan, act: Publish) -> Lean | None:
        """In a handler that has such a span."""
        (envelope,) = act.envelopes
        link = envelope.trace_context
        if link is not None and remote_span(link) is None:
            link = None
        key = (envelope.event_type, act.generation, link is not None)
        sort = self._known_publishes.get(key)
        if sort is None:
            if len(self._known_publishes) >= _MAX_KNOWN:
                self._known_publishes.clear()
            shape = Shape.of_publishes(envelope.event_type, act.generation)
            made = Sort(shape, is_child=True, is_linked=link is not None, is_local=True)
            sort = self._known_publishes.setdefault(key, made)
        span = tracer.start_lean(sort, around.traceparent, link, envelope.event_id, time.time_ns())
        if span is None:
            return None
        return Lean(span.traceparent, None, span, enter(span))


def _is_recorded_first(act: Handle, source: TracerSource) -> bool:
    """Whether its event, which carries a traceparent, is tried for the first time and recorded."""
    # By position: it is done for each event.
    delivery = act[0]
    traceparent = delivery[10]
    return (
        traceparent is not None
        and len(traceparent) == TRACEPARENT_LENGTH
        and delivery[14] == 1
        and delivery[19] == 0
        and not (source.follows_its_parent and traceparent[-1] in NOT_SAMPLED)
    )


def _sort_of_root(act: Handle, *, is_linked: bool) -> Sort:
    """Of the spans of this handler's later attempts, and of those at events that carry no trace."""
    delivery = act.delivery
    key = (delivery.event_type, delivery.target, act.handler_name, delivery.generation, delivery.attempts)
    return sort_of_handler(SortKey(*key, is_child=False, is_linked=is_linked))


def _begin_together(lean: LeanSpans, acts: Sequence[Handle], began: int, begun: list[Begun]) -> bool:
    """Begin these, tried for the first time; false: that is not possible."""
    if not acts:
        return True
    spans = lean.start_first(acts, began)
    if spans is None:
        return False
    begun += zip(repeat(None), copies_within(spans), spans, strict=False)
    return True


def _handle_at_length(tracer: Tracer, act: Handle) -> Traced | Carried | None:
    """With a span of whatever provider there is."""
    delivery = act.delivery
    own = remote_span(delivery.trace_context)
    around = NOTHING if own is None or not delivery.is_first else with_span(trace.NonRecordingSpan(own))
    links = None if own is None else (Link(own),)
    shape = _sort_of_root(act, is_linked=own is not None).shape
    attributes = shape.attributes_of(delivery.event_id, delivery.attempts)
    span = tracer.start_span(shape.name, around, SpanKind.CONSUMER, attributes, links)
    if not span.get_span_context().is_valid:  # a provider that is switched off
        return None if own is None or delivery.trace_context is None else carried(delivery.trace_context)
    return _Span(span, copy_within(span))


def _publish_at_length(tracer: Tracer, act: Publish) -> Traced | None:
    """With a span of whatever provider there is."""
    envelopes = act.envelopes
    types = {envelope.event_type for envelope in envelopes}
    attributes: dict[str, AttributeValue] = {**PUBLISHING, "spectral.generation": act.generation}
    name, links = "publish", None
    if len(types) == 1:
        (event_type,) = types
        name = f"publish {event_type}"
        attributes["messaging.destination.name"] = event_type
    if len(envelopes) == 1:
        attributes["messaging.message.id"] = str(envelopes[0].event_id)
        own = remote_span(envelopes[0].trace_context)  # which the row keeps and consumers continue
        links = None if own is None else (Link(own),)
    else:
        attributes["messaging.batch.message_count"] = len(envelopes)
    span = tracer.start_span(name, None, SpanKind.PRODUCER, attributes, links)
    if not span.get_span_context().is_valid:
        return None
    return _Span(span, None, attach(trace.set_span_in_context(span)))


class _Span:
    """Implements `Traced` with a span of our own."""

    __slots__ = ("_ended", "_span", "_token", "context", "traceparent")

    def __init__(self, span: Span, context: contextvars.Context | None, token: Token[Context] | None = None) -> None:
        self._span = span
        self._token = token
        self._ended: int | None = None
        self.context = context
        self.traceparent = _traceparent(span.get_span_context())

    @property
    def is_recording(self) -> bool:
        """See `Traced`."""
        return self._span.is_recording()

    def leave(self) -> None:
        """See `Traced`."""
        self._ended = time.time_ns()
        if self._token is not None:
            detach(self._token)

    def end(self, failure: Failure | None) -> None:
        """See `Traced`."""
        end_span(self._span, failure, self._ended)
