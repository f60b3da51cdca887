"""OpenTelemetry, spans of acts: a producer span around each publish, a consumer span around each run of a handler.

Here lives the invariant that an event continues its trace once: the first attempt is a child of the publish, every
later one, by a retry or a replay, is a trace of its own with a link. Only the API is used; while no provider is set
nothing is recorded, and what a handler publishes still belongs to the trace that its event came with.
"""

from __future__ import annotations

import time
from contextvars import copy_context
from functools import cache, lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    ProxyTracerProvider,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
)

from spectral.core.events.infrastructure.observability.outlet import flush_first
from spectral.core.events.probe import Handle

if TYPE_CHECKING:
    import contextvars
    from contextvars import Token

    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from spectral.core.events.infrastructure.observability.watch import Traced
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Act, Failure, Publish
    from spectral.core.events.settings import Identity

SCOPE: Final = "spectral"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that the names of attributes are taken from."""

NOTHING: Final = Context()
"""Where a span without a parent starts; the ambient context may have a span of whoever started the worker."""

_TRACEPARENT_LENGTH: Final = 55
_LOOK_EVERY: Final = 0.2  # seconds
_MAX_KNOWN: Final = 1_000


def current_traceparent() -> str | None:
    """The current span as a W3C traceparent; none outside a recording or propagated span."""
    return _traceparent(trace.get_current_span().get_span_context())


def _traceparent(context: SpanContext) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def remote_span(traceparent: str | None) -> SpanContext | None:
    """The span of another process that this names; none if it names none."""
    # By hand: the propagator takes several times as long, and the table has checked the form of it.
    if traceparent is None or len(traceparent) != _TRACEPARENT_LENGTH:
        return None
    try:
        trace_id, span_id = int(traceparent[3:35], 16), int(traceparent[36:52], 16)
        flags = TraceFlags(int(traceparent[53:], 16))
    except ValueError:
        return None
    remote = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return remote if remote.is_valid else None


class _Origin(NamedTuple):
    """The span that published an event, and a context in which it is the current one."""

    span: SpanContext
    context: Context


@lru_cache(maxsize=_MAX_KNOWN)
def _origin(traceparent: str | None) -> _Origin | None:
    """Kept for a while: events that were published together have it in common, and so have an event's handlers."""
    remote = remote_span(traceparent)
    return None if remote is None else _Origin(remote, trace.set_span_in_context(NonRecordingSpan(remote), NOTHING))


@cache
def _version() -> str:
    return version("spectral-events")  # reads files


class TracerSource:
    """The tracer of this library, as soon as somebody has set a provider; or of the provider given.

    The worker's name is an attribute of the scope: there it is sent once with many spans, not with each of them.
    """

    __slots__ = ("_attributes", "_look_at", "_provider", "_tracer")

    def __init__(self, worker: str | None, provider: TracerProvider | None) -> None:
        self._attributes = None if worker is None else {"messaging.client.id": worker}
        self._provider = provider
        self._tracer: Tracer | None = None
        self._look_at = 0.0

    def tracer(self, *, look: bool = False) -> Tracer | None:
        """None until there is a provider; from then on always the same, for a provider is set once.

        look: ask for it now, so that nothing is missed.
        """
        if self._tracer is None:
            # Else now and then: the API reads the environment each time, which a busy worker would notice.
            if not look and time.monotonic() < self._look_at:
                return None
            self._look_at = time.monotonic() + _LOOK_EVERY
            provider = self._provider or trace.get_tracer_provider()
            if isinstance(provider, ProxyTracerProvider):
                return None
            self._tracer = provider.get_tracer(SCOPE, _version(), SCHEMA_URL, self._attributes)
            flush_first()
        return self._tracer


class OpenTelemetryTracer:
    """Implements `Tracer`. `provider` is asked instead of the program's own."""

    def __init__(self, _identity: Identity, worker: str | None = None, provider: TracerProvider | None = None) -> None:
        # The service and its environment are the resource's to say, the generation is the event's.
        self._source = TracerSource(worker, provider)
        self._known: dict[tuple[str, str, str, int], tuple[str, dict[str, AttributeValue]]] = {}

    def start(self, act: Act) -> Traced | None:
        """See `Tracer`."""
        if isinstance(act, Handle):
            return self._handle(self._source.tracer(), act)
        tracer = self._source.tracer(look=True)
        return None if tracer is None or not act.envelopes else self._publish(tracer, act)

    def _publish(self, tracer: Tracer, act: Publish) -> Traced | None:
        """A span that is the current one until it is left, so that the driver's own spans belong to it."""
        envelopes = act.envelopes
        types = {envelope.event_type for envelope in envelopes}
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "spectral",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "spectral.generation": act.generation,
        }
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

    def _handle(self, tracer: Tracer | None, act: Handle) -> Traced | None:
        delivery = act.delivery
        origin = _origin(delivery.trace_context)
        if tracer is None:
            return _carried(origin, delivery)
        name, known = self._known_of(delivery, act.handler_name)
        parent = origin.context if origin is not None and delivery.is_first else NOTHING
        links = None if origin is None else (Link(origin.span),)
        span = tracer.start_span(name, parent, SpanKind.CONSUMER, known, links)
        if not span.get_span_context().is_valid:  # a provider that is switched off
            return _carried(origin, delivery)
        if span.is_recording():  # what differs from event to event, for whoever will see it
            span.set_attribute("messaging.message.id", str(delivery.event_id))
            span.set_attribute("spectral.attempt", delivery.attempts)
        return _Span(span, _copy_with(trace.set_span_in_context(span, NOTHING)))

    def _known_of(self, delivery: Delivery, handler_name: str) -> tuple[str, dict[str, AttributeValue]]:
        """The span's name, and those of its attributes that do not change from event to event."""
        key = (delivery.event_type, delivery.target, handler_name, delivery.generation)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = (
                f"process {delivery.event_type}",
                {
                    "messaging.system": "spectral",
                    "messaging.operation.name": "process",
                    "messaging.operation.type": "process",
                    "messaging.destination.name": delivery.event_type,
                    "messaging.consumer.group.name": delivery.target,
                    "spectral.handler": handler_name,
                    "spectral.generation": delivery.generation,
                },
            )
        return known


def _carried(origin: _Origin | None, delivery: Delivery) -> Traced | None:
    return None if origin is None else _Carried(delivery.trace_context, _copy_with(origin.context))


def _copy_with(current: Context) -> contextvars.Context:
    """A copy of where we are, but for the span and the baggage, which are those of whoever runs the worker."""
    copy = copy_context()
    copy.run(attach, current)
    return copy


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
        span = self._span
        if failure is None:
            span.set_attribute("spectral.outcome", "ok")
        else:
            span.set_attributes({"spectral.outcome": "failed", "error.type": failure.kind})
            span.set_status(StatusCode.ERROR, failure.text)
        span.end(self._ended)


class _Carried:
    """Implements `Traced` where nobody records: the span that published the event stays the current one."""

    __slots__ = ("context", "traceparent")

    def __init__(self, traceparent: str | None, context: contextvars.Context | None) -> None:
        self.traceparent = traceparent
        self.context = context

    @property
    def is_recording(self) -> bool:
        """See `Traced`."""
        return False

    def leave(self) -> None:
        """See `Traced`."""

    def end(self, failure: Failure | None) -> None:
        """See `Traced`."""
