"""The watch: tools are told what they want, in their own time, and nothing that happens to them reaches the flow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from spectral.core.events import PublishSettings
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.infrastructure.observability import watch as module
from spectral.core.events.infrastructure.observability.tools import Carried
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import (
    UNDONE,
    Act,
    EventRef,
    Failure,
    Finished,
    Handle,
    HandlerRan,
    LeaseWasLost,
    Note,
    NoteTaker,
    Publish,
    Published,
    Stopped,
)
from tests.unit.log_notes import delivery, envelope

PATIENCE = 10.0
LARGE = "x" * 100_000


class Told:
    """A tool that keeps what it is told."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.notes: list[Note] = []
        self._act = act

    def cares_for(self, kind: type[Note]) -> bool:
        return bool(kind)

    def tell(self, note: Note, at: float | None = None) -> None:
        assert at is not None
        self.notes.append(note)
        self._act()


class Choosy(Told):
    """One that wants some of them."""

    def wants(self, note: Note) -> bool:
        return isinstance(note, Stopped)


class Span:
    """A tracer, and its only span."""

    traceparent: str | None = None
    context = None

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self._act = act
        self.started = self.ended = 0

    def start(self, _act: Act) -> Span:
        self.started += 1
        self._act()
        return self

    def send(self, spans: Sequence[object]) -> None:
        raise NotImplementedError(spans)  # there are no lean ones

    @property
    def is_recording(self) -> bool:
        return True

    def leave(self) -> None:
        pass

    def end(self, failure: Failure | None) -> None:
        assert failure is None
        self.ended += 1


def fail(error: type[BaseException] = RuntimeError) -> None:
    raise error("of no concern to the flow")


def through(watch: Watch) -> Publishing:
    return Publishing(PublishSettings(generation=1), lambda: None, watch)


def publish(watch: Watch) -> None:
    with through(watch).watched([envelope()]):
        pass


def test_a_span_whose_act_is_undone_while_it_runs_ends_then_and_not_when_its_outlet_gets_to_it() -> None:
    class Left(Span):
        steps: tuple[str, ...] = ()

        def leave(self) -> None:
            self.steps = (*self.steps, "left")

        def end(self, failure: Failure | None) -> None:
            assert failure is UNDONE
            self.steps = (*self.steps, "ended")

    watch = Watch({}, tracer=(span := Left()))
    watch.begin(Handle(delivery(), "worlds.index")).undo()
    assert watch.flush(PATIENCE)
    assert span.steps == ("left", "ended")


# nothing reaches the flow


def test_a_span_that_cannot_say_whether_it_records_breaks_no_publish() -> None:
    class Broken(Span):
        @property
        def is_recording(self) -> bool:
            fail()
            return True

    watch = Watch({"told": (told := Told())}, tracer=Broken())
    publish(watch)
    assert watch.flush(PATIENCE)
    assert watch.troubles()["traces"] == (0, 1)
    assert [type(each) for each in told.notes] == [Published]


def test_a_span_that_cannot_say_what_it_is_breaks_no_publish() -> None:
    class Broken(Span):
        def __getattribute__(self, name: str) -> Any:  # noqa: ANN401  as object's own
            if name in ("traceparent", "context"):
                fail()
            return super().__getattribute__(name)

    watch = Watch({}, tracer=Broken())
    publish(watch)
    assert watch.troubles()["traces"] == (0, 1)


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
@pytest.mark.parametrize("asked", ["cares_for", "wants"])
def test_a_tool_that_cannot_say_what_it_wants_is_told_nothing(error: type[BaseException], asked: str) -> None:
    broken = Choosy()
    setattr(broken, asked, lambda _: fail(error))
    watch = Watch({"broken": broken, "told": (told := Told())})
    watch.tell(Stopped())
    assert watch.flush(PATIENCE)
    assert (broken.notes, told.notes) == ([], [Stopped()])
    assert watch.troubles()["broken"] == (0, 1)


def test_an_order_to_end_the_process_is_left_to_do_so() -> None:
    # The handler of a signal raises wherever the program happens to be: to ignore it here would be to ignore SIGTERM.
    broken = Choosy()
    setattr(broken, "wants", lambda _: fail(SystemExit))  # noqa: B010  mypy would not have it
    with pytest.raises(SystemExit):
        Watch({"broken": broken}).tell(Stopped())


def test_without_room_for_a_thread_events_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch({"told": (told := Told())})
    monkeypatch.setattr(threading.Thread, "start", lambda _: fail())
    publish(watch)
    watch.catch_up()
    assert watch.troubles()["told"] == (0, 1)
    monkeypatch.undo()
    assert watch.flush(PATIENCE), "as soon as there is room"
    assert len(told.notes) == 1


# what takes too long


