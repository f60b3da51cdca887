"""OpenTelemetry, spans after the fact: what a claim and a settlement took, each a trace of its own.

They are of many events at once and belong to none of them, so the worker does not follow them while they happen.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import SpanKind

from spectral.core.events.infrastructure.observability.origins import NOTHING
from spectral.core.events.infrastructure.observability.traces import TracerSource
from spectral.core.events.probe import Claimed, SettlementWritten

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from opentelemetry.util.types import AttributeValue

    from spectral.core.events.probe import Note
    from spectral.core.events.settings import Identity

_NANOSECONDS: Final = 1_000_000_000


class BatchSpans:
    """Implements `Tool`. `provider` is asked instead of the program's own."""

    def __init__(self, identity: Identity, worker: str | None = None, provider: TracerProvider | None = None) -> None:
        self._source = TracerSource(worker, provider)
        self._everywhere: dict[str, AttributeValue] = {
            "messaging.system": "spectral",
            "spectral.generation": identity.generation,
        }

    def cares_for(self, kind: type[Note]) -> bool:
        """Whether it is of a batch, and somebody traces."""
        return kind in (Claimed, SettlementWritten) and self._source.tracer() is not None

    def tell(self, note: Note, at: float | None = None) -> None:
        """See `Tool`."""
        ended = time.time_ns() if at is None else int(at * _NANOSECONDS)
        match note:
            case Claimed(context, rows, seconds, deaf):
                attributes: dict[str, AttributeValue] = {
                    "messaging.operation.name": "claim",
                    "messaging.operation.type": "receive",
                    "messaging.consumer.group.name": context,
                    "messaging.batch.message_count": rows,
                    "spectral.deaf": deaf,
                }
                self._span(f"claim {context}", seconds, ended, attributes)
            case SettlementWritten(rows, seconds):
                attributes = {
                    "messaging.operation.name": "settle",
                    "messaging.operation.type": "settle",
                    "messaging.batch.message_count": rows,
                }
                self._span("settle", seconds, ended, attributes)
            case _:
                pass

    def _span(self, name: str, seconds: float, ended: int, attributes: dict[str, AttributeValue]) -> None:
        tracer = self._source.tracer()
        if tracer is None:
            return
        began = ended - int(seconds * _NANOSECONDS)
        span = tracer.start_span(name, NOTHING, SpanKind.CLIENT, self._everywhere | attributes, start_time=began)
        span.end(ended)
