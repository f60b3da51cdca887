"""Spans of handlers and of what they publish without the SDK, as long as nobody touches them.

A span of the SDK is made of two dozen objects and a lock, for whatever may be done with it; what nearly always happens
is that something runs within it, and that it ends. So what is kept is what differs from one event to the next, and the
encoder writes it as it would have written the span. Whoever does touch such a span, and be it to read an attribute, is
given one of the SDK's with the same ids and the same beginning, and the SDK goes on with that.

Only while the provider is as it was set up: with no processor but our own, a sampler that we know, and limits that
none of our attributes meets. Else the tracer answers none, and is asked for a span as everywhere.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from contextlib import suppress
from functools import partial
from random import getrandbits
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, Tracer, TracerProvider, _Span
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags

from spectral.core.events.infrastructure.observability.lean import (
    OUTCOME,
    WELL,
    LeanSpan,
    Shape,
    Sort,
    SortKey,
    end_span,
    sort_of_handler,
)
from spectral.core.events.infrastructure.observability.origins import NOT_SAMPLED, NOTHING, remote_span, with_span
from spectral.core.events.infrastructure.observability.slim import MUCH
from spectral.core.events.infrastructure.observability.traces import SCOPE
from spectral_workers import losses
from spectral_workers.span_queue import tell_of_no_room

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Status, StatusCode
    from opentelemetry.util.types import AnyValue, Attributes

    from spectral.core.events.probe import Failure, Handle
    from spectral_workers.span_heaps import Heap, HeapQueue
    from spectral_workers.span_queue import SpanQueue

    Writes: TypeAlias = Callable[[Sequence["KeptSpan"]], Sequence[Heap]]

_NANOSECONDS: Final = 1_000_000_000
_MOST_ATTRIBUTES: Final = 16
"""More than any of these spans has."""

_RANDOM: Final = int(getattr(TraceFlags, "RANDOM_TRACE_ID", 0))
"""A flag that older versions of OpenTelemetry do not know, and then do not hand on."""
_RANDOM_TOO: Final = frozenset("2367abef") if _RANDOM else frozenset[str]()
_AS_ONE: Final = {True: f"{TraceFlags.SAMPLED | _RANDOM:02x}", False: f"{TraceFlags.SAMPLED:02x}"}


_ANY_SORT: Final = Sort(Shape("any", SpanKind.INTERNAL, {}), is_child=False, is_linked=False)


class LeanProvider(TracerProvider):
    """A provider of the SDK, whose tracer of this library's spans can begin lean ones.

    spans: takes those of the SDK, and heaps the lean ones. write: what makes heaps of these; it is called where spans
    are handed over, not where they are exported. That is another thread, mostly on another processor, which should find
    as little as can be to take over.
    """

    def __init__(self, resource: Resource, spans: SpanQueue, heaps: HeapQueue, write: Writes) -> None:
        super().__init__(resource=resource, shutdown_on_exit=False)  # its own way to end would wait for ever
        for queue in (spans, heaps):
            self.add_span_processor(queue)
        self._write = write
        self._heaps = heaps
        self._processors = _processors_of(self._active_span_processor)

    def shutdown(self) -> None:
        """See `TracerProvider`. Both queues at once: each may wait for its collector longer than there is time."""
        heaps = threading.Thread(target=self._heaps.shutdown, name="spectral-spans-end", daemon=True)
        with suppress(RuntimeError):  # no room for a thread: one after the other
            heaps.start()
        super().shutdown()  # which waits for it

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        """See `TracerProvider`."""
        tracer = super().get_tracer(instrumenting_module_name, instrumenting_library_version, schema_url, attributes)
        if instrumenting_module_name != SCOPE or not isinstance(tracer, Tracer) or self._processors is None:
            return tracer
        return LeanTracer(tracer, self._processors, partial(_send, self._write, self._heaps))


class LeanTracer(trace.Tracer):
    """A tracer of the SDK that can begin lean spans too."""

    def __init__(self, tracer: Tracer, processors: object, send: Callable[[Sequence[Any]], None]) -> None:
        self._tracer = tracer
        self.sampler = tracer.sampler
        self._everything, self._children, self._local_children, self._roots = _known_decisions(tracer.sampler)
        self._multiple: Any = tracer.span_processor
        self._processors = processors if _is_unlimited(tracer) else object()
        self._next_trace_id = tracer.id_generator.generate_trace_id
        # The SDK's own does this and looks whether it is zero.
        is_random = type(tracer.id_generator) is RandomIdGenerator
        self._next_span_id = partial(getrandbits, 64) if is_random else tracer.id_generator.generate_span_id
        self._root_flags = _AS_ONE[bool(getattr(tracer.id_generator, "is_trace_id_random", bool)())]
        self.send_lean = send
        """See `LeanSpans`."""

    def start_span(self, *args: Any, **options: Any) -> trace.Span:  # noqa: ANN401  the SDK's
        """See `Tracer`."""
        return self._tracer.start_span(*args, **options)

    def start_as_current_span(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as above
        """See `Tracer`."""
        return self._tracer.start_as_current_span(*args, **options)

    @property
    def resource(self) -> Resource:
        """Of its spans; another one after a fork."""
        return self._tracer.resource

    @property
    def scope(self) -> InstrumentationScope:
        """Of its spans."""
        return self._tracer._instrumentation_scope  # noqa: SLF001  by no public name

    def start_lean(
        self, sort: Sort, parent: str | None, link: str | None, event_id: UUID, began: int
    ) -> AnySpan | None:
        """See `LeanSpans`."""
        if self._multiple._span_processors is not self._processors:  # noqa: SLF001  somebody has added one
            return None
        if parent is not None:
            children = self._local_children if sort.is_local else self._children
            if not (self._everything if parent[-1] in NOT_SAMPLED else children):
                return None
            return AnySpan(self, began, self._next_span_id() or 1, Facts(sort, parent, link, event_id))
        if not self._roots:
            return None
        span = AnySpan(self, began, self._next_span_id() or 1, Facts(sort, parent, link, event_id))
        span.root_trace_id = f"{self._next_trace_id():032x}"
        return span

    def start_first(self, acts: Sequence[Handle], began: int) -> Sequence[KeptSpan] | None:
        """See `LeanSpans`."""
        if not self._begins(acts):
            return None
        next_span_id = self._next_span_id
        return [
            FirstSpan(self, began, next_span_id() or 1, act)
            if len(act[0][8]) <= MUCH  # its payload, or that would wait with the span
            else AnySpan(self, began, next_span_id() or 1, first_facts(act))
            for act in acts
        ]

    def start_first_one(self, act: Handle, began: int) -> KeptSpan | None:
        """See `LeanSpans`."""
        # As mostly, without the call.
        is_known = self._everything and self._children and self._multiple._span_processors is self._processors  # noqa: SLF001
        if not (is_known or self._begins((act,))):
            return None
        if len(act[0][8]) <= MUCH:  # as above
            return FirstSpan(self, began, self._next_span_id() or 1, act)
        return AnySpan(self, began, self._next_span_id() or 1, first_facts(act))

    def _begins(self, acts: Sequence[Handle]) -> bool:
        """Whether it records the first attempts at all of these, and nobody else wants to know of them."""
        if self._multiple._span_processors is not self._processors:  # noqa: SLF001  somebody has added one
            return False
        if self._everything and self._children:
            return True
        traceparents = [act.delivery.trace_context or "" for act in acts]
        return all(self._everything if each[-1:] in NOT_SAMPLED else self._children for each in traceparents)

    @staticmethod
    def leave_lean_many(spans: Sequence[KeptSpan], seconds: Sequence[float]) -> list[KeptSpan]:
        """See `LeanSpans`."""
        # As `leave` of each, without the call: it is done for each event.
        touched: list[KeptSpan] = []
        for span, took in zip(spans, seconds, strict=True):
            if span.real is None:
                span.ended = span.began + int(took * _NANOSECONDS)
            elif not span.leave(None, took):
                touched.append(span)
        return touched

    def flags_of(self, parent: str | None) -> str:
        """The flags of a span with this parent, or with none."""
        return self._root_flags if parent is None else _AS_ONE[parent[-1] in _RANDOM_TOO]

    def example(self) -> _Span:
        """A span of the SDK that has ended, of its resource and its scope, which nobody sends."""
        span = AnySpan(self, time.time_ns(), 1, Facts(_ANY_SORT, None, None, UUID(int=0)))
        span.root_trace_id = "1" * 32
        return span.readable()

    def full(self, kept: KeptSpan, processor: SpanProcessor | None = None) -> _Span:
        """The same as a span of the SDK, begun then."""
        sort, _, link, event_id = kept.facts()
        parent, own, shape = kept.parent_context(), remote_span(link), sort.shape
        span = _Span(
            name=shape.name,
            context=kept.get_span_context(),
            parent=parent,
            sampler=self.sampler,
            resource=self.resource,
            attributes=shape.attributes_of(event_id, sort.attempt),
            span_processor=self._multiple if processor is None else processor,
            kind=shape.kind,
            links=() if own is None else (Link(own),),
            instrumentation_info=self._tracer.instrumentation_info,
            limits=self._tracer._span_limits,  # noqa: SLF001  as above
            instrumentation_scope=self.scope,
        )
        span.start(kept.began, NOTHING if parent is None else with_span(NonRecordingSpan(parent)))
        return span


class Facts(NamedTuple):
    """What a span is about, and what it belongs to."""

    sort: Sort
    parent_name: str | None
    link: str | None
    event_id: UUID


class KeptSpan(LeanSpan):
    """What differs from one event to the next; or the SDK's span, once it has been touched."""

    real: _Span | None = None
    _context: SpanContext | None = None
    _traceparent: str | None = None
    _left: int | None = None
    ended: int | None = None
    root_trace_id = ""  # of one that has no parent

    def __init__(self, tracer: LeanTracer, began: int, span_id: int) -> None:
        self.tracer = tracer
        self.began = began
        self.span_id = span_id

    @abstractmethod
    def facts(self) -> Facts:
        """What is known of it from its beginning."""

    @abstractmethod
    def parent_name(self) -> str | None:
        """Of them only this, which is asked for by whatever it publishes."""

    @property
    def sort(self) -> Sort:
        """See `Facts`."""
        return self.facts().sort

    # by whom it was begun

    @property
    def traceparent(self) -> str:
        """See `LeanSpan`; made when somebody asks for it, for of most spans nobody does."""
        if self._traceparent is None:
            parent = self.parent_name()
            trace_id = self.root_trace_id if parent is None else parent[3:35]
            self._traceparent = f"00-{trace_id}-{self.span_id:016x}-{self.tracer.flags_of(parent)}"
        return self._traceparent

    def leave(self, failure: Failure | None, seconds: float) -> bool:
        """See `LeanSpan`."""
        ended = self.began + int(seconds * _NANOSECONDS)
        if failure is None and self.real is None:
            self.ended = ended
            return True
        self._left = ended
        return False

    def finish(self, failure: Failure | None) -> None:
        """See `LeanSpan`."""
        real = self._touched()
        if real.is_recording():
            end_span(real, failure, self._left)

    # by whom it is sent

    def parent_context(self) -> SpanContext | None:
        """Its parent as the SDK has it; none if it has none."""
        parent = remote_span(self.parent_name())
        if parent is None or not self.sort.is_local:
            return parent
        return SpanContext(parent.trace_id, parent.span_id, is_remote=False, trace_flags=parent.trace_flags)

    def readable(self) -> _Span:
        """As a span of the SDK that has ended, and that nobody sends."""
        span = self.tracer.full(self, SpanProcessor())
        span.set_attribute(OUTCOME, WELL)
        span.end(self.ended)
        return span

    # by the handler, and whatever it calls

    def _touched(self) -> _Span:
        if self.real is not None:
            return self.real
        made = self.readable() if self.ended is not None else self.tracer.full(self)
        real: _Span = self.__dict__.setdefault("real", made)  # at one go, for a handler may have threads
        return real

    def get_span_context(self) -> SpanContext:
        """See `Span`."""
        if self._context is None:
            own = self.traceparent
            flags = TraceFlags(int(own[53:], 16))
            self._context = SpanContext(int(own[3:35], 16), int(own[36:52], 16), is_remote=False, trace_flags=flags)
        return self._context

    def is_recording(self) -> bool:
        """See `Span`."""
        return self.ended is None if self.real is None else self.real.is_recording()

    def end(self, end_time: int | None = None) -> None:
        """See `Span`."""
        self._touched().end(end_time)

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        """See `Span`."""
        self._touched().set_attributes(attributes)

    def set_attribute(self, key: str, value: AnyValue) -> None:
        """See `Span`."""
        self._touched().set_attribute(key, value)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """See `Span`."""
        self._touched().add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        """See `Span`."""
        self._touched().add_link(context, attributes)

    def update_name(self, name: str) -> None:
        """See `Span`."""
        self._touched().update_name(name)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """See `Span`."""
        self._touched().set_status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,  # noqa: FBT001  OpenTelemetry's
    ) -> None:
        """See `Span`."""
        self._touched().record_exception(exception, attributes, timestamp, escaped)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._touched().__exit__(kind, error, traceback)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever the SDK's has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._touched(), name)


