"""Together: rows of trusted handlers, in one transaction without savepoints; those of brief ones at the same time.

Which rows, and how many: as many as are likely to be through when the commit is due, for those that are not would be
locked in vain.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.events.delivery.abreast import run_abreast
from spectral.core.events.delivery.dispatch import HANDLED
from spectral.core.events.delivery.group import VoidedError, run_in_transaction
from spectral.core.events.delivery.trust import Sharing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.delivery.group import Group
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Lane

_FIRST_STRETCH: Final = 10


class _Kind(NamedTuple):
    """What a handler shares a transaction as: with others of its kind."""

    is_brief: bool
    only: str | None


class Together:
    """What one lane does without savepoints.

    is_solitary: whether a row has to have a transaction of its own.
    """

    def __init__(self, lane: Lane, desk: Desk, is_solitary: Callable[[Delivery, Sequence[Handler]], bool]) -> None:
        self._lane = lane
        self._desk = desk
        self._is_solitary = is_solitary
        self.stretch = _FIRST_STRETCH
        """So many rows are likely to be through when the commit is due."""
        self._elsewhere_until: dict[str, float] = {}  # by handler: another lane has the only group of it
        self._had_its_turn = False
        times = desk.settings.times
        self._commit_within = desk.settings.commit_within.total_seconds()
        # Rows that are locked are not renewed, so the leases of a group have to last until its last handler has ended.
        self._longest = (times.lease - times.grace - times.patience).total_seconds() - self._commit_within

    async def fill(self, group: Group, rows: deque[Delivery]) -> bool:
        """Run those rows that may do without savepoints; false: there are none, or not now."""
        elsewhere: set[str] = set()
        while True:
            runs, only = self._trusted_runs(rows, elsewhere)
            # Whoever has to wait for them has the next turn.
            if not runs or (self._had_its_turn and rows[0] is not runs[0][0]):
                self._had_its_turn = False
                return False
            if await self._lane.begin_together(runs, only):
                break
            await self._lane.abandon()
            if only is None or self._desk.stopping:
                return False
            # Others do not wait for it: they have this turn, or their rows one by one. It is asked for once in a turn,
            # however long that takes, for nobody gets on meanwhile.
            elsewhere.add(only)
            self._elsewhere_until[only] = time.monotonic() + self._commit_within
        group.together = self._had_its_turn = True
        group.is_only = only is not None
        waiting = deque(runs)
        # Asked anew: other lanes learn too.
        abreast = all(self._desk.trust.is_brief(handler.name) for _, handler in runs)
        began = time.perf_counter()
        try:
            await (self._run_abreast if abreast else self._run_one_by_one)(group, waiting)
        except BaseException:
            self.start_small()
            raise
        finally:
            # Those whose turn has not come keep their place: before others they would make them wait for ever.
            begun = {id(delivery) for delivery, _ in runs[: len(runs) - len(waiting)]}
            left = [delivery for delivery in rows if id(delivery) not in begun]
            rows.clear()
            rows.extend(left)
        done = len(group.conclusions)
        if waiting:
            self.stretch = max(done, 1)
        elif abreast and time.perf_counter() - began > self._commit_within:
            self.stretch = max(done // 2, 1)
        else:
            self.stretch = min(max(self.stretch, done * 2), self._desk.settings.batch)
        return True

    def start_small(self) -> None:
        """Have the next groups grow from the beginning.

        What cannot be kept is done again, and two lanes that want the same rows meet less often the fewer those are.
        """
        self.stretch = _FIRST_STRETCH

    def _trusted_runs(
        self, rows: Sequence[Delivery], elsewhere: AbstractSet[str]
    ) -> tuple[list[tuple[Delivery, Handler]], str | None]:
        """The rows and what is to be run: those that may share a transaction with the first one.

        And the handler of all of them, if there is to be only one group of it. elsewhere: handlers whose only group
        this lane cannot have now.
        """
        runs: list[tuple[Delivery, Handler]] = []
        kinds: dict[str, _Kind | None] = {}
        for delivery in rows:
            handlers = self._desk.routes.handlers_for(delivery)
            # One that has failed may do so again; and between several handlers of a row the session has to be reset.
            if len(handlers) > 1 or delivery.attempts > 1 or self._is_solitary(delivery, handlers):
                continue
            for handler in handlers:
                if handler.name not in kinds:
                    kinds[handler.name] = None if handler.name in elsewhere else self._kind_of(handler)
                if kinds[handler.name] is not None:
                    runs.append((delivery, handler))
            if len(runs) == self.stretch:
                break
        kind = kinds[runs[0][1].name] if runs else None
        return [run for run in runs if kinds[run[1].name] == kind], None if kind is None else kind.only

    def _kind_of(self, handler: Handler) -> _Kind | None:
        """None: it is not trusted, or shares no transaction."""
        trust = self._desk.trust
        sharing = trust.sharing(handler.name)
        is_trusted = handler.timeout_seconds < self._longest and trust.has(handler.name)
        if not is_trusted or sharing is Sharing.NOT_AT_ALL:
            return None
        if sharing is Sharing.ONE_GROUP and time.monotonic() < self._elsewhere_until.get(handler.name, 0.0):
            return None
        return _Kind(trust.is_brief(handler.name), None if sharing is Sharing.FREELY else handler.name)

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
            group.conclusions.append(self._desk.conclusion(delivery, HANDLED, (handler.name,)))
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
        await run_abreast(self._desk, self._lane.errands(), runs, although_apart=group.is_only)
        group.kept.append(runs[-1][1])
        group.conclusions.extend([self._desk.conclusion(each, HANDLED, (handler.name,)) for each, handler in runs])
        group.current.clear()
