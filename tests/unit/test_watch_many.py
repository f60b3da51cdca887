"""The watch of a busy worker: what goes well is told many at a time, soon, in order, and before anything else is."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from spectral.core.events.infrastructure.observability import gathered
from spectral.core.events.infrastructure.observability import outlet as outlets
from spectral.core.events.infrastructure.observability import watch as module
from spectral.core.events.infrastructure.observability.gathered import Gathered
from spectral.core.events.infrastructure.observability.tools import Carried, Lean
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
    Note,
    NoteTaker,
    Publish,
    Published,
    SettlementWritten,
    Stopped,
)
from tests.unit.log_notes import delivery, envelope, traceparent
from tests.unit.test_watch import LARGE, PATIENCE, Told, fail


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits, waits for ever, unless something happens."""
    monkeypatch.setattr(outlets, "_GATHER", threading.TIMEOUT_MAX)


class Counts(NoteTaker):
    """Keeps what it is told, and when it was."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self.times: list[float] = []
        self.told = threading.Event()

    def tell_at(self, note: Note, at: float) -> None:
        self.notes.append(note)
        self.times.append(at)
        self.told.set()


TRACE = traceparent("a" * 32)


def handled(payload: str = "{}") -> Finished:
    return Finished(delivery()._replace(payload=payload), Handled(), ("worlds.index",), 0.1)


def ran(failure: Failure | None = None) -> HandlerRan:
    return HandlerRan(Handle(delivery(), "worlds.index"), 0.1, failure, None)


def test_it_is_told_soon_although_nothing_else_happens() -> None:
    watch = Watch({}, {"counts": (counts := Counts())})
    before = time.time()
    watch.tell(note := handled())
    after = time.time()
    assert counts.told.wait(PATIENCE)
    assert counts.notes == [note]
    assert before <= counts.times[0] <= after, "it happened when it was said, not when it was told"


def test_the_end_of_a_handler_is_told_to_whoever_asks_for_it_and_else_nothing_is_made_of_it() -> None:
    asked, unasked = Watch({}, {"counts": (counts := Counts())}), Watch({}, {})
    act = Handle(delivery(), "worlds.index")
    asked.begin(act).end(ValueError("no"))
    (note,) = counts.notes
    assert isinstance(note, HandlerRan)
    assert (note.act, note.failure) == (act, Failure("ValueError", "ValueError: no"))
    activity = unasked.begin(act)
    assert (activity.traceparent, activity.context) == (None, None)
    assert activity is unasked.begin(Handle(delivery(), "worlds.other")), "one for all, for it knows nothing"
    activity.end(ValueError("no"))


class Follows:
    """A tracer that wants nothing, or whatever it is told to want."""

    def __init__(self) -> None:
        self.wanted: Carried | None = None
        self.asked = 0

    def start(self, _act: Act) -> Carried | None:
        self.asked += 1
        return self.wanted

    def send(self, spans: Sequence[object]) -> None:
        raise NotImplementedError(spans)  # there are no lean ones


def test_that_nobody_wants_handlers_is_asked_once_in_a_while_and_for_each_event_that_carries_a_trace() -> None:
    watch = Watch({}, {}, tracer := Follows())
    plain = Handle(delivery()._replace(trace_context=None), "worlds.index")
    traced = Handle(delivery()._replace(trace_context=TRACE), "worlds.index")
    for _ in range(3):
        watch.begin(plain).end()
    assert tracer.asked == 1
    tracer.wanted = Carried(TRACE, None)
    assert watch.begin(traced).traceparent == TRACE
    watch._unwatched_until = time.monotonic()  # a second later
    assert watch.begin(plain).traceparent == TRACE


# what was settled together


class Heaps(Counts):
    """Takes them together."""

    def __init__(self) -> None:
        super().__init__()
        self.heaps: list[Sequence[Note]] = []

    def tell_many_at(self, notes: Sequence[Note], at: float) -> None:
        self.heaps.append(notes)
        self.times.append(at)


@pytest.mark.usefixtures("patient")
def test_a_heap_is_told_at_once_together_or_one_by_one_after_what_has_waited() -> None:
    heaps, counts, told = Heaps(), Counts(), Told()
    watch = Watch({"told": told}, {"heaps": heaps, "counts": counts})
    watch.tell(first := ran())
    heap = [handled() for _ in range(module._SEVERAL)]
    before = time.time()
    watch.tell_many(heap)
    assert sorted(heaps.heaps, key=len) == [[first], heap]
    assert heaps.notes == []
    assert counts.notes == [first, *heap]
    assert len(set(counts.times[1:])) == 1
    assert counts.times[-1] in heaps.times
    assert before <= counts.times[-1] <= time.time()
    assert watch.flush(PATIENCE)
    assert told.notes == [first, *heap]


@pytest.mark.usefixtures("patient")
async def test_on_a_loop_it_is_told_when_whoever_tells_it_waits_for_something() -> None:
    watch = Watch({}, {"heaps": (heaps := Heaps())})
    watch.tell_many(first := [handled() for _ in range(module._SEVERAL)])
    watch.tell_many(second := [handled() for _ in range(module._SEVERAL)])
    assert heaps.heaps == []
    await asyncio.sleep(0)
    assert heaps.heaps == [first, second]
    watch.tell_many(third := [handled() for _ in range(module._SEVERAL)])
    await asyncio.sleep(0)
    assert heaps.heaps == [first, second, third]


@pytest.mark.usefixtures("patient")
async def test_too_many_do_not_wait_for_the_loop() -> None:
    watch = Watch({}, {"heaps": (heaps := Heaps())})
    watch.begin(Handle(delivery(), "worlds.index")).end()  # somebody has been asked by now
    for _ in range(gathered._TOO_MANY - 2):
        watch.begin(Handle(delivery(), "worlds.index")).end()
    assert heaps.heaps == []
    watch.begin(Handle(delivery(), "worlds.index")).end()
    assert [len(heap) for heap in heaps.heaps] == [gathered._TOO_MANY]


@pytest.mark.usefixtures("patient")
def test_a_loop_that_ended_before_its_turn_keeps_nobody_from_being_told() -> None:
    watch = Watch({}, {"heaps": (heaps := Heaps())})

    async def end() -> None:
        watch.tell_many([handled() for _ in range(module._SEVERAL)])
        asyncio.get_running_loop().stop()

    loop = asyncio.new_event_loop()
    task = loop.create_task(end())
    loop.run_forever()
    loop.run_until_complete(task)
    loop.close()
    watch.catch_up()
    assert len(heaps.heaps) == 1
    watch.tell_many([handled() for _ in range(module._SEVERAL)])
    assert len(heaps.heaps) == 2


@pytest.mark.usefixtures("patient")
def test_who_wants_nothing_that_went_well_is_asked_once_for_many() -> None:
    asked: list[type[Note]] = []

    class Choosy(Told):
        def wants_well(self, kind: type[Note]) -> bool:
            asked.append(kind)
            return False

    watch = Watch({"choosy": (choosy := Choosy()), "told": (told := Told())}, {"heaps": Heaps()})
    watch.tell_many(heap := [handled() for _ in range(module._SEVERAL)])
    assert asked == [Finished]
    assert watch.flush(PATIENCE)
    assert (choosy.notes, told.notes) == ([], heap)


@pytest.mark.usefixtures("patient")
def test_who_comes_to_want_each_handler_is_told_of_those_that_have_waited() -> None:
    class Late(Told):
        has_come = False

        def cares_for(self, kind: type[Note]) -> bool:
            return self.has_come and bool(kind)

    watch = Watch({"late": (late := Late())}, {"heaps": (heaps := Heaps())})
    for _ in range(3):
        watch.begin(Handle(delivery(), "worlds.index")).end()
    late.has_come = True
    watch._ask_again_at = 0.0
    watch.begin(Handle(delivery(), "worlds.index")).end()
    assert watch.flush(PATIENCE)
    assert len(late.notes) == sum(map(len, heaps.heaps)) == 4


@pytest.mark.usefixtures("patient")
def test_a_few_wait_for_more() -> None:
    watch = Watch({}, {"heaps": (heaps := Heaps())})
    few = [handled() for _ in range(module._SEVERAL - 1)]
    watch.tell_many(few)
    assert (heaps.heaps, heaps.notes) == ([], [])
    watch.tell(Stopped())
    assert (heaps.heaps, heaps.notes) == ([], [*few, Stopped()])


@pytest.mark.usefixtures("patient")
def test_handlers_that_have_waited_to_be_told_of_are_a_heap_to_whoever_takes_one() -> None:
    heaps, counts, told = Heaps(), Counts(), Told()
    watch = Watch({"told": told}, {"heaps": heaps, "counts": counts})
    runs = [ran() for _ in range(3)]
    between, failed = SettlementWritten(1, 0.1), ran(Failure("E", "no"))
    notes: list[Note] = [runs[0], between, *runs[1:], failed]
    for note in notes:
        watch.tell(note)
    assert heaps.heaps == [runs], "what goes wrong is told by itself, after what went well"
    assert heaps.notes == [between, failed]
    assert counts.notes == notes
    assert watch.flush(PATIENCE)
    assert told.notes == notes


@pytest.mark.usefixtures("patient")
def test_publishes_are_told_together_to_whoever_takes_them_so_and_among_all_else_in_their_order() -> None:
    class Takes(Counts):
        def tell_published(self, notes: Sequence[tuple[Published, float]]) -> None:
            self.notes.append(SettlementWritten(-len(notes), 0.0))  # stands for so many

    class Fails(Counts):
        def tell_published(self, notes: Sequence[tuple[Published, float]]) -> None:
            raise OSError(len(notes))

    takes, counts, told = Takes(), Counts(), Told()
    watch = Watch({"told": told}, {"fails": Fails(), "takes": takes, "counts": counts})
    notes = [Published(Publish([envelope()], 1), 0.1, None, None) for _ in range(3)]
    between, failed = SettlementWritten(1, 0.1), ran(Failure("E", "no"))
    every: list[Note] = [*notes[:2], between, notes[2], failed]
    for note in every:
        watch.tell(note)
    assert takes.notes == [SettlementWritten(-2, 0.0), between, SettlementWritten(-1, 0.0), failed]
    assert [type(note) for note in counts.notes] == [Published, Published, SettlementWritten, Published, HandlerRan]
    assert counts.times == sorted(counts.times)
    assert watch.troubles()["fails"] == (0, 2)
    assert watch.flush(PATIENCE)
    assert [type(note) for note in told.notes] == [type(note) for note in counts.notes]


class ByHand:
    """Gathers notes whose outlet works when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.works: list[Callable[[], object]] = []
        self.told: list[int] = []
        self.gathered = Gathered(self.catch_up)
        monkeypatch.setattr(self.gathered.outlet, "put", self.works.append)

    def catch_up(self) -> None:
        self.gathered.begin()
        self.told.append(sum(len(run) for run in self.gathered.take_notes()))

    def look(self) -> None:
        works, self.works[:] = list(self.works), []
        for work in works:
            work()


