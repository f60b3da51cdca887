"""OpenTelemetry, spans of acts: a producer span around each publish, a consumer span around each run of a handler.

Here lives the invariant that an event continues its trace once: the first attempt is a child of the publish, every
later one, by a retry or a replay, is a trace of its own with a link. Only the API is used; while no provider is set
nothing is recorded, and what a handler publishes still belongs to the trace that its event came with.
"""

from __future__ import annotations

import time
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.trace import Link, ProxyTracerProvider, SpanKind, StatusCode

from spectral.core.events.infrastructure.observability.origins import (
    NOTHING,
    copy_with,
    is_sampled,
    origin_of,
    remote_span,
)
from spectral.core.events.infrastructure.observability.outlet import flush_first
from spectral.core.events.infrastructure.observability.watch import Carried
from spectral.core.events.probe import Handle

if TYPE_CHECKING:
    import contextvars
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from spectral.core.events.infrastructure.observability.origins import Origin
    from spectral.core.events.infrastructure.observability.watch import Traced
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Act, Failure, Publish
    from spectral.core.events.settings import Identity

SCOPE: Final = "spectral"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that the names of attributes are taken from."""

_LOOK_EVERY: Final = 0.2  # seconds
_MAX_KNOWN: Final = 1_000


def current_traceparent() -> str | None:
    """The current span as a W3C traceparent; none outside a recording or propagated span."""
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

    __slots__ = ("_attributes", "_look_at", "_provider", "_tracer", "follows_its_parent")

    def __init__(self, worker: str | None, provider: TracerProvider | None) -> None:
        self._attributes = None if worker is None else {"messaging.client.id": worker}
        self._provider = provider
        self._tracer: Tracer | None = None
        self._look_at = 0.0
        self.follows_its_parent = False
        """Whether it is known that no span is recorded whose parent, in another process, is not."""

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
            self.follows_its_parent = _follows_its_parent(self._tracer)
            flush_first()
        return self._tracer


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
        self._known: dict[tuple[str, str, str, int], tuple[str, dict[str, AttributeValue]]] = {}

    def start(self, act: Act) -> Traced | Carried | None:
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

    def _handle(self, tracer: Tracer | None, act: Handle) -> Traced | Carried | None:
        delivery = act.delivery
        origin = origin_of(delivery.trace_context)
        if tracer is None or (origin is not None and self._is_dropped(delivery)):
            return _carried(origin, delivery)
        name, known = self._known_of(delivery, act.handler_name)
        attributes = {
            **known,
            "messaging.message.id": str(delivery.event_id),
            "spectral.attempt": delivery.attempts,
        }
        parent = origin.context if origin is not None and delivery.is_first else NOTHING
        links = None if origin is None else (Link(origin.span.get_span_context()),)
        span = tracer.start_span(name, parent, SpanKind.CONSUMER, attributes, links)
        if not span.get_span_context().is_valid:  # a provider that is switched off
            return _carried(origin, delivery)
        return _Span(span, copy_with(trace.set_span_in_context(span, NOTHING)))

    def _is_dropped(self, delivery: Delivery) -> bool:
        """Whether nobody would record the span: then what the event came with is all there is to hand on."""
        traceparent = delivery.trace_context
        return (
            self._source.follows_its_parent
            and traceparent is not None
            and delivery.is_first
            and not is_sampled(traceparent)
        )

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


def _carried(origin: Origin | None, delivery: Delivery) -> Carried | None:
    """Nobody records: the span that published the event stays the current one."""
    return None if origin is None else Carried(delivery.trace_context, copy_with(origin.context))


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
