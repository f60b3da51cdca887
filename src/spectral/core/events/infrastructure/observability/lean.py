"""Spans of handlers that cost little: what a tracer may offer beside OpenTelemetry's interface, and what they are like.

Nearly all spans of handlers are alike but for ids and times, and nobody touches them: to keep these few is a tenth of
the work of making a span of the SDK. The worker's own tracer keeps them so (`spectral_workers.lean_spans`); where the
program has brought a provider of its own, its spans are made by that.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry.trace import Span, StatusCode

if TYPE_CHECKING:
    from uuid import UUID

    from opentelemetry.util.types import AttributeValue

    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Failure

MESSAGE_ID: Final = "messaging.message.id"
ATTEMPT: Final = "spectral.attempt"
OUTCOME: Final = "spectral.outcome"
WELL: Final = "ok"


class Shape:
    """What the spans of a handler have in common: the name, and the attributes that are the same for each event.

    written: room for whoever sends them, for the same in its own words.
    """

    __slots__ = ("attributes", "name", "written")

    def __init__(self, name: str, attributes: dict[str, AttributeValue]) -> None:
        self.name = name
        self.attributes = attributes
        self.written: bytes | None = None

    @classmethod
    def of(cls, delivery: Delivery, handler_name: str) -> Shape:
        """The shape of those of a handler that is given events of this kind."""
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "spectral",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": delivery.event_type,
            "messaging.consumer.group.name": delivery.target,
            "spectral.handler": handler_name,
            "spectral.generation": delivery.generation,
        }
        return cls(f"process {delivery.event_type}", attributes)

    def attributes_of(self, event_id: UUID, attempt: int) -> dict[str, AttributeValue]:
        """All of a span's attributes as it begins."""
        return {**self.attributes, MESSAGE_ID: str(event_id), ATTEMPT: attempt}


class LeanSpan(Span):
    """A span of a handler that is about to run."""

    traceparent: str

    @abstractmethod
    def leave(self, failure: Failure | None) -> bool:
        """The act is over; true if `send` is all there is left to do, else `finish` is, by an outlet."""

    @abstractmethod
    def send(self) -> None:
        """Have it sent, some time; waits for nothing."""

    @abstractmethod
    def finish(self, failure: Failure | None) -> None:
        """End the span, at the time of `leave`."""


class StartsLean(Protocol):
    """What begins such spans."""

    def __call__(self, shape: Shape, traceparent: str | None, delivery: Delivery, *, is_child: bool) -> LeanSpan | None:
        """Begin one that is linked to this traceparent, if any, and perhaps its child; none: ask the tracer for it."""
        ...


def end_span(span: Span, failure: Failure | None, ended: int | None) -> None:
    """End a span at this time, with what became of it."""
    if failure is None:
        span.set_attribute(OUTCOME, WELL)
    else:
        span.set_attributes({OUTCOME: "failed", "error.type": failure.kind})
        span.set_status(StatusCode.ERROR, failure.text)
    span.end(ended)