def test_whoever_is_told_by_a_loop_is_told_by_it_alone_and_nothing_waits_for_longer_than_two_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand = ByHand(monkeypatch)
    note = SettlementWritten(1, 0.1)
    for _ in range(3):
        hand.gathered.add(note, 0.0, None)
        hand.catch_up()  # as the loop does
        hand.gathered.add(note, 0.0, None)
        assert len(hand.works) == 1, "it is seen to already"
        hand.look()
        assert hand.told[-1] != 0, "nobody looks twice"
    assert (hand.told, len(hand.works)) == ([1, 2, 2], 1)
    hand.look()  # and the loop has not told of it since
    assert (hand.told, hand.works) == ([1, 2, 2, 1], [])
    hand.gathered.add(note, 0.0, None)
    hand.look()
    hand.look()
    assert (hand.told, hand.works) == ([1, 2, 2, 1, 1], [])


def test_the_second_look_is_a_while_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = threading.Semaphore(0)

    class Waits:
        """Stands for the time that the outlet lets things gather, which is over when the test says so."""

        def get(self, timeout: float) -> None:
            assert timeout == outlets._GATHER
            assert taken.acquire(timeout=PATIENCE)

        def put(self, _: None) -> None:
            taken.release()

    told: list[int] = []

    def catch_up() -> None:
        waits.begin()
        told.append(sum(len(run) for run in waits.take_notes()))

    waits, note = Gathered(catch_up), SettlementWritten(1, 0.1)
    monkeypatch.setattr(waits.outlet, "_hurry", Waits())
    waits.add(note, 0.0, None)
    catch_up()  # by the loop
    waits.add(note, 0.0, None)
    taken.release()
    while not waits.outlet._queue or waits.outlet._is_running:  # it has looked, and will look again
        time.sleep(0.001)
    assert told == [1], "not at once"
    taken.release()
    assert waits.outlet.flush(PATIENCE)
    assert told == [1, 1]


