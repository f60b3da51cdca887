"""A shift: everything that runs while a worker delivers, from its first claim to its last settlement.

All parts are in one supervised group. The end has an order: claim no more, give back what no handler has begun, let the
rest finish within the grace, cancel and give back what is left, write all that, then let go of the leases.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.delivery.aside import Aside
from spectral.core.events.delivery.backlog import Backlog
from spectral.core.events.delivery.claim import ClaimLoop, Until, Ways
from spectral.core.events.delivery.hear import HearLoop
from spectral.core.events.delivery.keep import KeepLoop
from spectral.core.events.delivery.lane import LaneLoop
from spectral.core.events.delivery.plain import PlainRunner
from spectral.core.events.delivery.settle import SettleLoop
from spectral.core.events.failpoints import reached

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Lease
    from spectral.core.events.ports import Claims, Ear, Keeper, Lane, Reception, Settlements

_LAST_WRITE: Final = 2.5
"""The time for giving rows back when there is no other left."""

_LAST_CLAIM: Final = 0.5
"""The time for the claim that is under way, however much somebody insists: what it took would be charged for it."""

_LOOK: Final = 0.02
_MARGIN: Final = 60.0

_GIVE_WAY: Final = 0.0003
"""Seconds for which the thread beside leaves the interpreter to the loop that it has woken, which would else wake up
to wait for it."""


@dataclass(frozen=True, slots=True)
class Connections:
    """The adapters of one worker; a lane is made for each connection that handlers run on, settlements for each writer.

    reception: for a worker that may take from a broker; then the claims are its own.
    """

    claims: Claims
    settlements: Callable[[], Settlements]
    ear: Ear
    keeper: Keeper
    lane: Callable[[], Lane]
    reception: Reception | None = None


@dataclass(slots=True)
class Calls:
    """What is asked of a shift from outside."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    force: asyncio.Event = field(default_factory=asyncio.Event)
    grace: timedelta = timedelta(0)


