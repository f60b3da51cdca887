"""The SDK's own spans that wait to be sent, and how many were lost, of those and of lean ones.

A processor of the SDK evicts the oldest for whatever finds no room, and says so for each. Here it is counted, and so is
what a collector refuses.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakSet

from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from spectral_workers import losses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

PATIENCE: Final = 30.0
"""Seconds that the SDK waits at the end for what has not been sent yet."""

_logger: Final = logging.getLogger("opentelemetry.spectral")  # what is said there is said once a minute


class Limits(NamedTuple):
    """For how many spans there is room, how many are sent at once, and after how many seconds if there are less."""

    queued: int
    sent: int
    delay: float


class SpanQueue(BatchSpanProcessor):
    """A processor of the SDK that counts what is lost.

    queued: for so many there is room. sent: so many are sent at once. None: as the environment says.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        queued: int | None = None,
        sent: int | None = None,
        schedule_delay_millis: float | None = None,
    ) -> None:
        super().__init__(Counted(exporter), queued, schedule_delay_millis, sent)
        self._knows_its_room = _knows_its_room(self)
        self.unlock()
        _queues.add(self)

    def unlock(self) -> None:
        """With a lock that nobody holds; also in the child of a fork, where its holder may be missing."""
        # One that whoever has it may take again: the handler of a signal may end a span too.
        self._lock = threading.RLock()

    @property
    def limits(self) -> Limits:
        """As they have come to be; the SDK's own where it does not say."""
        batches: Any = getattr(self, "_batch_processor", None)  # by no public name
        return Limits(
            getattr(batches, "_max_queue_size", 2_048),
            getattr(batches, "_max_export_batch_size", 512),
            getattr(batches, "_schedule_delay", 5.0),
        )

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`."""
        context = span.context
        with self._lock:
            if self._knows_its_room and self._is_full() and context is not None and context.trace_flags.sampled:
                losses.SPANS.count(dropped=1)
            super().on_end(span)

    def _is_full(self) -> bool:
        """So it is after its end, too."""
        batches: Any = self._batch_processor
        queue: deque[Any] = batches._queue  # noqa: SLF001  as above; another one after a fork
        return getattr(batches, "_shutdown", False) or len(queue) >= (queue.maxlen or 0)


def _knows_its_room(processor: BatchSpanProcessor) -> bool:
    batches: Any = getattr(processor, "_batch_processor", None)  # as above
    queue = getattr(batches, "_queue", None)
    return isinstance(queue, deque) and queue.maxlen is not None


def tell_of_no_room(spans: int) -> None:
    """So many are dropped."""
    losses.SPANS.count(dropped=spans)
    _logger.warning("No room for %d spans.", spans)


class Counted(SpanExporter):
    """An exporter of whose failures is kept count."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        return self.send(spans, len(spans))

    def send(self, batch: Sequence[Any], spans: int) -> SpanExportResult:
        """The same of a batch in which there are so many, whatever they are to this exporter."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(batch)
        finally:
            if result is not SpanExportResult.SUCCESS:
                losses.SPANS.count(failed=spans)
        return result

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)


_queues: Final[WeakSet[SpanQueue]] = WeakSet()


def _after_fork() -> None:
    for queue in list(_queues):
        queue.unlock()


os.register_at_fork(after_in_child=_after_fork)
