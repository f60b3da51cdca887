"""Abreast: brief handlers of one group, run at the same time in its transaction.

Each sends one statement at most and waits for nothing else, or it would not be here; what they send is carried out in
one round trip, statement by statement, which comes to the same as if they had run one after the other. Whoever turns
out to do more, or fails, is found before anything is kept: then nothing is, and all of them are run again without it.
Until then no handler is told of an error, for it will have its own when it is run by itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from spectral.core.events.delivery.dispatch import PATIENCE_AT_THE_END
from spectral.core.events.failpoints import reached
from spectral.core.events.probe import HandlerRanAway

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import BriefTransaction, Errands
    from spectral.core.events.probe import Activity


class TakenBackError(Exception):
    """Nothing of the group is to be kept, and its rows are to be run again.

    Somebody has lost trust over it, so it will not come to the same. `unanswered`: the connection is still waiting.
    """

    def __init__(self, *, unanswered: bool = False) -> None:
        super().__init__()
        self.unanswered = unanswered


class _Walk:
    """One handler on its way."""

    __slots__ = ("activity", "delivery", "error", "handler", "is_over", "task", "transaction")

    task: asyncio.Task[None]

    def __init__(self, delivery: Delivery, handler: Handler, activity: Activity, transaction: BriefTransaction) -> None:
        self.delivery = delivery
        self.handler = handler
        self.activity = activity
        self.transaction = transaction
        self.error: BaseException | None = None
        self.is_over = False


async def run_abreast(desk: Desk, errands: Errands, runs: Sequence[tuple[Delivery, Handler]]) -> None:
    """Run these handlers, each on its delivery.

    Raises:
        TakenBackError: what they did cannot be kept.
        SubstrateLostError: the connection is lost.
        CancelledError: the worker is being stopped; the handlers were cancelled too.
    """
    walkers = _Walkers(desk, errands)
    try:
        await walkers.walk(runs)
    except asyncio.CancelledError:
        await walkers.call_off(min(desk.settings.times.patience, PATIENCE_AT_THE_END).total_seconds())
        raise
    except BaseException:
        await walkers.call_off(desk.settings.times.patience.total_seconds())
        raise


class _Walkers:
    """All of them, and what they are waiting for."""

    def __init__(self, desk: Desk, errands: Errands) -> None:
        self._desk = desk
        self._errands = errands
        self._loop = asyncio.get_running_loop()
        self._walks: list[_Walk] = []
        self._arrived: list[_Walk] = []  # those that are over since somebody looked
        self._left = 0
        self._waiter: asyncio.Future[None] | None = None
        errands.on_errand = self._wake

    async def walk(self, runs: Sequence[tuple[Delivery, Handler]]) -> None:
        deadline = self._loop.time() + min(handler.timeout_seconds for _, handler in runs)
        for delivery, handler in runs:
            self._set_out(delivery, handler)
        while True:
            # Everybody goes as far as it can: to the end, to its statement, or to what it should not wait for.
            await asyncio.sleep(0)
            self._look_at_those_who_arrived()
            if not self._left:
                return
            self._look_for_strays()
            if not self._errands.are_waiting:
                await self._something_happens(deadline)
            if self._errands.are_waiting:
                await self._carry_out(deadline)

    def _set_out(self, delivery: Delivery, handler: Handler) -> None:
        activity = self._desk.watch(delivery, handler)
        walk = _Walk(delivery, handler, activity, self._errands.transaction())
        walk.task = self._loop.create_task(self._go(walk), name=handler.name, context=activity.context)
        self._walks.append(walk)
        self._left += 1

    async def _go(self, walk: _Walk) -> None:
        """Errors as values: an exit or interrupt raised by a handler must not end the event loop."""
        handler, delivery = walk.handler, walk.delivery
        try:
            told = None
            if handler.wants_context:
                told = self._desk.context_for(delivery, handler, walk.activity.traceparent)
            reached("handle.before")
            await handler.call(delivery, told, walk.transaction)
            reached("handle.after")
        except BaseException as error:  # noqa: BLE001  see above
            walk.error = error
        walk.transaction.end()
        walk.is_over = True
        self._arrived.append(walk)
        self._left -= 1
        if self._waiter is not None:
            self._wake()

    def _look_at_those_who_arrived(self) -> None:
        """Tell that they have ended, and whether all can go on.

        Raises:
            TakenBackError: one of them has failed.
        """
        arrived, self._arrived = self._arrived, []
        for walk in arrived:
            walk.activity.end(walk.error)
        for walk in arrived:
            self._require_brief(walk)
            if walk.error is not None:
                self._desk.trust.failed(walk.handler.name)
                raise TakenBackError

    def _look_for_strays(self) -> None:
        """Those who wait for anything but their statement may go on, but are not to run beside others any more."""
        for walk in self._walks:
            if not (walk.is_over or walk.transaction.is_waiting):
                self._desk.trust.strayed(walk.handler.name)
                self._require_brief(walk)

    def _require_brief(self, walk: _Walk) -> None:
        if walk.transaction.overran:
            self._desk.trust.strayed(walk.handler.name)
            raise TakenBackError

    async def _something_happens(self, deadline: float) -> None:
        """Until somebody arrives or wants something.

        Raises:
            TakenBackError: nobody did, in time.
        """
        self._waiter = self._loop.create_future()
        timer = self._loop.call_at(deadline, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
        if not (self._arrived or self._errands.are_waiting):
            self._are_late()
            raise TakenBackError

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _carry_out(self, deadline: float) -> None:
        try:
            refused = await self._errands.carry_out(deadline - self._loop.time())
        except TimeoutError:
            self._are_late()
            raise TakenBackError(unanswered=True) from None
        if refused is not None:
            guilty = next(walk for walk in self._walks if walk.transaction is refused)
            self._desk.trust.failed(guilty.handler.name)
            raise TakenBackError

    def _are_late(self) -> None:
        """Which of them has the others wait cannot be told, so each has to keep its own time from now on."""
        for walk in self._walks:
            if not walk.is_over:
                self._desk.trust.strayed(walk.handler.name)

    async def call_off(self, patience: float) -> None:
        """Cancel those who are still on their way; who does not end in time is left behind and can do no harm."""
        going = [walk for walk in self._walks if not walk.is_over]
        for walk in going:
            walk.transaction.end()
            walk.task.cancel()
        if going:
            await asyncio.wait([walk.task for walk in going], timeout=patience)
        for walk in going:
            if not walk.is_over:
                walk.activity.end(asyncio.CancelledError())
            if not walk.task.done():
                self._desk.probe.tell(HandlerRanAway(walk.delivery, walk.handler.name))
        for walk in self._arrived:
            walk.activity.end(walk.error)
