"""The lean spans that wait to be sent: in time, however little there is, counted one by one, and never in the way."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from spectral_workers import losses
from spectral_workers.span_heaps import HeapQueue
from spectral_workers.span_queue import Limits

PATIENCE = 20.0
NEVER = 600.0


class Heap(NamedTuple):
    """Of so many spans."""

    spans: int


class Takes(SpanExporter):
    """Writes down how many spans each request had; answers so, or raises, once it is let."""

    def __init__(self, answer: SpanExportResult | Exception = SpanExportResult.SUCCESS) -> None:
        self._answer = answer
        self.requests: list[list[int]] = []
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.let_go.set()
        self.is_suppressed: object = None
        self.ends = 0

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        self.is_suppressed = get_value(_SUPPRESS_INSTRUMENTATION_KEY)
        self.requests.append([heap.spans for heap in spans])
        self.entered.set()
        assert self.let_go.wait(PATIENCE)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def shutdown(self) -> None:
        self.ends += 1


@pytest.fixture(autouse=True)
def nothing_lost() -> Iterator[None]:
    losses.SPANS.forget()
    yield
    losses.SPANS.forget()


def queue_of(exporter: SpanExporter, queued: int = 100, sent: int = 10, delay: float = NEVER) -> HeapQueue:
    return HeapQueue(exporter, Limits(queued, sent, delay))


def test_what_is_enough_for_a_request_is_sent_at_once() -> None:
    exporter = Takes()
    queue = queue_of(exporter)
    for spans in (4, 5, 3):
        queue.put(Heap(spans))
    assert exporter.entered.wait(PATIENCE)
    assert exporter.requests == [[4, 5]], "no more than a request may have, and the rest waits for more"
    queue.shutdown()
    assert exporter.requests == [[4, 5], [3]]


def test_what_is_little_is_sent_after_a_while() -> None:
    exporter = Takes()
    queue = queue_of(exporter, delay=0.01)
    queue.put(Heap(1))
    assert exporter.entered.wait(PATIENCE)
    assert exporter.requests == [[1]]
    queue.shutdown()


def test_a_flush_sends_all_of_it() -> None:
    exporter = Takes()
    queue = queue_of(exporter)
    assert queue.force_flush(), "there is nothing to send"
    queue.put(Heap(2))
    queue.put(Heap(3))
    assert queue.force_flush()
    assert exporter.requests == [[2, 3]]
    assert queue.room == 100
    queue.shutdown()


def test_a_flush_waits_for_no_collector_that_hangs_and_nobody_waits_who_puts() -> None:
    exporter = Takes()
    exporter.let_go.clear()
    queue = queue_of(exporter)
    queue.put(Heap(10))
    assert exporter.entered.wait(PATIENCE)
    assert not queue.force_flush(10)
    assert queue.room == 90, "what is being sent needs its room"
    queue.put(Heap(20))
    assert queue.room == 70
    exporter.let_go.set()
    queue.shutdown()
    assert exporter.requests == [[10], [20]]


@pytest.mark.parametrize("answer", [SpanExportResult.FAILURE, ConnectionError("no")], ids=["refused", "raised"])
def test_what_cannot_be_sent_is_counted_and_costs_nothing_else(answer: SpanExportResult | Exception) -> None:
    exporter = Takes(answer)
    queue = queue_of(exporter)
    queue.put(Heap(7))
    assert queue.force_flush()
    queue.put(Heap(2))
    assert queue.force_flush()
    assert losses.SPANS.counted() == (0, 9)
    queue.shutdown()


def test_there_is_no_room_after_the_end_which_comes_once() -> None:
    exporter = Takes()
    queue = queue_of(exporter)
    queue.put(Heap(1))
    queue.shutdown()
    assert (queue.room, exporter.requests) == (0, [[1]])
    queue.shutdown()
    assert exporter.ends == 1


def test_what_the_exporter_does_is_followed_by_nobody() -> None:
    exporter = Takes()
    queue = queue_of(exporter)
    queue.put(Heap(1))
    assert queue.force_flush()
    assert exporter.is_suppressed is True
    queue.shutdown()


def test_a_process_without_room_for_a_thread_sends_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Takes()
    queue = queue_of(exporter)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        queue.put(Heap(1))
    assert exporter.requests == []
    assert queue.force_flush()
    assert exporter.requests == [[1]]
    queue.shutdown()


def test_many_threads_may_put() -> None:
    exporter = Takes()
    queue = queue_of(exporter, queued=1_000_000)

    def put() -> None:
        for _ in range(1_000):
            queue.put(Heap(3))

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert queue.force_flush()
    assert sum(map(sum, exporter.requests)) == 8 * 1_000 * 3
    assert max(map(sum, exporter.requests)) <= 10
    assert queue.room == 1_000_000
    queue.shutdown()


def in_a_child(do: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if do() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from 3.12 on
def test_the_child_of_a_fork_sends_its_own_and_nothing_of_its_parent() -> None:
    exporter = Takes()
    exporter.let_go.clear()
    queue = queue_of(exporter)
    queue.put(Heap(10))
    assert exporter.entered.wait(PATIENCE)
    queue.put(Heap(4))

    def sends_its_own() -> bool:
        exporter.let_go.set()
        exporter.requests.clear()
        queue.put(Heap(1))
        return queue.force_flush() and exporter.requests == [[1]]

    assert in_a_child(sends_its_own)
    exporter.let_go.set()
    queue.shutdown()
    assert exporter.requests == [[10], [4]]


def test_a_flush_of_nothing_takes_no_time_although_the_delay_is_long() -> None:
    queue = queue_of(Takes())
    queue.put(Heap(1))
    began = time.monotonic()
    assert queue.force_flush()
    assert time.monotonic() - began < NEVER / 10
    queue.shutdown()
