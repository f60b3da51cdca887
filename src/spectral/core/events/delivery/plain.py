"""Plain handlers: outside any transaction, many at once, under a renewed lease.

A few runners take rows one after the other, as many as handlers may run at once; a handler that never waits costs no
task of its own, and while none does, there is one runner. Rows of different types take turns: a slow type does not keep
the others from the runners that are free. A runner whose handler was cancelled, by whomever, is replaced: a task is not
used on after that, not even for the other handlers of the same row.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Literal

from spectral.core.events.delivery.dispatch import PATIENCE_AT_THE_END, conclude, used_up
from spectral.core.events.delivery.inline import InContext, begin, is_cancelled
from spectral.core.events.delivery.runner import Runner
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import HandlerTimeoutError
from spectral.core.events.outcome import AlreadyHandled, Released
from spectral.core.events.probe import HandlerRanAway

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Activity
    from spectral.core.events.routes import Limit

_TURN: Final = 64
"""Rows after which a runner lets everybody else have a turn, should its handlers never wait."""


class PlainRunner:
    """Runs rows as they come; a place is free again when the handler has ended, whatever the database does."""

    def __init__(self, desk: Desk, limits: Mapping[str, Limit]) -> None:
        self._desk = desk
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, deque[Delivery]] = {}
        self._waiting = 0
        self._at_work: dict[str, int] = {}  # by event type
        self._most = _most_of_a_type(desk)
        self._runners: set[Runner] = set()
        self._quick: Runner | None = None  # employed, and has not waited since: what waits may be done before it does
        self._left: set[Runner] = set()
        self._did_well: list[Activity] = []  # and nobody has been told yet
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._crashed: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._cancels = self._stop_row  # made once: every row that is begun with names it
        for limit in limits.values():
            limit.on_free.append(self._fill)

    async def run(self) -> None:
        """Until cancelled; raises what no handler's failure can explain. Whatever the end, no handler outlives it.

        But for those that ignore their cancellation: nobody waits longer for them than `PATIENCE_AT_THE_END`.
        """
        try:
            await self._crashed
        finally:
            self._closed = True
            self._queues.clear()
            self._waiting = 0
            for runner in list(self._runners):
                self._stop(runner)
            tasks = [runner.task for runner in self._runners if runner.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=self._patience_at_the_end())
            if self._timer is not None:
                self._timer.cancel()

    def start(self, deliveries: Iterable[Delivery]) -> None:
        """Run these, each as soon as there is a place."""
        for delivery in deliveries:
            queue = self._queues.get(delivery.event_type)
            if queue is None:
                queue = self._queues[delivery.event_type] = deque()
            queue.append(delivery)
            self._waiting += 1
        self._fill()

    @property
    def is_running(self) -> bool:
        """Whether a handler runs."""
        return any(runner.delivery is not None for runner in self._runners)

    def release_waiting(self) -> None:
        """Give back what no handler has begun."""
        waiting = [delivery for queue in self._queues.values() for delivery in queue]
        self._queues.clear()
        self._waiting = 0
        self._desk.release(waiting)

    def cancel(self) -> None:
        """Give back everything."""
        self.release_waiting()
        for runner in list(self._runners):
            self._stop(runner)

    # runners

    def _fill(self, *, at_once: bool = False) -> None:
        """Have a runner for what waits, or as many as there is work and room for `at_once`.

        One is enough while its handlers never wait: a task for each would cost more than most of them do.
        """
        while self._waiting and not self._closed and len(self._runners) < self._desk.settings.concurrency:
            if self._quick is not None and not at_once:
                return
            delivery = self._take()
            if delivery is None:  # what waits has to wait for its handlers' own limits
                return
            runner = Runner(delivery)
            if self._quick is None and not at_once:
                self._quick = runner
            self._employ(runner)

    def _give_way(self, runner: Runner) -> None:
        """Its handler waits: others may run meanwhile."""
        if self._quick is runner:
            self._quick = None
            self._fill(at_once=True)

    def _employ(self, runner: Runner) -> None:
        self._runners.add(runner)  # first: where tasks are eager, its own begins, and may end, inside of create_task
        runner.task = self._loop.create_task(self._work(runner), name="spectral-plain")

    async def _work(self, runner: Runner) -> None:
        runner.task = asyncio.current_task()
        try:
            turns = 0
            while runner.delivery is not None:
                if not (self._deliver(runner, runner.delivery) or await self._wait(runner, runner.delivery)):
                    return
                turns += 1
                if turns % _TURN == 0:
                    self._tell_who_did_well()
                    if await is_cancelled():  # by something that a handler has left behind
                        return
                runner.delivery = self._take()
        except BaseException as error:  # noqa: BLE001  a worker without runners must go down, not fall silent
            if not self._crashed.done():
                # As it is, a cancellation would be taken for the worker's end in good order.
                stray = isinstance(error, asyncio.CancelledError)
                self._crashed.set_exception(RuntimeError("a runner was cancelled from within") if stray else error)
        finally:
            self._tell_who_did_well()
            if self._quick is runner:
                self._quick = None
            self._runners.discard(runner)
            self._left.discard(runner)
            if not runner.left:
                self._fill()

    def _take(self) -> Delivery | None:
        """The next row: of the type that fewest runners are busy with, if its handlers' limits let it run."""
        best: str | None = None
        fewest = self._most
        for event_type, queue in self._queues.items():
            busy = self._at_work.get(event_type, 0)
            if busy < fewest and (not self._limits or self._may_run(queue[0])):
                best, fewest = event_type, busy
        if best is None:
            return None
        queue = self._queues[best]
        delivery = queue.popleft()
        if not queue:
            del self._queues[best]
        self._waiting -= 1
        self._at_work[best] = fewest + 1
        if self._limits:
            for limit in self._limits_of(delivery):
                limit.take_now()
        return delivery

    def _may_run(self, delivery: Delivery) -> bool:
        return all(limit.is_free for limit in self._limits_of(delivery))

    def _limits_of(self, delivery: Delivery) -> list[Limit]:
        handlers = self._desk.routes.handlers_for(delivery)
        return [self._limits[handler.name] for handler in handlers if handler.name in self._limits]

    # one row

    def _deliver(self, runner: Runner, delivery: Delivery) -> bool:
        """Run its handlers and conclude; false as soon as one has to be waited for, which is for `_wait` to do."""
        rest = self._enter(runner, delivery)
        if rest is None or self._advance(runner, delivery, rest):
            self._free(runner)
            return True
        return False

    async def _wait(self, runner: Runner, delivery: Delivery) -> bool:
        """Wait for the handler that waits, and go on with the others; false if the runner must not go on."""
        try:
            while True:
                handler, rest = runner.handler, runner.rest
                assert handler is not None  # noqa: S101  it is what has to be waited for
                assert rest is not None  # noqa: S101  so it has come from there
                raised, runner.error = runner.error, None  # not kept: it knows the frames that it has come through
                error = await self._go_on(runner, handler, raised)
                if runner.left:
                    return False
                runner.deadline = math.inf
                runner.handler = None  # from here on there is nothing to cancel, and nobody to leave behind
                runner.tell(error)
                if runner.is_called_off(error):
                    # The worker stops, or the lease is lost: the settlement, which is fenced, tells which.
                    self._desk.conclude(delivery, Released(), runner.ran, runner.done)
                    return False
                runner.note(handler, error)
                if runner.is_spoilt:
                    self._pass_on(runner, delivery, tuple(rest))
                    return False
                if self._advance(runner, delivery, rest):
                    return True
        finally:
            if not runner.left:
                self._free(runner)

    def _advance(self, runner: Runner, delivery: Delivery, rest: Iterator[Handler]) -> bool:
        """Run one handler after the other; false as soon as one has to be waited for, else the row is concluded."""
        for handler in rest:
            if handler.is_exhausted(delivery):
                runner.note(handler, used_up(handler))
                continue
            activity = runner.activity = self._desk.watch(delivery, handler)
            error = self._begin(runner, delivery, handler, activity)
            if runner.begun is not None or runner.is_spoilt:
                runner.error = error
                return False
            if error is None:
                activity.leave()
                self._did_well.append(activity)
            else:
                activity.end(error)
            runner.note(handler, error)
        self._conclude(runner, delivery)
        return True

    def _tell_who_did_well(self) -> None:
        """Of handlers that did not wait; together, and before anybody waits for anything."""
        if self._did_well:
            did_well, self._did_well = self._did_well, []
            self._desk.end_many(did_well)

    def _enter(self, runner: Runner, delivery: Delivery) -> Iterator[Handler] | None:
        """Begin with the row, or go on with what another runner has passed on; none if it is not to be run."""
        desk = self._desk
        stops = desk.stopping or self._closed
        if runner.rest is not None:
            if stops or desk.is_lost(delivery):
                desk.conclude(delivery, Released(), runner.ran, runner.done)
                return None
            return runner.rest
        if stops:
            desk.release([delivery])
            return None
        if not desk.begin(delivery, self._cancels):
            desk.lost(delivery)
            return None
        runner.ran = runner.done = runner.failures = ()
        rest = runner.rest = iter(desk.routes.handlers_for(delivery))
        return rest

    def _conclude(self, runner: Runner, delivery: Delivery) -> None:
        outcome = conclude(delivery, runner.failures, self._desk.random) if runner.ran else AlreadyHandled()
        self._desk.conclude(delivery, outcome, runner.ran, runner.done)

    def _pass_on(self, runner: Runner, delivery: Delivery, rest: tuple[Handler, ...]) -> None:
        """Its task was cancelled: the other handlers of the row have their turn in another, unless the worker stops."""
        if not rest:
            self._conclude(runner, delivery)
        elif runner.why == "stop":
            self._desk.conclude(delivery, Released(), runner.ran, runner.done)
        else:
            successor = Runner(delivery)
            successor.rest, successor.failures = iter(rest), runner.failures
            successor.ran, successor.done = runner.ran, runner.done
            runner.delivery = None  # the row keeps its place among its type, and those of its handlers
            self._employ(successor)

    def _begin(self, runner: Runner, delivery: Delivery, handler: Handler, activity: Activity) -> BaseException | None:
        """Run one handler up to where it first waits, if it does; whatever it does, its error is a value."""
        runner.begun = None
        runner.handler = handler
        deadline = runner.deadline = self._loop.time() + handler.timeout_seconds
        if deadline < self._timer_at:
            self._look_at(deadline)
        context = activity.context or copy_context()
        told = self._desk.context_for(delivery, handler, activity.traceparent) if handler.wants_context else None
        try:
            reached("handle.before")
            waiting = context.run(begin, handler.call, delivery, told)
            if waiting is not None:
                runner.begun = InContext(waiting, context)
            else:
                reached("handle.after")
        except BaseException as error:  # noqa: BLE001  an exit or interrupt raised by a handler must not end the loop
            return error
        return None

    async def _go_on(self, runner: Runner, handler: Handler, error: BaseException | None) -> BaseException | None:
        """Wait for its end, or see that its task was cancelled from within."""
        self._tell_who_did_well()
        if runner.begun is not None:
            self._give_way(runner)
            error = await runner.begun
            if error is None:
                error = _after()
            if runner.left:
                return error
        runner.deadline = math.inf
        runner.handler = None
        if runner.why == "timeout":
            return self._timed_out(handler)
        if error is None and runner.why is None and runner.is_spoilt and await is_cancelled():
            return asyncio.CancelledError()  # a handler that cancels its own task and returns has failed like any other
        return error

    def _free(self, runner: Runner) -> None:
        """Its row is concluded: the place among its type and the limits of its handlers are free again."""
        delivery, runner.delivery = runner.delivery, None
        runner.handler = runner.rest = None
        runner.deadline = math.inf
        if delivery is not None:
            busy = self._at_work[delivery.event_type] - 1
            if busy:
                self._at_work[delivery.event_type] = busy
            else:
                del self._at_work[delivery.event_type]
            if self._limits:
                for limit in self._limits_of(delivery):
                    limit.give_back()

    # handlers that take too long

    def _look_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        """End what is over its time; then sleep until the next could be."""
        now = self._loop.time()
        for runner in list(self._runners):
            if runner.deadline <= now and runner.why is None:
                self._cancel(runner, "timeout", self._desk.settings.times.patience.total_seconds())
        pending = [runner.deadline for runner in self._runners if runner.why is None]
        self._timer_at = math.inf
        self._timer = None
        if (next_deadline := min(pending, default=math.inf)) < math.inf:
            self._look_at(next_deadline)

    def _stop_row(self, delivery: Delivery) -> None:
        """Its lease is lost; whoever runs its handlers by now."""
        for runner in list(self._runners):
            if runner.delivery is delivery:
                self._stop(runner)

    def _stop(self, runner: Runner) -> None:
        self._cancel(runner, "stop", self._patience_at_the_end())

    def _patience_at_the_end(self) -> float:
        return min(self._desk.settings.times.patience, PATIENCE_AT_THE_END).total_seconds()

    def _cancel(self, runner: Runner, why: Literal["timeout", "stop"], patience: float) -> None:
        if runner.task is None or runner.handler is None or runner.why is not None:
            return
        runner.why = why
        runner.task.cancel()
        self._loop.call_later(patience, self._leave, runner)

    def _leave(self, runner: Runner) -> None:
        """Its handler ignores its cancellation: somebody else takes its place, and it may run on unheeded."""
        delivery, handler = runner.delivery, runner.handler
        if delivery is None or handler is None or runner.rest is None:  # it has ended; a runner is cancelled only once
            return
        runner.left = True
        self._runners.discard(runner)
        self._left.add(runner)  # so that its task is not collected while it runs
        error = self._timed_out(handler) if runner.why == "timeout" else asyncio.CancelledError()
        runner.tell(error)
        if runner.why == "timeout":
            self._desk.probe.tell(HandlerRanAway(delivery, handler.name))
            runner.note(handler, error)
            self._pass_on(runner, delivery, tuple(runner.rest))
        else:
            self._desk.conclude(delivery, Released(), runner.ran, runner.done)
        self._free(runner)
        self._fill()

    @staticmethod
    def _timed_out(handler: Handler) -> HandlerTimeoutError:
        return HandlerTimeoutError(f"did not return within {handler.timeout_seconds:g} s")


def _most_of_a_type(desk: Desk) -> int:
    """How many runners one type may have: where there are others, one runner is theirs."""
    concurrency = desk.settings.concurrency
    types = [each for line in desk.routes.lines if not line.transactional for each in line.event_types or ("", "")]
    return max(1, concurrency - 1) if len(types) > 1 else concurrency


def _after() -> BaseException | None:
    try:
        reached("handle.after")
    except BaseException as raised:  # noqa: BLE001  a test's
        return raised
    return None
