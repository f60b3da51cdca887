"""The listener: the one place that knows the order. Subscribe, listen, claim, dispatch, settle; and how to stop.

Everything runs in one supervised group: a part that dies of an error that is nobody's event takes the worker down,
loudly, instead of leaving it deaf. Stopping: claim no more, give back what no handler has begun, let the rest finish
within the grace, cancel and give back what is left, write all that, then end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from spectral.core.events.delivery.aside import Aside
from spectral.core.events.delivery.backlog import Backlog
from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.delivery.claim import ClaimLoop, Until, Ways
from spectral.core.events.delivery.health import Health, State
from spectral.core.events.delivery.hear import HearLoop
from spectral.core.events.delivery.keep import KeepLoop
from spectral.core.events.delivery.lane import LaneLoop
from spectral.core.events.delivery.plain import PlainRunner
from spectral.core.events.delivery.settle import SettleLoop
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.probe import Crashed, Started, Stopped, Stopping, SubstrateLost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection
    from types import TracebackType

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Lease
    from spectral.core.events.ports import Claims, Ear, Keeper, Lane, Settlements

_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_MARGIN: Final = 60.0


@dataclass(frozen=True, slots=True)
class Connections:
    """The adapters of one worker; a lane is made for each connection that handlers run on."""

    claims: Claims
    settlements: Settlements
    ear: Ear
    keeper: Keeper
    lane: Callable[[], Lane]


class Listener:
    """One worker. Run it with `run`, as `async with`, or as the `lifespan` of an ASGI application; once."""

    def __init__(self, connections: Connections, desk: Desk) -> None:
        self._connections = connections
        self._desk = desk
        self._state = State.STARTING
        self._has_run = False
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._grace = desk.settings.times.stop
        self._aside: Aside | None = None
        self._hear: HearLoop | None = None
        self._keep: KeepLoop | None = None
        self._group: asyncio.TaskGroup | None = None
        self._started = asyncio.Event()

    # what users call

    async def run(self, until: Until = "stopped") -> None:
        """Deliver until `stop` is called, or until there is nothing left to do.

        Raises:
            ConfigurationError: the worker does not fit this database; nothing was started.
        """
        if self._has_run:
            raise ConfigurationError("a worker runs once; make another one")
        self._has_run = True
        try:
            if await self._subscribe():
                await self._deliver(until)
        except BaseException as error:
            self._state = State.DEAD
            if not isinstance(error, asyncio.CancelledError | ConfigurationError):
                self._desk.probe.tell(Crashed(describe(error)))
            raise
        finally:
            await self._connections.claims.close()
        self._state = State.STOPPED
        self._desk.probe.tell(Stopped())

    def stop(self, grace: timedelta | None = None) -> None:
        """Claim no more, finish what runs within the grace, then end. A second call ends at once."""
        if self._stop.is_set():
            self._force.set()
        if grace is not None:
            self._grace = grace
        self._stop.set()

    async def started(self) -> None:
        """Wait until the worker has claimed for the first time (it may still lose its database later)."""
        await self._started.wait()

    async def __aenter__(self) -> Self:
        """Deliver while the block runs; if the worker dies, the block is cancelled and its error raised."""
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._group.create_task(self.run(), name="spectral-worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stop.is_set():  # leaving the block is not insisting
            self.stop()
        group, self._group = self._group, None
        if group is not None:
            # Not the block's error: the group would cancel the worker instead of letting it stop in good order.
            await group.__aexit__(None, None, None)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:  # noqa: ARG002  what frameworks pass
        """For FastAPI and Starlette: `lifespan=listener.lifespan`. If the worker dies, the server is told to stop."""
        try:
            async with self:
                yield
        except BaseExceptionGroup:
            # Servers log the end of a lifespan and serve on; deaf, that is worse than down.
            os.kill(os.getpid(), signal.SIGTERM)
            raise

    def health(self) -> Health:
        """How it is; may be called from any thread."""
        hear, aside, keep = self._hear, self._aside, self._keep
        blocked = aside.blocked_for() if aside is not None else 0.0
        return Health(
            state=self._current_state(blocked),
            worker=self._desk.settings.name,
            generation=self._desk.settings.generation,
            contexts=self._desk.routes.contexts,
            listening=hear is not None and hear.is_open,
            ear_down_seconds=hear.down_for() if hear is not None else 0.0,
            seen_alive=keep is not None and keep.is_open,
            held=self._desk.held(),
            running=self._desk.running(),
            loop_blocked_seconds=blocked,
        )

    def _current_state(self, blocked: float) -> State:
        if self._state not in (State.IDLE, State.DRAINING):
            return self._state
        if blocked > self._longest_block():
            return State.DEAD
        if self._state is State.DRAINING:
            return State.DRAINING
        down = max((each.down_for() for each in (self._hear, self._keep) if each is not None), default=0.0)
        if down > self._desk.settings.times.degraded_after.total_seconds():
            return State.DEGRADED
        return State.BUSY if self._desk.held() else State.IDLE

    def _longest_block(self) -> float:
        return self._desk.routes.longest_timeout().total_seconds() + _MARGIN

    # the order

    async def _subscribe(self) -> bool:
        """Record what this worker handles, waiting for the database if need be; false if stopped meanwhile."""
        settings, routes = self._desk.settings, self._desk.routes
        backoff = Backoff(_FIRST_PAUSE, settings.times.poll_deaf)
        while not self._stop.is_set():
            try:
                lacking = await self._connections.claims.subscribe(
                    routes.subscriptions(), replace=settings.replace_subscriptions
                )
            except SubstrateLostError as lost:
                pause = backoff.next()
                self._desk.probe.tell(SubstrateLost("subscribe", describe(lost), pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause.total_seconds()):
                        await self._stop.wait()
                continue
            if lacking:
                missing = ", ".join(f"{each.handler_name} ({each.event_type})" for each in lacking[:5])
                raise ConfigurationError(
                    f"generation {settings.generation} has handlers on record that this worker lacks: {missing}. All "
                    "handlers of one context for one event type run in the same worker, for whoever claims a row "
                    "settles it. Add them to this worker, start it with another generation or, if they were renamed "
                    "or removed, start it with --replace-subscriptions (WorkerSettings(replace_subscriptions=True))"
                )
            return True
        return False

    async def _deliver(self, until: Until) -> None:
        desk, settings = self._desk, self._desk.settings
        home = asyncio.get_running_loop()
        limits = desk.routes.limits()
        backlog = Backlog(settings.lanes)
        async with asyncio.TaskGroup() as plain_tasks:
            plain = PlainRunner(desk, plain_tasks, limits)
            ways = Ways(backlog.put, plain.start, is_alive=self._is_alive, is_deaf=self._is_deaf)
            claim = ClaimLoop(self._connections.claims, desk, ways, self._started)

            def wake() -> None:
                with suppress(RuntimeError):  # the loop has ended: nobody needs waking
                    home.call_soon_threadsafe(claim.wake)

            def lost(leases: Collection[Lease]) -> None:
                with suppress(RuntimeError):  # as above
                    home.call_soon_threadsafe(desk.lose, leases)

            hear = self._hear = HearLoop(self._connections.ear, settings, desk.probe, wake)
            keep = self._keep = KeepLoop(self._connections.keeper, desk, wake, lost)
            aside = self._aside = Aside(lambda: [hear.run(), keep.run()], desk.probe)
            keep.may_renew = lambda: aside.blocked_for() <= self._longest_block()
            async with asyncio.TaskGroup() as group:
                aside_task = group.create_task(aside.run(), name="spectral-aside")
                settle = SettleLoop(self._connections.settlements, desk)
                settle_task = group.create_task(settle.run(), name="spectral-settle")
                lane_count = settings.lanes if any(line.transactional for line in desk.routes.lines) else 0
                lanes = [
                    group.create_task(self._run_lane(backlog, limits), name=f"spectral-lane-{number}")
                    for number in range(lane_count)
                ]
                self._state = State.IDLE
                self._desk.probe.tell(Started(settings.name, settings.generation, desk.routes.contexts))
                claim_task = group.create_task(claim.run(until), name="spectral-claim")
                cancelled = await self._wait_for_the_end(claim_task, [aside_task, settle_task, *lanes])
                self._state = State.DRAINING
                desk.stopping = True
                desk.probe.tell(Stopping(desk.held(), self._grace))
                claim.stop()
                await asyncio.wait({claim_task}, timeout=settings.times.answer.total_seconds())
                claim_task.cancel()
                reached("release.before")
                desk.release(backlog.close())
                plain.release_waiting()
                await self._finish_running(lambda: plain.is_running or not all(lane.done() for lane in lanes))
                for lane in lanes:
                    lane.cancel()
                plain.cancel()
                if lanes:
                    await asyncio.wait(lanes)
                desk.release(backlog.clear())
                await self._write_what_is_left()
                settle_task.cancel()
                aside_task.cancel()
                if cancelled is not None:
                    raise cancelled

    async def _run_lane(self, backlog: Backlog, limits: dict[str, asyncio.Semaphore]) -> None:
        lane = LaneLoop(self._connections.lane(), self._desk, backlog, limits)
        try:
            await lane.run()
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                # A group of tasks takes a cancelled one for stopped, and nobody would miss the lane.
                raise RuntimeError("a lane was cancelled from within") from cancelled
            raise

    def _is_alive(self) -> bool:
        hear, keep = self._hear, self._keep
        return (keep is not None and keep.is_open) or (hear is not None and hear.is_open)

    def _is_deaf(self) -> bool:
        return self._hear is None or not self._hear.is_open

    async def _wait_for_the_end(
        self, claim_task: asyncio.Task[None], others: list[asyncio.Task[None]]
    ) -> asyncio.CancelledError | None:
        """Until somebody stops the worker, or the claim loop has nothing left to do and nothing is held any more.

        Who cancels the worker wants it to end at once, but in good order; answers the cancellation, to be raised then.
        """
        stop = asyncio.ensure_future(self._stop.wait())
        quiet = asyncio.ensure_future(self._quiet_after(claim_task))
        try:
            await asyncio.wait({stop, quiet}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as cancelled:
            if any(task.done() for task in (claim_task, *others)):
                raise  # a part of the worker has died
            self._force.set()
            return cancelled
        finally:
            stop.cancel()
            quiet.cancel()
        return None

    async def _quiet_after(self, claim_task: asyncio.Task[None]) -> None:
        await asyncio.wait({claim_task})
        await self._desk.quiet.wait()

    async def _finish_running(self, is_running: Callable[[], bool]) -> None:
        """Until no handler runs, the grace is over, or somebody insists."""
        deadline = asyncio.get_running_loop().time() + self._grace.total_seconds()
        while is_running() and not self._force.is_set():
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, 0.05)):
                    await self._force.wait()

    async def _write_what_is_left(self) -> None:
        """Give the settler the time of one answer; what it cannot write is the reaper's."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._desk.settings.times.answer.total_seconds()):
                await self._desk.quiet.wait()
