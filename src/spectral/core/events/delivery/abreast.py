"""Abreast: brief handlers of one group, run at the same time in its transaction.

Each sends one statement at most and waits for nothing else, or it would not be here; what they send is carried out in
one round trip, statement by statement, which comes to the same as if they had run one after the other. Whoever turns
out to do more, or fails, is found before anything is kept: then nothing is, and all of them are run again without it.
Nobody is told that a statement was refused: whose it was will hear of it when it is run by itself.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from spectral.core.events.delivery import runs
from spectral.core.events.delivery.dispatch import PATIENCE_AT_THE_END
from spectral.core.events.delivery.group import CONFLICTS, TakenBackError
from spectral.core.events.failpoints import reached
from spectral.core.events.ports import ErrandsVoidError
from spectral.core.events.probe import HandlerRanAway

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import BriefTransaction, Errands
    from spectral.core.events.probe import Activity


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


async def run_abreast(
    desk: Desk, errands: Errands, rows: Sequence[tuple[Delivery, Handler]], *, although_apart: bool
) -> None:
    """Run these handlers, each on its delivery.

    Raises:
        TakenBackError: what they did cannot be kept.
        SubstrateLostError: the connection is lost.
        CancelledError: the worker is being stopped; the handlers were cancelled too.
    """
    walkers = _Walkers(desk, errands, although_apart=although_apart)
    patience = desk.settings.times.patience
    try:
        await walkers.walk(rows)
    except asyncio.CancelledError as stopped:
        await walkers.call_off(min(patience, PATIENCE_AT_THE_END), stopped)
        raise
    except BaseException:
        await walkers.call_off(patience, None)
        raise
    finally:
        walkers.part()


class _Walkers:
    """All of them, and what they are waiting for."""

    def __init__(self, desk: Desk, errands: Errands, *, although_apart: bool) -> None:
        self._desk = desk
        self._although_apart = although_apart
        self._errands = errands
        self._loop = asyncio.get_running_loop()
        self._walks: list[_Walk] = []
        self._arrived: list[_Walk] = []  # those that are over since somebody looked
        self._left = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_on = True  # afterwards, the connection is somebody else's
        self._began = 0.0
        errands.on_errand = self._wake

    async def walk(self, rows: Sequence[tuple[Delivery, Handler]]) -> None:
        deadline = self._loop.time() + min(handler.timeout_seconds for _, handler in rows)
        self._began = time.monotonic()
        activities = self._desk.watch_many(rows)
        for (delivery, handler), activity in zip(rows, activities, strict=True):
            self._set_out(delivery, handler, activity)
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

    def _set_out(self, delivery: Delivery, handler: Handler, activity: Activity) -> None:
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
            # Where tasks are eager it may not be known yet; else to be asked for takes as long as a handler.
            itself = getattr(walk, "task", None) or asyncio.current_task()
            if itself is not None and itself.cancelling():  # it cancels itself and returns: failed like any other
                walk.error = asyncio.CancelledError()
        except BaseException as error:  # noqa: BLE001  see above
            walk.error = error
        walk.transaction.end()
        walk.is_over = True
        self._arrived.append(walk)
        self._left -= 1
        if self._is_on and (walk.error is not None or walk.transaction.overran):
            self._errands.give_up()  # whatever is answered would not be kept
        self._wake()

    def _look_at_those_who_arrived(self, *, unanswered: bool = False) -> None:
        """Tell that they have ended, and whether all can go on.

        Raises:
            TakenBackError: one of them has failed.
        """
        for walk in self._end_those_who_arrived():
            self._require_brief(walk, unanswered=unanswered)
            if walk.error is not None:
                self._desk.trust.failed(walk.handler.name)
                raise TakenBackError(unusable=unanswered)

    def _look_for_strays(self) -> None:
        """Those who wait for anything but their statement may go on, but are not to run beside others any more."""
        for walk in self._walks:
            if not (walk.is_over or walk.transaction.is_waiting):
                self._desk.trust.strayed(walk.handler.name)
                self._require_brief(walk)

    def _require_brief(self, walk: _Walk, *, unanswered: bool = False) -> None:
        if walk.transaction.overran:
            self._desk.trust.strayed(walk.handler.name)
            raise TakenBackError(unusable=unanswered)

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
        if self._loop.time() >= deadline and not (self._arrived or self._errands.are_waiting):
            self._are_late()
            raise TakenBackError

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _carry_out(self, deadline: float) -> None:
        try:
            refused = await self._errands.carry_out(deadline - self._loop.time())
        except ErrandsVoidError:
            raise TakenBackError from None
        except TimeoutError:
            self._look_at_those_who_arrived(unanswered=True)
            self._are_late()
            raise TakenBackError(unusable=True) from None
        if refused is not None:
            guilty = next(walk for walk in self._walks if walk.transaction is refused)
            self._desk.trust.failed(guilty.handler.name)
            if refused.refusal in CONFLICTS and len(self._walks) > 1:
                self._desk.met_a_conflict(guilty.handler.name, although_apart=self._although_apart)
            raise TakenBackError

    def _are_late(self) -> None:
        """Which of them has the others wait cannot be told, so each has to show anew that it does not."""
        for walk in self._walks:
            if not walk.is_over:
                self._desk.trust.took_long(walk.handler.name)

    async def call_off(self, patience: timedelta, why: asyncio.CancelledError | None) -> None:
        """Cancel those who are still on their way; who does not end in time is left behind and can do no harm.

        why: that the worker is being stopped. Else they have not failed: they will be run again.
        """
        self._is_on = False
        self._end_those_who_arrived()
        going = [walk for walk in self._walks if not walk.is_over]
        for walk in going:
            walk.transaction.end()
            walk.task.cancel()
        if going:
            await asyncio.wait([walk.task for walk in going], timeout=patience.total_seconds())
        for walk in going:
            runs.undo(walk.activity, why)
            if not walk.task.done():
                self._desk.probe.tell(HandlerRanAway(walk.delivery, walk.handler.name))

    def part(self) -> None:
        """Know each other no longer: what they asked and were answered is not to wait for the garbage collector."""
        self._is_on = False
        self._errands.on_errand = _ignore
        self._walks.clear()
        self._arrived.clear()

    def _end_those_who_arrived(self) -> list[_Walk]:
        arrived, self._arrived = self._arrived, []
        for walk in arrived:
            self._desk.left(walk.delivery, walk.handler.name, walk.activity, walk.error, self._began)
        return arrived


def _ignore() -> None:
    """They have parted."""
