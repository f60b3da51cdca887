"""The spans that wait to be sent: whatever is lost of them is counted, whoever made them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from spectral_workers import losses
from spectral_workers.span_queue import Limits, SpanQueue, tell_of_no_room

PATIENCE = 20
NEVER = 600_000


class Answers(SpanExporter):
    """Answers so, or raises; once it is let."""

    def __init__(self, answer: SpanExportResult | Exception) -> None:
        self._answer = answer
        self.sent = 0
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        assert self.let_go.wait(PATIENCE)
        self.sent += len(spans)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture(autouse=True)
def nothing_lost() -> Iterator[None]:
    losses.SPANS.forget()
    yield
    losses.SPANS.forget()


def spans_by(queue: SpanQueue, count: int) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    for number in range(count):
        provider.get_tracer("tests").start_span(str(number)).end()
    return provider


@pytest.mark.parametrize(
    ("answer", "failed"),
    [(SpanExportResult.SUCCESS, 0), (SpanExportResult.FAILURE, 3), (ConnectionError("no"), 3)],
    ids=["taken", "refused", "raised"],
)
def test_what_cannot_be_sent_is_counted(answer: SpanExportResult | Exception, failed: int) -> None:
    exporter = Answers(answer)
    exporter.let_go.set()
    spans_by(SpanQueue(exporter, 10, 10, NEVER), 3).shutdown()
    assert exporter.sent == 3
    assert losses.SPANS.counted() == (0, failed)


def test_what_the_sdk_has_no_room_for_while_an_exporter_hangs_is_counted() -> None:
    exporter = Answers(SpanExportResult.SUCCESS)
    queue = SpanQueue(exporter, 4, 2, NEVER)
    provider = spans_by(queue, 2)
    assert exporter.entered.wait(PATIENCE)  # it has them in its hand, and hangs
    for number in range(7):
        provider.get_tracer("tests").start_span(str(number)).end()
    assert losses.SPANS.counted() == (3, 0)
    exporter.let_go.set()
    provider.shutdown()
    assert exporter.sent == 2 + 4


def test_what_comes_after_the_end_is_counted_but_not_what_nobody_wanted() -> None:
    exporter = Answers(SpanExportResult.SUCCESS)
    exporter.let_go.set()
    queue = SpanQueue(exporter, 4, 2, NEVER)
    provider = spans_by(queue, 0)
    span = provider.get_tracer("tests").start_span("late")
    provider.shutdown()
    span.end()
    assert losses.SPANS.counted() == (1, 0)
    unwanted = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    unwanted.add_span_processor(queue)
    unwanted.get_tracer("tests").start_span("unwanted").end()
    assert losses.SPANS.counted() == (1, 0)


def test_its_limits_are_what_it_was_told() -> None:
    queue = SpanQueue(Answers(SpanExportResult.SUCCESS), 40, 20, NEVER)
    assert queue.limits == Limits(40, 20, NEVER / 1_000)
    spans_by(queue, 0).shutdown()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from 3.12 on
def test_the_child_of_a_fork_has_lost_nothing_and_holds_no_lock() -> None:
    exporter = Answers(SpanExportResult.SUCCESS)
    exporter.let_go.set()
    queue = SpanQueue(exporter, 4, 2, NEVER)
    tell_of_no_room(5)
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with queue._lock:
            held.set()
            assert let_go.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            acquired = queue._lock.acquire(timeout=PATIENCE)
            code = 0 if acquired and losses.SPANS.counted() == (0, 0) else 2
        finally:
            os._exit(code)
    let_go.set()
    holder.join(PATIENCE)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert losses.SPANS.counted() == (5, 0)
    spans_by(queue, 0).shutdown()