class AnySpan(KeptSpan):
    """Of whatever sort."""

    def __init__(self, tracer: LeanTracer, began: int, span_id: int, facts: Facts) -> None:
        super().__init__(tracer, began, span_id)
        self._facts = facts

    def facts(self) -> Facts:
        """See `KeptSpan`."""
        return self._facts

    def parent_name(self) -> str | None:
        """See `KeptSpan`."""
        return self._facts[1]


class FirstSpan(KeptSpan):
    """The span of a handler that tries an event, which carries a traceparent, for the first time: a child of that.

    Nearly all are; what there is to know of them is in their events, and is read when they are written.
    """

    def __init__(self, tracer: LeanTracer, began: int, span_id: int, act: Handle) -> None:  # pyright: ignore[reportMissingSuperCall]
        # As the other's, without the call: it is done for each event.
        self.tracer = tracer
        self.began = began
        self.span_id = span_id
        self.act = act

    def facts(self) -> Facts:
        """See `KeptSpan`."""
        return first_facts(self.act)

    def parent_name(self) -> str | None:
        """See `KeptSpan`."""
        return self.act[0][10]


def first_facts(act: Handle) -> Facts:
    """Of the span of a handler's first attempt."""
    delivery = act.delivery
    return Facts(first_sort(act), delivery.trace_context, delivery.trace_context, delivery.event_id)


