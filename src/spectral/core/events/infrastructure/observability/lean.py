"""Spans that cost little: what a tracer may offer beside OpenTelemetry's interface, and what they are like.

Nearly all spans of handlers, and of what they publish, are alike but for ids and times, and nobody touches them: to
keep these few is a tenth of the work of making a span of the SDK. The worker's own tracer keeps them so
(`spectral_workers.lean_spans`); where the program has brought a provider of its own, its spans are made by that.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from opentelemetry.trace import Span, SpanKind, StatusCode

from spectral.core.events.probe import UNDONE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from opentelemetry.util.types import AttributeValue

    from spectral.core.events.infrastructure.observability.tools import Closing
    from spectral.core.events.probe import Failure, Handle

MESSAGE_ID: Final = "messaging.message.id"
ATTEMPT: Final = "spectral.attempt"
OUTCOME: Final = "spectral.outcome"
WELL: Final = "ok"
PUBLISHING: Final = {
    "messaging.system": "spectral",
    "messaging.operation.name": "publish",
    "messaging.operation.type": "send",
}


class Shape:
    """What the spans of a handler, or of a type's publishes, have in common: all that is the same for each event."""

    __slots__ = ("attributes", "kind", "name")

    def __init__(self, name: str, kind: SpanKind, attributes: dict[str, AttributeValue]) -> None:
        self.name = name
        self.kind = kind
        self.attributes = attributes

    @classmethod
    def of_publishes(cls, event_type: str, generation: int) -> Shape:
        """The shape of those of single events of this type."""
        attributes: dict[str, AttributeValue] = {
            **PUBLISHING,
            "spectral.generation": generation,
            "messaging.destination.name": event_type,
        }
        return cls(f"publish {event_type}", SpanKind.PRODUCER, attributes)

    @classmethod
    def of_handler(cls, event_type: str, target: str, handler_name: str, generation: int) -> Shape:
        """The shape of those of a handler that is given events of this type."""
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "spectral",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": event_type,
            "messaging.consumer.group.name": target,
            "spectral.handler": handler_name,
            "spectral.generation": generation,
        }
        return cls(f"process {event_type}", SpanKind.CONSUMER, attributes)

    def attributes_of(self, event_id: UUID, attempt: int | None) -> dict[str, AttributeValue]:
        """All of a span's attributes as it begins; a publish is no attempt at anything."""
        known = {**self.attributes, MESSAGE_ID: str(event_id)}
        return known if attempt is None else {**known, ATTEMPT: attempt}


class Sort:
    """What spans have in common that are alike but for ids and times.

    attempt: at what they are about; a publish is none. is_child: whether they have a parent; is_local: in this process.
    is_linked: whether they have a link. written: room for whoever sends them, for all of that in its own words.
    """

    __slots__ = ("attempt", "is_child", "is_linked", "is_local", "shape", "written")

    def __init__(
        self, shape: Shape, attempt: int | None = None, *, is_child: bool, is_linked: bool, is_local: bool = False
    ) -> None:
        self.shape = shape
        self.attempt = attempt
        self.is_child = is_child
        self.is_local = is_local
        self.is_linked = is_linked
        self.written: Any = None


class SortKey(NamedTuple):
    """What the runs of a handler have in common whose spans are of one sort."""

    event_type: str
    target: str
    handler_name: str
    generation: int
    attempt: int
    is_child: bool
    is_linked: bool


@lru_cache(1_000)
def sort_of_handler(key: SortKey) -> Sort:
    """Of the spans of those runs."""
    shape = Shape.of_handler(key.event_type, key.target, key.handler_name, key.generation)
    return Sort(shape, key.attempt, is_child=key.is_child, is_linked=key.is_linked)


class LeanSpan(Span):
    """A span of an act that is about to begin."""

    @property
    @abstractmethod
    def traceparent(self) -> str:
        """What names it to others."""

    @abstractmethod
    def leave(self, failure: Failure | None, seconds: float) -> bool:
        """See `Closing`."""

    @abstractmethod
    def finish(self, failure: Failure | None) -> None:
        """See `Closing`."""


class LeanSpans(Protocol):
    """A tracer that begins such spans, and sends them."""

    def start_lean(
        self, sort: Sort, parent: str | None, link: str | None, event_id: UUID, began: int
    ) -> LeanSpan | None:
        """Begin one of this sort at this time, with the parent and the link it has; none: ask the tracer for it."""
        ...

    def start_first(self, acts: Sequence[Handle], began: int) -> Sequence[LeanSpan] | None:
        """Begin those of handlers whose events, tried for the first time, carry a traceparent: children of that.

        All of them at this time, or none: ask the tracer for each.
        """
        ...

    def start_first_one(self, act: Handle, began: int) -> LeanSpan | None:
        """The same of one."""
        ...

    def leave_lean_many(self, spans: Sequence[Any], seconds: Sequence[float]) -> Sequence[Closing]:
        """As `Tracer.leave_many`."""
        ...

    def send_lean(self, spans: Sequence[Closing]) -> None:
        """Have those sent that it has begun; waits for nothing."""
        ...


def end_span(span: Span, failure: Failure | None, ended: int | None) -> None:
    """End a span at this time, with what became of it."""
    if failure is None:
        span.set_attribute(OUTCOME, WELL)
    else:
        span.set_attribute(OUTCOME, "failed" if failure.is_charged else UNDONE.kind)
        if failure is not UNDONE:
            span.set_attribute("error.type", failure.kind)
            span.set_status(StatusCode.ERROR, failure.text)
    span.end(ended)
