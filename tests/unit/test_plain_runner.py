"""Who runs plain handlers: a task that was cancelled runs nothing more, and no handler feels another one's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from spectral.core.events import Consumer, EventEnvelope, RetryPolicy, WorkerSettings, WorkerTimes
from spectral.core.events.delivery.desk import Desk, LoggerFor
from spectral.core.events.delivery.plain import _TURN, PlainRunner
from spectral.core.events.lease import Delivery
from spectral.core.events.outcome import DeadLetter, Handled, Released, Retry
from spectral.core.events.ports import Conclusion
from spectral.core.events.probe import (
    Activity,
    Handle,
    HandlerRan,
    HandlerRanAway,
    LeaseWasLost,
    Note,
    NoteTaker,
    TimedActivity,
)
from spectral.core.events.routes import Routes
from tests.unit.test_routes import COMPLETED, delivery

SHORT = timedelta(seconds=0.05)
NEVER_AGAIN = RetryPolicy(max_retries=0)


class Notes(NoteTaker):
    """A probe that remembers."""

    def __init__(self) -> None:
        self.told: list[Note] = []

    def tell(self, note: Note) -> None:
        self.told.append(note)

    @property
    def ran_away(self) -> list[str]:
        return [note.handler_name for note in self.told if isinstance(note, HandlerRanAway)]


class Stage:
    """The plain runner of a worker that has no database: rows are put in, conclusions come out and are not settled."""

    def __init__(self, platform: Consumer, concurrency: int, notes: Notes) -> None:
        times = replace(WorkerTimes(), patience=SHORT)
        settings = WorkerSettings(generation=1, concurrency=concurrency, times=times)
        routes = Routes.of([platform])
        self.notes = notes
        self.desk = Desk(settings, routes, self.notes, cast("LoggerFor", None), lambda: 0.5)
        self.limits = routes.limits()
        self.plain = PlainRunner(self.desk, self.limits)
        self.run = asyncio.create_task(self.plain.run())

    def start(self, rows: int = 1) -> list[Delivery]:
        made = [delivery() for _ in range(rows)]
        self.desk.hold(made, self.desk.routes.lines[0])
        self.plain.start(made)
        return made

    async def concluded(self) -> Conclusion:
        async with asyncio.timeout(10):
            (conclusion,) = await self.desk.to_settle.take(1)
            return conclusion

    def stop(self) -> None:
        self.desk.stopping = True
        self.plain.cancel()


@asynccontextmanager
async def stage(platform: Consumer, concurrency: int = 1, notes: Notes | None = None) -> AsyncIterator[Stage]:
    opened = Stage(platform, concurrency, notes or Notes())
    try:
        yield opened
    finally:
        opened.run.cancel()
        await asyncio.wait({opened.run})


@pytest.fixture
def platform() -> Consumer:
    return Consumer("platform")


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


# how many tasks


async def test_handlers_that_never_wait_share_one_task(platform: Consumer) -> None:
    tasks: set[asyncio.Task[Any]] = set()

    @platform.on(COMPLETED)
    async def only() -> None:
        tasks.add(this_task())

    async with stage(platform, concurrency=10) as at:
        at.start(rows=3 * _TURN)
        for _ in range(3 * _TURN):
            await at.concluded()
    assert len(tasks) == 1


async def test_once_one_waits_the_others_run_beside_it(platform: Consumer) -> None:
    runs = 0
    together = asyncio.Event()

    @platform.on(COMPLETED)
    async def only() -> None:
        nonlocal runs
        runs += 1
        if runs == 10:
            together.set()
        if runs > 3:
            await together.wait()

    async with stage(platform, concurrency=7) as at:
        at.start(rows=20)
        outcomes = [(await at.concluded()).outcome for _ in range(20)]
    assert outcomes == [Handled()] * 20


# several handlers of one row


async def test_after_one_that_timed_out_the_others_take_effect(platform: Consumer) -> None:
    tasks: list[asyncio.Task[Any]] = []

    @platform.on(COMPLETED, timeout=SHORT)
    async def first() -> None:
        tasks.append(this_task())
        await for_ever()

    @platform.on(COMPLETED)
    async def second() -> None:
        tasks.append(this_task())
        await asyncio.sleep(0)
        assert this_task().cancelling() == 0

    async with stage(platform) as at:
        at.start()
        done = await at.concluded()
    assert isinstance(done.outcome, Retry)
    assert "HandlerTimeoutError" in done.outcome.error
    assert (done.succeeded, done.ran) == (("platform.second",), ("platform.first", "platform.second"))
    assert len(set(tasks)) == 2


async def test_the_second_is_not_left_behind_when_the_firsts_patience_is_over(platform: Consumer) -> None:
    @platform.on(COMPLETED, timeout=SHORT, retry=NEVER_AGAIN)
    async def first() -> None:
        await for_ever()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def second() -> None:
        await asyncio.sleep(3 * SHORT.total_seconds())  # what must not happen has no signal

    async with stage(platform) as at:
        at.start()
        done = await at.concluded()
    assert isinstance(done.outcome, DeadLetter)
    assert done.succeeded == ("platform.second",)
    assert at.notes.ran_away == []


@pytest.mark.parametrize("waits", [False, True])
async def test_one_that_cancels_its_own_task_fails_and_the_others_do_not(platform: Consumer, *, waits: bool) -> None:
    @platform.on(COMPLETED)
    async def first() -> None:
        this_task().cancel()
        if waits:
            await asyncio.sleep(0)

    @platform.on(COMPLETED)
    async def second() -> None:
        await asyncio.sleep(0)

    async with stage(platform) as at:
        at.start()
        done = await at.concluded()
    assert isinstance(done.outcome, Retry)
    assert "CancelledError: platform.first" in done.outcome.error
    assert "platform.second" not in done.outcome.error
    assert done.succeeded == ("platform.second",)


async def test_after_one_that_ran_away_the_others_have_their_turn(platform: Consumer) -> None:
    let_go = asyncio.Event()

    @platform.on(COMPLETED, timeout=SHORT)
    async def first() -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    @platform.on(COMPLETED)
    async def second() -> None:
        await asyncio.sleep(0)

    async with stage(platform) as at:
        at.start()
        done = await at.concluded()
        let_go.set()
    assert isinstance(done.outcome, Retry)
    assert (done.succeeded, done.ran) == (("platform.second",), ("platform.first", "platform.second"))
    assert at.notes.ran_away == ["platform.first"]


async def test_a_row_that_is_passed_on_keeps_its_handlers_places(platform: Consumer) -> None:
    now, most = 0, 0

    @platform.on(COMPLETED, timeout=SHORT, retry=NEVER_AGAIN)
    async def first() -> None:
        await for_ever()

    @platform.on(COMPLETED, concurrency=1, retry=NEVER_AGAIN)
    async def second() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    async with stage(platform, concurrency=4) as at:
        at.start(rows=3)
        done = [await at.concluded() for _ in range(3)]
    assert [each.succeeded for each in done] == [("platform.second",)] * 3
    assert (most, at.limits["platform.second"].is_free, at.plain._at_work) == (1, True, {})


# the worker stops


async def test_a_worker_that_stops_begins_no_other_handler_of_the_row(platform: Consumer) -> None:
    ran: list[str] = []

    @platform.on(COMPLETED)
    async def first() -> None:
        ran.append("first")
        with suppress(asyncio.CancelledError):
            await for_ever()

    @platform.on(COMPLETED)
    async def second() -> None:
        ran.append("second")

    async with stage(platform) as at:
        at.start()
        await asyncio.sleep(0)
        at.stop()
        done = await at.concluded()
    assert ran == ["first"]
    assert done.outcome == Released()
    assert done.succeeded == ("platform.first",)  # it took effect all the same


async def test_the_last_handler_that_finishes_though_it_is_cancelled_concludes_its_row(platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def only() -> None:
        with suppress(asyncio.CancelledError):
            await for_ever()

    async with stage(platform) as at:
        at.start()
        await asyncio.sleep(0)
        at.stop()
        assert (await at.concluded()).outcome == Handled()


async def test_a_row_that_was_passed_on_is_released_if_the_worker_stops_meanwhile(platform: Consumer) -> None:
    ran: list[str] = []

    @platform.on(COMPLETED)
    async def first() -> None:
        this_task().cancel()
        at.desk.stopping = True

    @platform.on(COMPLETED)
    async def second() -> None:
        ran.append("second")

    async with stage(platform) as at:
        at.start()
        done = await at.concluded()
    assert (done.outcome, ran) == (Released(), [])


# leases


async def test_a_row_that_is_lost_before_its_turn_is_told_as_lost_and_not_run(platform: Consumer) -> None:
    ran: list[int] = []

    @platform.on(COMPLETED)
    async def only() -> None:
        ran.append(len(ran))

    async with stage(platform) as at:
        lost, _ = at.start(rows=2)
        at.desk.lose([lost.lease])
        assert (await at.concluded()).delivery is not lost
        assert at.desk.held() == 1
    assert ran == [0]
    assert [note.delivery for note in at.notes.told if isinstance(note, LeaseWasLost)] == [lost]


async def test_the_loss_of_a_row_that_is_concluded_does_not_reach_the_next_one(platform: Consumer) -> None:
    go_on = asyncio.Event()
    runs: list[int] = []

    @platform.on(COMPLETED)
    async def only() -> None:
        runs.append(len(runs))
        if len(runs) == 2:
            await go_on.wait()

    async with stage(platform) as at:
        before, _ = at.start(rows=2)
        assert (await at.concluded()).delivery is before
        at.desk.lose([before.lease])  # not settled yet, so it is still held
        go_on.set()
        assert (await at.concluded()).outcome == Handled()


async def test_the_loss_of_a_row_that_was_passed_on_ends_the_handler_that_runs_now(platform: Consumer) -> None:
    begun = asyncio.Event()

    @platform.on(COMPLETED, timeout=SHORT)
    async def first() -> None:
        await for_ever()

    @platform.on(COMPLETED)
    async def second() -> None:
        begun.set()
        await for_ever()

    async with stage(platform) as at:
        (row,) = at.start()
        async with asyncio.timeout(10):
            await begun.wait()
        at.desk.lose([row.lease])
        assert (await at.concluded()).outcome == Released()


# its end


async def test_no_handler_outlives_the_runner_and_none_is_begun(platform: Consumer) -> None:
    said: list[str] = []

    @platform.on(COMPLETED)
    async def only() -> None:
        said.append("begun")
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0)
            said.append("ended")

    async with stage(platform, concurrency=2) as at:
        at.start(rows=4)
        await asyncio.sleep(0)
        at.run.cancel()
        await asyncio.wait({at.run}, timeout=10)
        assert sorted(said) == ["begun", "begun", "ended", "ended"]
        at.start()  # by a claim that was on its way
        await asyncio.sleep(0)
    assert len(said) == 4


async def test_nobody_waits_for_a_handler_that_does_not_want_to_end_with_the_runner(platform: Consumer) -> None:
    let_go = asyncio.Event()

    @platform.on(COMPLETED)
    async def only() -> None:
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await let_go.wait()

    async with stage(platform) as at:
        at.start()
        await asyncio.sleep(0)
        at.run.cancel()
        done, _ = await asyncio.wait({at.run}, timeout=10)
        let_go.set()
    assert done == {at.run}


@pytest.mark.parametrize(
    "fault", [ZeroDivisionError("a bug of ours"), asyncio.CancelledError()], ids=["error", "cancel"]
)
async def test_what_no_handler_did_takes_the_worker_down(
    platform: Consumer, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    @platform.on(COMPLETED)
    async def only() -> None: ...

    def broken(*_: object) -> None:
        raise fault

    async with stage(platform) as at:
        monkeypatch.setattr(at.desk, "begin", broken)
        at.start()
        await asyncio.wait({at.run}, timeout=10)
        assert not at.run.cancelled()  # that would pass for the end that somebody asked for
        assert isinstance(at.run.exception(), ZeroDivisionError | RuntimeError)


# cancellations from inside


async def test_a_handler_that_catches_its_own_cancellation_has_succeeded_and_the_next_sees_nothing_of_it(
    platform: Consumer,
) -> None:
    counted: list[int] = []

    @platform.on(COMPLETED)
    async def only() -> None:
        counted.append(this_task().cancelling())
        this_task().cancel()
        with suppress(asyncio.CancelledError):
            await for_ever()

    async with stage(platform) as at:
        at.start(rows=2)
        outcomes = [(await at.concluded()).outcome for _ in range(2)]
    assert outcomes == [Handled(), Handled()]
    assert counted == [0, 0]


async def test_a_cancellation_between_two_rows_harms_neither_them_nor_the_worker(platform: Consumer) -> None:
    runs = 0

    @platform.on(COMPLETED)
    async def only() -> None:
        nonlocal runs
        runs += 1
        if runs == _TURN:
            asyncio.get_running_loop().call_soon(this_task().cancel)

    async with stage(platform) as at:
        at.start(rows=2 * _TURN)
        outcomes = [(await at.concluded()).outcome for _ in range(2 * _TURN)]
        assert not at.run.done()
    assert outcomes == [Handled()] * (2 * _TURN)


# eager tasks


def eagerly(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401  asyncio's
    """What Python's own does from 3.12 on, for work that never waits: it is done before create_task returns."""

    async def is_done() -> None: ...

    with suppress(StopIteration):
        work.send(None)
        raise AssertionError("it waits")
    return asyncio.Task(is_done(), loop=loop, **options)


