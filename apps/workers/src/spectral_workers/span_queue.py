"""The spans that wait to be sent: for how many there is room, and how many were lost.

A processor of the SDK evicts the oldest for whatever finds no room, and says so for each. Here it is counted, and so is
what a collector refuses; and many spans find their place at once.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from spectral_workers import losses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

_logger: Final = logging.getLogger("opentelemetry.spectral")  # what is said there is said once a minute


class SpanQueue(BatchSpanProcessor):
    """A processor of the SDK that counts what is lost, and takes what has been written as well as spans.

    queued: for so many there is room. sent: so many are sent at once. None: as the environment says.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        queued: int | None = None,
        sent: int | None = None,
        schedule_delay_millis: float | None = None,
    ) -> None:
        super().__init__(_Counted(exporter), queued, schedule_delay_millis, sent)
        self.takes_anything = _takes_anything(self)
        """Whether it is known how to hand its exporter what is no span of the SDK's."""
        self.unlock()
        _queues.add(self)

    def unlock(self) -> None:
        """With a lock that nobody holds; also in the child of a fork, where its holder may be missing."""
        # One that whoever has it may take again: the handler of a signal may end a span too.
        self._lock = threading.RLock()

    @property
    def room(self) -> int:
        """For so many more; none after its end."""
        batches: Any = self._batch_processor
        if getattr(batches, "_shutdown", False):
            return 0
        queue: deque[Any] = batches._queue  # noqa: SLF001  by no public name; another one after a fork
        return (queue.maxlen or 0) - len(queue)

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`."""
        context = span.context
        with self._lock:
            if self.takes_anything and not self.room and context is not None and context.trace_flags.sampled:
                losses.SPANS.count(dropped=1)
            super().on_end(span)

    def put_many(self, written: Sequence[object]) -> None:
        """Have them sent, as many as there is room for."""
        batches: Any = self._batch_processor
        with self._lock:
            taken = written[: self.room]
            if taken:
                # The last is emitted as any span is: that sees to the rest, among others to an exporter that sleeps.
                batches._queue.extendleft(taken[:-1])  # noqa: SLF001  as above
                batches.emit(taken[-1])
        self.drop(len(written) - len(taken))

    def drop(self, spans: int) -> None:
        """There was no room for so many."""
        if spans:
            losses.SPANS.count(dropped=spans)
            _logger.warning("No room for %d spans.", spans)


def _takes_anything(processor: BatchSpanProcessor) -> bool:
    batches: Any = getattr(processor, "_batch_processor", None)  # as above
    queue = getattr(batches, "_queue", None)
    return isinstance(queue, deque) and queue.maxlen is not None and callable(getattr(batches, "emit", None))


class _Counted(SpanExporter):
    """An exporter of whose failures is kept count."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is not SpanExportResult.SUCCESS:
                losses.SPANS.count(failed=len(spans))
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
