"""Plain handlers: outside any transaction, many at once, under a renewed lease.

A few runners take rows one after the other, as many as handlers may run at once; a handler that never waits costs no
task of its own. Rows of different types take turns: a slow type does not keep the others from the runners that are
free. A runner whose handler was cancelled, by whomever, is replaced: a task is not used on after that.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Literal

from spectral.core.events.delivery.dispatch import PATIENCE_AT_THE_END, conclude, used_up
from spectral.core.events.delivery.inline import InContext
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import HandlerTimeoutError
from spectral.core.events.outcome import AlreadyHandled, Released
from spectral.core.events.probe import HandlerRanAway

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Activity
    from spectral.core.events.routes import Limit

_TURN: Final = 64
"""Rows after which a runner lets everybody else have a turn, should its handlers never wait."""


class _Runner:
    """One row at a time. `why` says that its handler was cancelled and what for; `left` that nobody waits for it."""

    __slots__ = ("activity", "deadline", "delivery", "failures", "handler", "left", "ran", "task", "why")

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.delivery: Delivery | None = None
        self.handler: Handler | None = None
        self.activity: Activity | None = None
        self.deadline = math.inf
        self.why: Literal["timeout", "stop"] | None = None
        self.left = False
        self.ran: list[str] = []
        self.failures: list[tuple[Handler, BaseException]] = []


class PlainRunner:
    """Runs rows as they come; a place is free again when the handler has ended, whatever the database does."""

    def __init__(self, desk: Desk, limits: Mapping[str, Limit]) -> None:
        self._desk = desk
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, deque[Delivery]] = {}
        self._waiting = 0
        self._at_work: Counter[str] = Counter()  # by event type
        self._runners: set[_Runner] = set()
        self._left: set[_Runner] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._crashed: asyncio.Future[None] = self._loop.create_future()
        for limit in limits.values():
            limit.on_free.append(self._fill)

    async def run(self) -> None:
        """Until cancelled; raises what no handler's failure can explain."""
        try:
            await self._crashed
        finally:
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

    def _fill(self) -> None:
        """Have as many runners as there is work and room for."""
        while self._waiting and len(self._runners) < self._desk.settings.concurrency:
            delivery = self._take()
            if delivery is None:  # what waits has to wait for its handlers' own limits
                return
            runner = _Runner()
            runner.delivery = delivery
            runner.task = self._loop.create_task(self._work(runner), name="spectral-plain")
            self._runners.add(runner)

    async def _work(self, runner: _Runner) -> None:
        try:
            turns = 0
            while runner.delivery is not None:
                if not await self._deliver(runner, runner.delivery):
                    return
                turns += 1
                if turns % _TURN == 0:
                    await asyncio.sleep(0)
                runner.delivery = self._take()
        except BaseException as error:  # noqa: BLE001  a worker without runners must go down, not fall silent
            if not self._crashed.done():
                self._crashed.set_exception(error)
        finally:
            self._runners.discard(runner)
            self._left.discard(runner)
            if not runner.left:
                self._fill()

    def _take(self) -> Delivery | None:
        """The next row: of the type that fewest runners are busy with, if its handlers' limits let it run."""
        best: str | None = None
        for event_type, queue in self._queues.items():
            if queue and (best is None or self._at_work[event_type] < self._at_work[best]) and self._may_run(queue[0]):
                best = event_type
        if best is None:
            return None
        queue = self._queues[best]
        delivery = queue.popleft()
        if not queue:
            del self._queues[best]
        self._waiting -= 1
        self._at_work[best] += 1
        for limit in self._limits_of(delivery):
            limit.take_now()
        return delivery

    def _may_run(self, delivery: Delivery) -> bool:
        return not self._limits or all(limit.is_free for limit in self._limits_of(delivery))

    def _limits_of(self, delivery: Delivery) -> list[Limit]:
        if not self._limits:
            return []
        handlers = self._desk.routes.handlers_for(delivery)
        return [self._limits[handler.name] for handler in handlers if handler.name in self._limits]

    # one row

    async def _deliver(self, runner: _Runner, delivery: Delivery) -> bool:
        """Run its handlers and conclude; false if the runner must not go on."""
        desk = self._desk
        try:
            if desk.is_lost(delivery):
                desk.lost(delivery)
                return True
            if desk.stopping:
                desk.release([delivery])
                return True
            desk.begin(delivery, lambda: self._stop(runner))
            handlers = desk.routes.handlers_for(delivery)
            runner.ran, runner.failures = [], []
            for handler in handlers:
                error = used_up(handler) if handler.is_exhausted(delivery) else await self._run(runner, handler)
                if runner.left:
                    return False
                if runner.why == "stop" and isinstance(error, asyncio.CancelledError):
                    # The worker stops, or the lease is lost: the settlement, which is fenced, tells which.
                    desk.conclude(delivery, Released(), runner.ran)
                    return False
                runner.ran.append(handler.name)
                if error is None:
                    desk.took_effect(delivery, handler.name)
                else:
                    runner.failures.append((handler, error))
            outcome = conclude(delivery, runner.failures, desk.random) if handlers else AlreadyHandled()
            desk.conclude(delivery, outcome, runner.ran)
            return not runner.task.cancelling()
        finally:
            if not runner.left:
                self._free(runner)

    async def _run(self, runner: _Runner, handler: Handler) -> BaseException | None:
        """One handler; whatever it does, its error is a value."""
        delivery = runner.delivery
        assert delivery is not None  # noqa: S101  it is being delivered
        activity = runner.activity = self._desk.watch(delivery, handler)
        runner.handler = handler
        runner.deadline = self._loop.time() + handler.timeout_seconds
        if runner.deadline < self._timer_at:
            self._look_at(runner.deadline)
        context = activity.context or copy_context()
        told = self._desk.context_for(delivery, handler, activity.traceparent) if handler.wants_context else None
        error: BaseException | None
        try:
            reached("handle.before")
            begun = InContext(context.run(handler.call, delivery, told), context)
        except BaseException as raised:  # noqa: BLE001  its payload does not fit
            error = raised
        else:
            error = await begun
            if error is None:
                error = _after()
        runner.deadline = math.inf
        if runner.left:
            return error
        if runner.why == "timeout":
            error = self._timed_out(handler)
        elif error is None and runner.why is None and runner.task.cancelling():
            error = asyncio.CancelledError()  # a handler that cancels its own task has failed like any other
        activity.end(error)
        return error

    def _free(self, runner: _Runner) -> None:
        """Its row is concluded: the place among its type and the limits of its handlers are free again."""
        delivery, runner.delivery = runner.delivery, None
        runner.handler = None
        if delivery is not None:
            self._at_work[delivery.event_type] -= 1
            if not self._at_work[delivery.event_type]:
                del self._at_work[delivery.event_type]
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

    def _stop(self, runner: _Runner) -> None:
        patience = min(self._desk.settings.times.patience, PATIENCE_AT_THE_END)
        self._cancel(runner, "stop", patience.total_seconds())

    def _cancel(self, runner: _Runner, why: Literal["timeout", "stop"], patience: float) -> None:
        if runner.delivery is None or runner.handler is None or runner.why is not None or runner.left:
            return
        runner.why = why
        runner.task.cancel()
        self._loop.call_later(patience, self._leave, runner, runner.delivery)

    def _leave(self, runner: _Runner, delivery: Delivery) -> None:
        """Its handler ignores its cancellation: somebody else takes its place, and it may run on unheeded."""
        if runner.left or runner.delivery is not delivery or runner.handler is None:
            return
        handler, activity = runner.handler, runner.activity
        runner.left = True
        error = self._timed_out(handler) if runner.why == "timeout" else asyncio.CancelledError()
        if activity is not None:
            activity.end(error)
        if runner.why == "timeout":
            self._desk.probe.tell(HandlerRanAway(delivery, handler.name))
            failures = [*runner.failures, (handler, error)]
            outcome = conclude(delivery, failures, self._desk.random)
            self._desk.conclude(delivery, outcome, [*runner.ran, handler.name])
        else:
            self._desk.conclude(delivery, Released(), runner.ran)
        self._runners.discard(runner)
        self._left.add(runner)  # so that its task is not collected while it runs
        self._free(runner)
        self._fill()

    @staticmethod
    def _timed_out(handler: Handler) -> HandlerTimeoutError:
        return HandlerTimeoutError(f"did not return within {handler.timeout_seconds:g} s")


def _after() -> BaseException | None:
    try:
        reached("handle.after")
    except BaseException as raised:  # noqa: BLE001  a test's
        return raised
    return None