@contextmanager
def eager() -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(cast("Any", getattr(asyncio, "eager_task_factory", eagerly)))
    try:
        yield
    finally:
        loop.set_task_factory(None)


async def test_a_runner_that_ends_inside_of_create_task_leaves_its_place(platform: Consumer) -> None:
    runs: list[int] = []

    @platform.on(COMPLETED)
    async def only() -> None:
        runs.append(len(runs))

    async with stage(platform, concurrency=2) as at:
        for _ in range(5):
            with eager():
                at.start(rows=3)
            assert not at.plain.is_running
        outcomes = [(await at.concluded()).outcome for _ in range(15)]
    assert outcomes == [Handled()] * 15
    assert len(runs) == 15


class Heaps(Notes):
    """A probe that knows of heaps."""

    def __init__(self) -> None:
        super().__init__()
        self.heaps: list[list[str]] = []

    def end_many(self, activities: Sequence[Activity]) -> None:
        for activity in activities:
            activity.end()
        acts = [cast("Handle", cast("TimedActivity", each)._act) for each in activities]
        self.heaps.append([str(act.delivery.event_id) for act in acts])


async def test_handlers_that_do_well_without_waiting_are_told_of_together_before_anybody_waits() -> None:
    platform = Consumer("platform")
    waits, go_on = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def handle(event: EventEnvelope) -> None:
        seen.append(str(event.event_id))
        if len(seen) == 2:
            raise RuntimeError("no")
        if len(seen) == 4:
            waits.set()
            await go_on.wait()

    async with stage(platform, notes=(heaps := Heaps())) as opened:
        opened.start(6)
        await waits.wait()
        assert heaps.heaps == [[seen[0], seen[2]]], "before the fourth is waited for"
        go_on.set()
        for _ in range(6):
            await opened.concluded()
        assert heaps.heaps[1:] == [seen[4:]]
    ran = [(str(note.act.delivery.event_id), note.failure) for note in heaps.told if isinstance(note, HandlerRan)]
    assert sorted(event_id for event_id, _ in ran) == sorted(seen)
    assert [event_id for event_id, failure in ran if failure is not None] == [seen[1]]