def test_what_cannot_be_seen_to_for_want_of_a_thread_is_seen_to_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    told = threading.Event()
    waits = Gathered(told.set)
    note = SettlementWritten(1, 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        waits.add(note, 0.0, None)
    assert not waits.outlet.has_thread
    monkeypatch.setattr(waits.outlet, "_start_at", 0.0)  # a second later
    waits.add(note, 0.0, None)
    assert told.wait(PATIENCE)


def test_what_was_told_meanwhile_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = ByHand(monkeypatch)
    hand.gathered.add(SettlementWritten(1, 0.1), 0.0, None)
    hand.catch_up()
    hand.look()
    assert (hand.told, hand.works) == ([1], [])
    hand.gathered.add(SettlementWritten(1, 0.1), 0.0, None)
    assert len(hand.works) == 1


def test_whoever_cannot_take_a_heap_is_counted_and_the_others_have_it() -> None:
    class Fails(Heaps):
        def tell_many_at(self, notes: Sequence[Note], at: float) -> None:
            raise OSError(len(notes), at)

    watch = Watch({}, {"fails": Fails(), "heaps": (heaps := Heaps())})
    watch.tell_many(heap := [handled() for _ in range(module._SEVERAL)])
    assert heaps.heaps == [heap]
    assert watch.troubles()["fails"] == (0, 1)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("only_counts", [False, True])
def test_who_changes_his_mind_meanwhile_is_told_of_each_handler_once(*, only_counts: bool) -> None:
    class Fickle(Told):
        """A tool that counts in memory, and then does not any more, or the other way round."""

        def __init__(self) -> None:
            super().__init__()
            self.only_counts = only_counts
            self.heaps: list[Note] = []

        def tell_many_at(self, notes: Sequence[Note], _at: float) -> None:
            self.heaps += notes

    class Changes(Counts):
        def tell_at(self, note: Note, at: float) -> None:
            super().tell_at(note, at)
            fickle.only_counts = not only_counts
            watch._ask_again_at = 0.0

    fickle = Fickle()
    watch = Watch({"fickle": fickle}, {"changes": Changes()})
    for _ in range(5):
        watch.tell(ran())
    watch.catch_up()
    assert watch.flush(PATIENCE)
    assert len(fickle.notes) + len(fickle.heaps) == 5


@pytest.mark.usefixtures("patient")
def test_it_is_told_before_anything_else_is() -> None:
    watch = Watch({}, {"counts": (counts := Counts())})
    notes: list[Note] = [ran(), SettlementWritten(1, 0.1), handled(), ran(Failure("E", "no")), Stopped()]
    for note in notes:
        watch.tell(note)
    assert counts.notes == notes


@pytest.mark.usefixtures("patient")
def test_so_many_do_not_wait() -> None:
    watch = Watch({}, {"counts": (counts := Counts())})
    for _ in range(gathered.MANY - 1):
        watch.tell(ran())
    assert counts.notes == []
    watch.tell(ran())
    assert len(counts.notes) == gathered.MANY


@pytest.mark.usefixtures("patient")
def test_what_waits_is_told_when_everything_is_to_be() -> None:
    watch = Watch({"told": (told := Told())}, {"counts": (counts := Counts())})
    watch.tell(handled())
    assert watch.flush(PATIENCE)
    assert [len(told.notes), len(counts.notes)] == [1, 1]


@pytest.mark.usefixtures("patient")
def test_what_waits_does_so_without_much_of_a_payload() -> None:
    watch = Watch({}, {"counts": (counts := Counts())})
    watch.tell(handled(LARGE))
    watch.tell(HandlerRan(Handle(delivery()._replace(payload=LARGE), "worlds.index"), 0.1, None, None))
    watch.catch_up()
    settled, run = counts.notes
    assert isinstance(settled, Finished)
    assert isinstance(run, HandlerRan)
    assert (settled.delivery.payload, run.act.delivery.payload) == ("", "")


@pytest.mark.usefixtures("patient")
def test_what_was_published_waits_too_and_is_told_in_its_place_in_the_publishers_context() -> None:
    word: ContextVar[str] = ContextVar("word")
    seen: list[tuple[str, str | None]] = []

    class Sees(Told):
        def tell(self, note: Note, at: float | None = None) -> None:
            super().tell(note, at)
            seen.append((type(note).__name__, word.get(None)))

    watch = Watch({"one": Sees(), "other": Sees()}, {"counts": (counts := Counts())})
    watch.tell(ran())

    def publish(said: str) -> None:
        word.set(said)
        watch.begin(Publish([envelope()], 3)).end()

    for said in ("first", "second"):
        copy_context().run(publish, said)
    watch.tell(handled())
    assert counts.notes == []
    assert watch.flush(PATIENCE)
    wanted = [("HandlerRan", None), ("Published", "first"), ("Published", "second"), ("Finished", None)]
    assert [type(note).__name__ for note in counts.notes] == [name for name, _ in wanted]
    assert sorted(seen, key=str) == sorted([*wanted, *wanted], key=str)
    assert all(
        isinstance(each, EventRef) for note in counts.notes if isinstance(note, Published) for each in note.act[0]
    )


@pytest.mark.usefixtures("patient")
def test_a_refused_publish_is_told_at_once() -> None:
    watch = Watch({}, {"counts": (counts := Counts())})
    watch.begin(Publish([envelope()], 3)).end(ValueError("no"))
    assert [type(note) for note in counts.notes] == [Published]


def test_a_log_that_publishes_what_it_is_told_is_not_told_of_that() -> None:
    class Publishing(Told):
        def tell(self, note: Note, at: float | None = None) -> None:
            super().tell(note, at)
            watch.begin(Publish([envelope()], 3)).end()

    watch = Watch({"publishing": (told := Publishing())}, {"counts": (counts := Counts())})
    watch.begin(Publish([envelope()], 3)).end()
    assert watch.flush(PATIENCE)
    assert watch.flush(PATIENCE)
    assert [len(told.notes), len(counts.notes)] == [1, 2]


@pytest.mark.usefixtures("patient")
def test_a_lean_span_is_sent_with_its_note_and_may_fail() -> None:
    class Light:
        sent = finished = 0
        traceparent = TRACE

        def start(self, _act: Act) -> Lean:
            return Lean("00-x", None, self)

        def leave(self, failure: Failure | None, seconds: float) -> bool:
            assert seconds >= 0
            return failure is None

        def send(self, spans: Sequence[Any]) -> None:
            assert spans == [self]
            self.sent += 1
            fail()

        def finish(self, failure: Failure | None) -> None:
            assert failure is not None
            self.finished += 1

    watch = Watch({}, {"counts": (counts := Counts())}, light := Light())
    watch.begin(Handle(delivery(), "worlds.index")).end()
    failed = watch.begin(Handle(delivery(), "worlds.index"))
    assert failed.traceparent == "00-x"
    failed.end(ValueError("no"))
    assert failed.traceparent == TRACE, "who reports it names its span"
    assert watch.flush(PATIENCE)
    assert (light.sent, light.finished) == (1, 1)
    assert [type(note) for note in counts.notes] == [HandlerRan, HandlerRan]
    assert watch.troubles()["traces"] == (0, 1)


class Spans:
    """A tracer whose spans note what became of them."""

    traceparent = TRACE

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.finished: list[Failure | None] = []
        self.sent = 0

    def start(self, _act: Act) -> Lean:
        return Lean(None, None, self)

    def leave(self, failure: Failure | None, seconds: float) -> bool:
        self.seconds.append(seconds)
        return failure is None

    def finish(self, failure: Failure | None) -> None:
        self.finished.append(failure)

    def send(self, spans: Sequence[object]) -> None:
        self.sent += len(spans)


@pytest.mark.parametrize("kind", [Counts, Heaps])
@pytest.mark.parametrize("payload", ["{}", LARGE], ids=["small", "large"])
@pytest.mark.usefixtures("patient")
def test_what_was_left_took_until_then_and_is_told_once_it_is_known_to_be_kept(
    kind: type[Counts], payload: str
) -> None:
    watch = Watch({}, {"counts": (counts := kind())}, spans := Spans())
    began_at = time.monotonic()
    act = Handle(delivery()._replace(payload=payload), "worlds.index")
    activities = [watch.begin(act) for _ in range(3)]
    for activity in activities:
        activity.leave()
    left_at = time.monotonic()
    while time.monotonic() <= left_at + 0.01:
        pass  # what was left takes no longer for it
    assert spans.seconds == []
    watch.end_many(activities)
    assert watch.flush(PATIENCE)
    notes = [*counts.notes, *(note for heap in getattr(counts, "heaps", ()) for note in heap)]
    assert [note.failure for note in notes if isinstance(note, HandlerRan)] == 3 * [None]
    assert max(spans.seconds) <= left_at - began_at
    assert (len(spans.seconds), spans.sent) == (3, 3)


def test_of_what_is_not_kept_through_no_fault_of_its_own_only_the_span_tells() -> None:
    watch = Watch({}, {"counts": (counts := Counts())}, spans := Spans())
    left, running = (watch.begin(Handle(delivery(), "worlds.index")) for _ in range(2))
    left.leave()
    left.undo()
    running.undo(OSError("no"))
    untraced = Watch({}, {"counts": counts}).begin(Handle(delivery(), "worlds.index"))
    untraced.leave()
    untraced.undo()
    assert watch.flush(PATIENCE)
    why = Failure("OSError", "OSError: no", is_charged=False)
    assert (spans.finished, spans.sent, counts.notes) == ([UNDONE, why], 0, [])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from 3.12 on
@pytest.mark.usefixtures("patient")
def test_the_child_of_a_fork_does_not_tell_what_its_parent_tells() -> None:
    watch = Watch({}, {"counts": (counts := Counts())})
    watch.tell(note := handled())
    child = os.fork()
    if child == 0:
        told = 1
        try:
            watch.catch_up()
            told = len(counts.notes)
        finally:
            os._exit(told)
    _, status = os.waitpid(child, 0)
    watch.catch_up()
    assert os.waitstatus_to_exitcode(status) == 0
    assert counts.notes == [note]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from 3.12 on
def test_the_child_of_a_fork_has_lost_nothing_yet() -> None:
    class Fails(Counts):
        def tell_at(self, note: Note, at: float) -> None:
            raise OSError(note, at)

    class Refuses(Told):
        def tell(self, note: Note, at: float | None = None) -> None:
            raise OSError(note, at)

    watch = Watch({"refuses": Refuses()}, {"fails": Fails()})
    watch.tell(Stopped())
    assert watch.flush(PATIENCE)
    expected = {"refuses": (0, 1), "fails": (0, 1), "traces": (0, 0)}
    assert watch.troubles() == expected
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if watch.troubles() == dict.fromkeys(expected, (0, 0)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert watch.troubles() == expected


# when everything is to be told


def test_what_is_being_told_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Counts):
        def tell_at(self, note: Note, at: float) -> None:
            begun.set()
            assert go_on.wait(PATIENCE)
            super().tell_at(note, at)

    watch = Watch({"told": (told := Told())}, {"slow": Slow()})
    watch.tell(note := handled())
    assert begun.wait(PATIENCE)
    assert not watch.flush(0.01), "a thread has it in its hand"
    go_on.set()
    assert watch.flush(PATIENCE)
    assert told.notes == [note]


def test_what_one_outlet_hands_to_the_next_is_waited_for_to_the_last() -> None:
    chain = [outlets.Outlet(f"link {number}") for number in range(5)]
    done: list[int] = []

    def hand_on(number: int) -> None:
        done.append(number)
        if number + 1 < len(chain):
            chain[number + 1].put(lambda: hand_on(number + 1))

    for _ in range(3):  # in whatever order they are looked at
        done.clear()
        chain[0].put(lambda: hand_on(0))
        assert outlets.flush_all(PATIENCE)
        assert done == list(range(5))


def test_notes_of_threads_that_come_at_once_are_seen_to() -> None:
    together = threading.Barrier(3)

    class AtOnce(deque[Any]):
        def append(self, item: object) -> None:
            super().append(item)
            together.wait(PATIENCE)

    watch = Watch({}, {"counts": (counts := Counts())})
    watch._gathered.notes = AtOnce()
    threads = [threading.Thread(target=watch.tell, args=[ran()]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert watch._gathered.outlet.flush(PATIENCE)
    assert len(counts.notes) == 3


# publishers


def test_a_publisher_that_nobody_watches_needs_no_thread_and_keeps_nothing() -> None:
    class Elsewhere(Told):
        def cares_for(self, kind: type[Note]) -> bool:
            return kind is Stopped

    watch = Watch({"elsewhere": Elsewhere()})
    watch.begin(Publish([envelope()], 3)).end()
    assert watch._gathered.outlet._thread is None
    assert not watch._gathered


def test_a_note_that_cannot_be_kept_is_none_of_the_publishers_business() -> None:
    watch = Watch({"told": (told := Told())})
    odd: Any = object()
    watch.begin(Publish([odd], 3)).end()
    assert watch.flush(PATIENCE)
    assert told.notes == []
    assert watch.troubles()["told"] == (0, 1)