def first_sort(act: Handle) -> Sort:
    """Of the spans of a handler's first attempts."""
    delivery, handler_name = act
    key = (delivery.event_type, delivery.target, handler_name, delivery.generation)
    return sort_of_handler(SortKey(*key, attempt=1, is_child=True, is_linked=True))


def _known_decisions(sampler: Sampler) -> tuple[bool, bool, bool, bool]:
    """Whether it is known to record everything, children of recorded spans elsewhere, of those here, and roots."""
    if sampler is ALWAYS_ON:
        return True, True, True, True
    if isinstance(sampler, ParentBased) and type(sampler).__module__ == ParentBased.__module__:
        delegates: dict[str, object] = vars(sampler)
        names = ("_remote_parent_sampled", "_local_parent_sampled", "_root")
        elsewhere, here, root = (delegates.get(name) is ALWAYS_ON for name in names)
        return False, elsewhere, here, root
    return False, False, False, False


def _is_unlimited(tracer: Tracer) -> bool:
    """Whether nothing of ours meets a limit, and nobody counts the spans as the SDK makes them."""
    limits = tracer._span_limits  # noqa: SLF001  as above
    attributes, links = limits.max_span_attributes, limits.max_links
    counts = type(getattr(tracer, "_tracer_metrics", None)).__name__
    return (
        (attributes is None or attributes >= _MOST_ATTRIBUTES)
        and (links is None or links > 0)
        and limits.max_span_attribute_length is None
        and counts in ("NoneType", "NoOpTracerMetrics")
    )


def _processors_of(multiple: object) -> object:
    """Those that are told of spans: another tuple as soon as one is added."""
    return getattr(multiple, "_span_processors", None)


def _send(write: Writes, queue: HeapQueue, spans: Sequence[KeptSpan]) -> None:
    """Write as many as there is room for, no more in a heap than go in a request, and have them sent."""
    taken, most = spans[: queue.room], queue.limits.sent
    if len(taken) < len(spans):
        tell_of_no_room(len(spans) - len(taken))
    written = 0
    try:
        for start in range(0, len(taken), most):
            for heap in write(taken[start : start + most]):
                written += heap.spans
                queue.put(heap)
    except Exception:  # noqa: BLE001, S110  counted below, span by span
        pass
    if written < len(taken):
        losses.SPANS.count(failed=len(taken) - written)