class Clock(SimpleNamespace):
    """The watch's module `time`."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def take(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_tracer_that_is_slow_again_and_again_is_left_alone_for_a_while(clock: Clock) -> None:
    span = Span(lambda: clock.take(0.2))
    watch = Watch({}, tracer=span)
    for _ in range(10):
        publish(watch)
    assert span.started == 3
    assert watch.troubles()["traces"] == (0, 3)
    clock.take(31)
    for _ in range(10):
        publish(watch)
    assert span.started == 4, "one, to see whether it has got better"


def test_a_tracer_that_is_slow_now_and_then_is_counted_and_asked_on(clock: Clock) -> None:
    seconds = [0.2, 0.2, 0.001] * 5
    span = Span(lambda: clock.take(seconds.pop()))
    watch = Watch({}, tracer=span)
    for _ in range(15):
        publish(watch)
    assert span.started == 15
    assert watch.troubles()["traces"] == (0, 10)


# what makes more of itself


def test_a_log_that_publishes_what_it_is_told_is_not_told_of_that() -> None:
    told, span = Told(), Span()
    watch = Watch({"told": told}, tracer=span)
    told._act = lambda: publish(watch)
    publish(watch)
    assert watch.flush(PATIENCE)
    assert (len(told.notes), span.started) == (1, 1)


def test_what_is_published_behind_an_outlet_is_counted_all_the_same() -> None:
    class Counted(NoteTaker):
        count = 0

        def tell(self, note: Note) -> None:
            self.count += isinstance(note, Published)

    told, counted = Told(), Counted()
    watch = Watch({"told": told}, {"counted": counted})
    told._act = lambda: publish(watch)
    publish(watch)
    assert watch.flush(PATIENCE)
    assert counted.count == 2


def test_what_counts_is_told_of_the_kinds_it_cares_for() -> None:
    class Choosy(NoteTaker):
        def __init__(self) -> None:
            self.notes: list[Note] = []

        def cares_for(self, kind: type[Note]) -> bool:
            return kind is Stopped

        def tell(self, note: Note) -> None:
            self.notes.append(note)

    watch = Watch({}, {"choosy": (choosy := Choosy())})
    publish(watch)
    watch.tell(Stopped())
    assert choosy.notes == [Stopped()]


def test_what_is_only_handed_on_has_nothing_to_end(clock: Clock) -> None:
    class Hands:
        def start(self, act: Act) -> Carried:
            del act
            clock.take(0.01)
            return Carried("00-x", context)

        def send(self, spans: Sequence[object]) -> None:
            raise NotImplementedError(spans)  # there are no lean ones

    context = copy_context()
    activity = Watch({}, tracer=Hands()).begin(Publish([envelope()], 3))
    assert (activity.traceparent, activity.context) == ("00-x", context)
    activity.end()


# what waits


def kept(note: Note) -> Note:
    watch = Watch({"told": (told := Told())})
    watch.tell(note)
    assert watch.flush(PATIENCE)
    (only,) = told.notes
    return only


def test_a_note_waits_without_a_large_payload() -> None:
    large = delivery()._replace(payload=LARGE)
    slim = large._replace(payload="")
    act = Handle(large, "worlds.index")
    failure = Failure("ValueError", "no")
    assert kept(Finished(large, Handled(), (), 0.1)) == Finished(slim, Handled(), (), 0.1)
    assert kept(LeaseWasLost(large)) == LeaseWasLost(slim)
    assert kept(HandlerRan(act, 0.1, failure, None)) == HandlerRan(act._replace(delivery=slim), 0.1, failure, None)


def test_a_small_payload_is_not_worth_a_copy() -> None:
    note = Finished(delivery(), Handled(), (), 0.1)
    assert kept(note) is note


def test_an_event_that_was_published_waits_as_what_names_it() -> None:
    one = envelope(payload={"large": LARGE})
    names = EventRef(one.event_id, one.event_type, one.source, one.target, one.workspace_id, one.trace_context)
    note = Published(Publish([one], 3), 0.1, Failure("ValueError", "no"), "00-x")
    waits = kept(note)
    assert isinstance(waits, Published)
    assert waits._replace(within=None) == note._replace(act=Publish([names], 3))
    assert waits.within is not None


def test_what_a_tool_does_not_want_does_not_wait() -> None:
    watch = Watch({"choosy": (choosy := Choosy())})
    watch.tell(LeaseWasLost(delivery()))
    assert watch._outlets()[0]._thread is None
    watch.tell(Stopped())
    assert watch.flush(PATIENCE)
    assert choosy.notes == [Stopped()]


# what was published


def test_what_was_published_can_be_waited_for() -> None:
    let_go = threading.Event()
    told = Told(lambda: let_go.wait(PATIENCE))
    shared = through(Watch({"told": told}))
    with shared.watched([envelope()]):
        pass
    assert not shared.flush(0)
    let_go.set()
    assert shared.flush(PATIENCE)
    assert len(told.notes) == 1


def test_there_is_nothing_to_wait_for_where_a_probe_tells_nobody() -> None:
    class Plain:
        def tell(self, _note: Note) -> None:
            pass

        def begin(self, act: Act) -> Any:  # noqa: ANN401  never called
            raise NotImplementedError(act)

    settings = PublishSettings(generation=1)
    assert Publishing(settings, lambda: None).flush(0)
    assert Publishing(settings, lambda: None, Plain()).flush(0)


# tools that only count


class Counts(Told):
    """One that says so, or cannot say."""

    def __init__(self, *, says: Callable[[], object]) -> None:
        super().__init__(lambda: self.threads.append(threading.current_thread()))
        self.threads: list[threading.Thread] = []
        self._says = says

    @property
    def only_counts(self) -> object:
        return self._says()


def test_a_tool_that_only_counts_is_told_where_it_happens() -> None:
    tool = Counts(says=lambda: True)
    watch = Watch({"counts": tool})
    watch.tell(Stopped())
    assert (tool.notes, tool.threads) == ([Stopped()], [threading.current_thread()])


@pytest.mark.parametrize("says", [lambda: False, fail, lambda: "perhaps"])
def test_one_that_does_not_say_so_is_told_by_its_outlet(says: Callable[[], object]) -> None:
    tool = Counts(says=says)
    watch = Watch({"counts": tool})
    watch.tell(Stopped())
    assert watch.flush(PATIENCE)
    assert [thread.name for thread in tool.threads] == ["spectral-counts"]


def test_one_that_raises_is_counted_under_its_name() -> None:
    tool = Counts(says=lambda: True)
    tool._act = fail
    watch = Watch({"counts": tool})
    watch.tell(Stopped())
    assert watch.troubles()["counts"] == (0, 1)
