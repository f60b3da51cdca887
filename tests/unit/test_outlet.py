"""An outlet: what is put into it runs in order, in its own thread, and nothing that happens there comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial

import pytest

from spectral.core.events.infrastructure.observability import outlet as outlets
from spectral.core.events.infrastructure.observability.outlet import Outlet, is_in_outlet

PATIENCE = 10.0


def test_what_is_put_in_has_run_in_order_when_it_is_flushed() -> None:
    outlet, done = Outlet("test"), list[int]()
    for number in range(100):
        outlet.put(partial(done.append, number))
    assert outlet.flush(PATIENCE)
    assert done == list(range(100))


def test_an_outlet_that_was_never_used_is_flushed_without_a_thread() -> None:
    outlet = Outlet("test")
    assert outlet.flush(0)
    assert outlet._thread is None


def test_a_flush_waits_for_what_is_running_and_for_what_came_meanwhile() -> None:
    outlet, entered, let_go, done = Outlet("test"), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        entered.set()
        let_go.wait(PATIENCE)
        done.append("first")

    outlet.put(first)
    assert entered.wait(PATIENCE)  # it is in the queue no more
    assert not outlet.flush(0)
    outlet.put(lambda: done.append("second"))
    let_go.set()
    assert outlet.flush(PATIENCE)
    assert done == ["first", "second"]


def test_a_flush_never_comes_back_before_what_was_put_in_just_before() -> None:
    outlet, done = Outlet("test"), list[int]()
    for number in range(20):
        outlet.put(partial(done.append, number))
        assert outlet.flush(PATIENCE)
        assert done[-1] == number


def test_an_outlet_that_is_flushed_by_its_own_work_does_not_wait_for_itself() -> None:
    outlet, answers = Outlet("test"), list[bool]()
    outlet.put(lambda: answers.append(outlet.flush(PATIENCE)))
    assert outlet.flush(PATIENCE / 2)
    assert answers == [False]


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_whatever_is_raised_is_counted_and_the_next_one_runs(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    outlet, done = Outlet("test"), list[str]()
    outlet.put(fail)
    outlet.put(lambda: done.append("next"))
    assert outlet.flush(PATIENCE)
    assert (outlet.failed, done) == (1, ["next"])


def test_a_thread_that_cannot_be_started_is_counted_and_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(outlets, "_START_AGAIN", 0.0)
    outlet, done = Outlet("test"), list[str]()
    with monkeypatch.context() as no_threads:
        no_threads.setattr(threading.Thread, "start", refuse)
        outlet.put(lambda: done.append("first"))
    assert outlet.failed == 1
    outlet.put(lambda: done.append("second"))
    assert outlet.flush(PATIENCE)
    assert done == ["first", "second"]


def test_while_there_is_no_room_for_a_thread_not_every_note_asks_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(outlets, "_START_AGAIN", 3600.0)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    outlet = Outlet("test", capacity=5)
    for _ in range(8):
        outlet.put(lambda: None)
    assert (outlet.failed, outlet.dropped) == (1, 3)


def test_what_runs_behind_an_outlet_can_tell() -> None:
    outlet, answers = Outlet("test"), [is_in_outlet()]
    outlet.put(lambda: answers.append(is_in_outlet()))
    assert outlet.flush(PATIENCE)
    assert answers == [False, True]


def test_nothing_that_has_run_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Event()

    class Work:
        def __call__(self) -> None:
            pass

        def __del__(self) -> None:
            freed.set()

    monkeypatch.setattr(outlets, "_GATHER", 0.0)
    outlet = Outlet("test")
    outlet.put(Work())
    assert freed.wait(PATIENCE)


def test_who_waits_for_it_does_not_wait_for_more_to_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "_GATHER", threading.TIMEOUT_MAX)
    outlet, done = Outlet("test"), list[int]()
    for number in range(2):
        outlet.put(lambda: done.append(1))
        assert outlet.flush(PATIENCE)
        assert len(done) == number + 1


def run(script: str) -> str:
    """What a program of its own prints."""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE * 3, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_is_flushed_first_is_flushed_before_what_was_registered_until_then() -> None:
    script = """
import atexit
from spectral.core.events.infrastructure.observability.outlet import Outlet, flush_first

outlet = Outlet("test")
atexit.register(print, "shut down")
flush_first()
outlet.put(lambda: print("told"))
"""
    assert run(script).splitlines() == ["told", "shut down"]


def test_the_spans_of_a_short_program_whose_provider_came_after_the_import_are_exported() -> None:
    script = """
from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publishing
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

class Printed(SpanExporter):
    def export(self, spans):
        print(*(span.name for span in spans))
        return SpanExportResult.SUCCESS

shared = publishing(PublishSettings(generation=1, contexts=frozenset({"orders"})))
event = EventEnvelope(event_type="orders.order.placed", source="orders", payload={})
with shared.watched([event]):  # nobody traces yet; but the next one must not be missed
    pass
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Printed()))
trace.set_tracer_provider(provider)
with shared.watched([event]):
    pass
"""
    assert run(script) == "publish orders.order.placed\n"


def test_the_handler_of_a_signal_may_put_something_in_wherever_it_interrupts_whoever_does_so() -> None:
    script = """
import signal, sys
from spectral.core.events.infrastructure.observability.outlet import Outlet

outlet, done = Outlet("test"), []

def put_interrupted_at(number):
    seen = 0

    def trace(_frame, event, _argument):
        nonlocal seen
        if event == "line":  # of it, or of anything it calls
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    outlet.put(lambda: done.append("interrupted"))
    sys.settrace(None)
    return seen >= number

signal.signal(signal.SIGUSR1, lambda *_: outlet.put(lambda: done.append("handler")))
outlet.put(lambda: None)  # starts the thread, which waits for what follows
assert outlet.flush(10)
number = 1
while put_interrupted_at(number):
    assert outlet.flush(10)
    assert sorted(done) == ["handler", "interrupted"], done
    done.clear()
    number += 1
print(number > 3)
"""
    assert run(script) == "True\n"


def test_outlets_that_are_made_while_all_are_flushed_are_no_trouble() -> None:
    script = """
import sys
from spectral.core.events.infrastructure.observability.outlet import Outlet, flush_all

done, made = [], [Outlet("first"), Outlet("second")]
made[0].put(lambda: done.append(1))

def trace(_frame, event, _argument):
    # As another thread may, at any line of it and of all that it calls.
    if event == "line" and len(made) < 100:
        made.append(Outlet("another"))
    return trace

sys.settrace(trace)
flushed = flush_all(10)
sys.settrace(None)
print(flushed, done, len(made) > 10)
"""
    assert run(script) == "True [1] True\n"


def test_an_outlet_that_nobody_has_any_more_is_forgotten() -> None:
    before = len(outlets._all())
    outlet = Outlet("test")
    assert len(outlets._all()) == before + 1
    del outlet
    assert len(outlets._all()) == before
