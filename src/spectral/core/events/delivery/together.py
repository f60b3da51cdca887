"""Together: rows of trusted handlers, in one transaction without savepoints; those of brief ones at the same time.

Which rows, and how many: as many as are likely to be through when the commit is due, for those that are not would be
locked in vain.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.abreast import run_abreast
from spectral.core.events.delivery.dispatch import HANDLED
from spectral.core.events.delivery.group import VoidedError, run_in_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.delivery.group import Group
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Lane

_FIRST_STRETCH: Final = 10


class Together:
    """What one lane does without savepoints.

    is_solitary: whether a row has to have a transaction of its own.
    """

    def __init__(self, lane: Lane, desk: Desk, is_solitary: Callable[[Delivery, Sequence[Handler]], bool]) -> None:
        self._lane = lane
        self._desk = desk
        self._is_solitary = is_solitary
        self._stretch = _FIRST_STRETCH  # so many are likely to be through when the commit is due
        self._had_its_turn = False
        times = desk.settings.times
        self._commit_within = desk.settings.commit_within.total_seconds()
        # Rows that are locked are not renewed, so the leases of a group have to last until its last handler has ended.
        self._longest = (times.lease - times.grace - times.patience).total_seconds() - self._commit_within

    async def fill(self, group: Group, rows: deque[Delivery]) -> bool:
        """Run those rows that may do without savepoints; false: there are none, or not now."""
        runs = self._trusted_runs(rows)
        # Whoever has to wait for them has the next turn.
        if not runs or (self._had_its_turn and rows[0] is not runs[0][0]):
            self._had_its_turn = False
            return False
        if not await self._lane.begin_together(runs):
            await self._lane.abandon()
            return False
        group.together = self._had_its_turn = True
        waiting = deque(runs)
        abreast = all(map(self._is_brief, runs))  # asked anew: other lanes learn too
        began = time.perf_counter()
        try:
            await (self._run_abreast if abreast else self._run_one_by_one)(group, waiting)
        finally:
            # Those whose turn has not come keep their place: before others they would make them wait for ever.
            begun = {id(delivery) for delivery, _ in runs[: len(runs) - len(waiting)]}
            left = [delivery for delivery in rows if id(delivery) not in begun]
            rows.clear()
            rows.extend(left)
        done = len(group.conclusions)
        if waiting:
            self._stretch = max(done, 1)
        elif abreast and time.perf_counter() - began > self._commit_within:
            self._stretch = max(done // 2, 1)
        else:
            self._stretch = min(max(self._stretch, done * 2), self._desk.settings.batch)
        return True

    def _trusted_runs(self, rows: Sequence[Delivery]) -> list[tuple[Delivery, Handler]]:
        """The rows and what is to be run: brief handlers or others, as the first one is."""
        runs: list[tuple[Delivery, Handler]] = []
        for delivery in rows:
            handlers = self._desk.routes.handlers_for(delivery)
            # One that has failed may do so again; and between several handlers of a row the session has to be reset.
            if len(handlers) > 1 or delivery.attempts > 1 or self._is_solitary(delivery, handlers):
                continue
            runs.extend((delivery, handler) for handler in handlers if self._is_trusted(handler))
            if len(runs) == self._stretch:
                break
        return [run for run in runs if self._is_brief(run) == self._is_brief(runs[0])]

    def _is_trusted(self, handler: Handler) -> bool:
        return handler.timeout_seconds < self._longest and self._desk.trust.has(handler.name)

    def _is_brief(self, run: tuple[Delivery, Handler]) -> bool:
        _, handler = run
        return self._desk.trust.is_brief(handler.name)

    async def _run_one_by_one(self, group: Group, waiting: deque[tuple[Delivery, Handler]]) -> None:
        """Until the commit is due; none after one that may have left something behind in the session."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._commit_within
        while waiting and not self._desk.stopping and (not group.conclusions or clock() < deadline):
            delivery, handler = waiting.popleft()
            group.begin(delivery)
            self._desk.begin(delivery)
            error = await run_in_transaction(self._desk, self._lane, group, handler, delivery)
            if error is not None:
                raise VoidedError(handler, error, undone=True)
            group.conclusions.append(self._desk.conclusion(delivery, HANDLED, [handler.name]))
            group.current.clear()
            if not self._lane.was_plain:
                return

    async def _run_abreast(self, group: Group, waiting: deque[tuple[Delivery, Handler]]) -> None:
        """All of them at the same time."""
        if self._desk.stopping:
            return
        runs = list(waiting)
        waiting.clear()
        for delivery, _ in runs:
            group.begin(delivery)
            self._desk.begin(delivery)
        await run_abreast(self._desk, self._lane.errands(), runs)
        group.kept.append(runs[-1][1])
        group.conclusions.extend([self._desk.conclusion(each, HANDLED, [handler.name]) for each, handler in runs])
        group.current.clear()