class Shift:
    """One worker at work. `started` is set with the first claim, `on_draining` called when it claims no more."""

    def __init__(self, connections: Connections, desk: Desk, calls: Calls, started: asyncio.Event) -> None:
        self._connections = connections
        self._desk = desk
        self._calls = calls
        self._home = asyncio.get_running_loop()
        self._limits = desk.routes.limits()
        self._backlog = Backlog(desk.settings.lanes)
        self._plain = PlainRunner(desk, self._limits)
        ways = Ways(
            self._backlog.put,
            self._plain.start,
            is_alive=self._is_alive,
            is_deaf=self._is_deaf,
            is_receiving=self._is_receiving,
        )
        self._claim = ClaimLoop(connections.claims, desk, ways, started)
        self._hear = HearLoop(connections.ear, desk.settings, desk.probe, self._wake)
        self._keep = KeepLoop(connections.keeper, desk, self._wake, self._lose)
        self._keep.may_renew = lambda: not self.is_stuck
        self._aside = Aside(lambda: [self._hear.run(), self._keep.run()], desk.probe)

    # how it is, from any thread

    @property
    def is_listening(self) -> bool:
        """Whether notifications come in."""
        return self._hear.is_open

    @property
    def is_seen(self) -> bool:
        """Whether its leases are kept."""
        return self._keep.is_open

    def deaf_for(self) -> float:
        """For how many seconds it has not been listening."""
        return self._hear.down_for()

    def impaired_for(self) -> float:
        """For how many seconds it has been without its ear, its keeper, its claims or the broker it takes from."""
        reception = self._connections.reception
        broker = 0.0 if reception is None else reception.down_for()
        return max(self._hear.down_for(), self._keep.down_for(), self._claim.down_for(), broker)

    def blocked_for(self) -> float:
        """For how many seconds its event loop has not moved."""
        return self._aside.blocked_for()

    @property
    def is_stuck(self) -> bool:
        """Whether its loop has not moved for longer than any handler may take."""
        return self.blocked_for() > self._desk.routes.longest_timeout().total_seconds() + _MARGIN

    # the order

    async def run(self, until: Until, on_draining: Callable[[], None]) -> None:
        """Deliver until it is stopped, or until there is nothing left to do."""
        has_lanes = any(line.transactional for line in self._desk.routes.lines)
        async with asyncio.TaskGroup() as group:
            aside = group.create_task(self._aside.run(), name="spectral-aside")
            first, second = (SettleLoop(self._connections.settlements(), self._desk) for _ in range(2))
            settle = [
                group.create_task(first.run(), name="spectral-settle"),
                group.create_task(second.run_beside(), name="spectral-settle-beside"),
            ]
            lanes = [
                group.create_task(self._run_lane(), name=f"spectral-lane-{number}")
                for number in range(self._desk.settings.lanes if has_lanes else 0)
            ]
            plain = group.create_task(self._plain.run(), name="spectral-plain")
            claim = group.create_task(self._claim.run(until), name="spectral-claim")
            receive = self._start_receiving(group, until)
            parts = [aside, *settle, plain, *lanes, *receive]
            cancelled = await self._wait_for_the_end(claim, parts)
            on_draining()
            cancelled = await self._in_order(self._finish(claim, lanes, receive), [claim, *parts]) or cancelled
            for part in (plain, *settle, aside):
                part.cancel()
            if cancelled is not None:
                raise cancelled

    def _start_receiving(self, group: asyncio.TaskGroup, until: Until) -> list[asyncio.Task[None]]:
        """Who is to end when nothing is due looks at the database: what is on its way nobody can tell."""
        reception = self._connections.reception
        if reception is None or until != "stopped":
            return []
        return [group.create_task(reception.run(self._claim.wake), name="spectral-receive")]

    async def _finish(
        self, claim: asyncio.Task[None], lanes: list[asyncio.Task[None]], receive: list[asyncio.Task[None]]
    ) -> None:
        clock, answer = self._home.time, self._desk.settings.times.answer.total_seconds()
        deadline = clock() + self._calls.grace.total_seconds()
        self._desk.stopping = True
        self._claim.stop()
        await self._wait_while(lambda: not claim.done(), min(deadline, clock() + answer))
        await asyncio.wait({claim}, timeout=_LAST_CLAIM)
        claim.cancel()
        for part in receive:
            part.cancel()  # others may have at once what was received and not claimed
        reached("release.before")
        self._desk.release(self._backlog.close())
        self._plain.release_waiting()
        await self._wait_while(lambda: self._plain.is_running or not all(lane.done() for lane in lanes), deadline)
        for lane in lanes:
            lane.cancel()
        self._plain.cancel()
        if lanes:
            await asyncio.wait(lanes)
        self._desk.release(self._backlog.clear())
        # What cannot be written in this time is the reaper's.
        left = 0.0 if self._calls.force.is_set() else min(answer, deadline - clock())
        with suppress(TimeoutError):
            async with asyncio.timeout(max(_LAST_WRITE, left)):
                await self._desk.quiet.wait()

    async def _in_order(
        self, finish: Coroutine[Any, Any, None], parts: list[asyncio.Task[None]]
    ) -> asyncio.CancelledError | None:
        """Who cancels a worker that stops insists: it ends sooner, but in good order. As `_wait_for_the_end`."""
        finishing = asyncio.ensure_future(finish)
        try:
            await asyncio.shield(finishing)
        except asyncio.CancelledError as cancelled:
            try:
                if _has_died(parts):
                    raise
                self._calls.force.set()
                await finishing
            finally:
                finishing.cancel()
            return cancelled
        return None

    async def _wait_while(self, condition: Callable[[], bool], deadline: float) -> None:
        """Until it is no longer so, the time is over, or somebody insists."""
        while condition() and self._home.time() < deadline and not self._calls.force.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._calls.force.wait()

    async def _wait_for_the_end(
        self, claim: asyncio.Task[None], others: list[asyncio.Task[None]]
    ) -> asyncio.CancelledError | None:
        """Until somebody stops the worker, or the claim loop has nothing left to do and nothing is held any more.

        Who cancels the worker wants it to end at once, but in good order; answers the cancellation, to be raised then.
        """
        stop = asyncio.ensure_future(self._calls.stop.wait())
        quiet = asyncio.ensure_future(self._quiet_after(claim))
        try:
            await asyncio.wait({stop, quiet}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as cancelled:
            if _has_died([claim, *others]):
                raise
            self._calls.force.set()
            return cancelled
        finally:
            stop.cancel()
            quiet.cancel()
        return None

    async def _quiet_after(self, claim: asyncio.Task[None]) -> None:
        await asyncio.wait({claim})
        await self._desk.quiet.wait()

    async def _run_lane(self) -> None:
        lane = LaneLoop(self._connections.lane(), self._desk, self._backlog, self._limits)
        try:
            await lane.run()
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                # A group of tasks takes a cancelled one for stopped, and nobody would miss the lane.
                raise RuntimeError("a lane was cancelled from within") from cancelled
            raise

    # called from the thread beside

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody needs waking
            self._home.call_soon_threadsafe(self._on_heard)
            time.sleep(_GIVE_WAY)

    def _on_heard(self) -> None:
        if self._connections.reception is not None:
            self._connections.reception.heard()
        self._claim.wake()

    def _lose(self, leases: Collection[Lease]) -> None:
        with suppress(RuntimeError):  # as above
            self._home.call_soon_threadsafe(self._desk.lose, leases)

    # what the claim loop asks

    def _is_alive(self) -> bool:
        return self._keep.is_open or self._hear.is_open

    def _is_deaf(self) -> bool:
        return not self._hear.is_open

    def _is_receiving(self) -> bool:
        reception = self._connections.reception
        return reception is not None and reception.takes_from != NO_BROKER


def _has_died(parts: list[asyncio.Task[None]]) -> bool:
    """Whether a part of the worker has: then it is the others that are cancelled for it."""
    return any(part.done() and not part.cancelled() and part.exception() is not None for part in parts)
