"""The lean spans that wait to be sent: written already, heap by heap, as they were settled.

A processor of the SDK takes spans one by one, and so it takes them out. Here a heap is put, sent and let go as one
piece of memory, however many spans are in it; what there is room for is counted in spans nevertheless.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from weakref import WeakSet

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, set_value
from opentelemetry.sdk.trace import SpanProcessor

from spectral_workers.span_queue import PATIENCE, Counted

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from spectral_workers.span_queue import Limits

_START_AGAIN: Final = 1.0
"""Seconds: a process that has no room for another thread now may have it later."""


class Heap(Protocol):
    """Spans that have been written together."""

    @property
    def spans(self) -> int:
        """How many there are in it."""
        ...


_ENOUGH: Final = "there is enough for a request"
_END: Final = "nothing comes any more"


class _Flush(NamedTuple):
    """Somebody waits until all that has been put by now is sent."""

    is_done: threading.Event


class HeapQueue(SpanProcessor):
    """Sends heaps, in a thread of its own: when there is enough for a request, and however little after a while.

    A processor, so that its provider flushes and ends it with the others; of the SDK's own spans it wants to know
    nothing. exporter: its own, for it is used by one thread only.
    """

    def __init__(self, exporter: SpanExporter, limits: Limits) -> None:
        self._exporter = Counted(exporter)
        self.limits = limits
        self._is_over = False
        self._is_ended = False
        self.start_anew()
        _queues.add(self)

    def start_anew(self) -> None:
        """Empty and without a thread; also in the child of a fork, where the thread is missing."""
        self._heaps: deque[Heap] = deque()
        self._waits = 0
        # For a moment; one that whoever has it may take again, as the handler of a signal may that ends a span.
        self._counting = threading.RLock()
        self._calls: SimpleQueue[_Flush | str] = SimpleQueue()
        self._is_called = False
        self._start = threading.Lock()
        self._ending = threading.Lock()
        self._start_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def room(self) -> int:
        """For so many spans more; none after its end."""
        return 0 if self._is_over else max(0, self.limits.queued - self._waits)

    def put(self, heap: Heap) -> None:
        """Have it sent soon; whoever asked for room before puts no more than that."""
        with self._counting:
            self._waits += heap.spans
        self._heaps.append(heap)
        if self._waits >= self.limits.sent and not self._is_called:
            self._is_called = True
            self._calls.put(_ENOUGH)
        if self._thread is None:
            self._start_thread()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanProcessor`; waits no longer than this, whatever its exporter does."""
        return self._is_sent(timeout_millis / 1000)

    def shutdown(self) -> None:
        """See `SpanProcessor`."""
        self._is_over = True
        with self._ending:  # whoever comes second waits too
            if not self._is_ended:
                self._is_sent(PATIENCE)
                self._is_ended = True
                self._calls.put(_END)
                self._exporter.shutdown()

    def _is_sent(self, within: float) -> bool:
        if not self._waits:
            return True  # what is sent right now counts as waiting
        flush = _Flush(threading.Event())
        self._calls.put(flush)
        deadline = time.monotonic() + within
        while self._thread is None and time.monotonic() < deadline:
            self._start_thread()
            if flush.is_done.wait(0.05):
                return True
        return flush.is_done.wait(max(0.0, deadline - time.monotonic()))

    def _start_thread(self) -> None:
        """Start it, or try again later: what waits, waits."""
        if time.monotonic() < self._start_at or not self._start.acquire(blocking=False):
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="spectral-spans", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:  # no room for a thread is none of the flow's business
            self._start_at = time.monotonic() + _START_AGAIN
        finally:
            self._start.release()

    def _run(self) -> None:
        # Whatever follows what the exporter does would follow that for ever.
        attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: FBT003  the SDK does the same
        while True:
            flush: _Flush | None = None
            is_time = True
            with suppress(Empty):
                call = self._calls.get(timeout=self.limits.delay)
                if call is _END:
                    return
                flush = call if isinstance(call, _Flush) else None
                is_time = flush is not None
            self._is_called = False  # first: what comes from now on calls again
            left = len(self._heaps) if is_time else 0  # of those that come meanwhile none is waited for
            while self._heaps and (left > 0 or self._waits >= self.limits.sent):
                left -= self._send()
            if flush is not None:
                flush.is_done.set()

    def _send(self) -> int:
        """As many heaps as a request takes, and one at least; answers how many."""
        taken: list[Any] = []
        spans = 0
        with suppress(IndexError):
            while not taken or spans + self._heaps[0].spans <= self.limits.sent:
                taken.append(self._heaps.popleft())
                spans += taken[-1].spans
        try:
            self._exporter.send(taken, spans)
        except BaseException:  # noqa: BLE001, S110  counted by now; whatever it was, it must not end this thread
            pass
        finally:
            with self._counting:
                self._waits -= spans
        return len(taken)


_queues: Final[WeakSet[HeapQueue]] = WeakSet()


def _after_fork() -> None:
    for queue in list(_queues):
        queue.start_anew()


os.register_at_fork(after_in_child=_after_fork)
