"""A lane: transactional handlers, one after the other on one connection, several rows to a commit.

Effect, dedup record and ack of a row stand or fall together; one row's failure rolls back that row alone, to its
savepoint. A group whose commit fails, or whose transaction is lost, has done nothing, and its rows are run again: the
fence and the gate say which of them are already through. After a failed commit they run one by one, so that the guilty
one stands alone. Rows of trusted handlers need no savepoints: if one fails, its group is run again with them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.abreast import TakenBackError, run_abreast
from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.delivery.dispatch import HANDLED, conclude, run, used_up
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError, TransactionMisusedError
from spectral.core.events.outcome import AlreadyHandled, Released
from spectral.core.events.ports import AcceptRefusedError, CommitRefusedError, Conclusion, Gate, GroupVoidError
from spectral.core.events.probe import SettlementWritten, SubstrateLost
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.backlog import Backlog
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Lane
    from spectral.core.events.routes import Limit

_CONTENTION: Final = frozenset({"40P01", "40001", "55P03"})
"""Deadlock, serialization failure, lock timeout: perhaps the doing of a row before it in the same transaction."""

_DISCONNECTIONS: Final = 3
_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_FIRST_STRETCH: Final = 10
_LONG: Final = 0.1
"""Seconds. A handler that takes so long is not brief."""


@dataclass(slots=True)
class _Group:
    """Rows whose transaction is open, and what to write of them."""

    conclusions: list[Conclusion] = field(default_factory=list)
    together: bool = False  # without savepoints

    def deliveries(self) -> list[Delivery]:
        return [conclusion.delivery for conclusion in self.conclusions]


class _RunAloneError(Exception):
    """The row has to be run again in a transaction of its own."""


class _VoidedError(Exception):
    """A handler took the transaction of the whole group down with it; `undone`: which is as it was before."""

    def __init__(self, handler: Handler, error: BaseException, *, undone: bool = False) -> None:
        super().__init__(handler.name)
        self.handler = handler
        self.error = error
        self.undone = undone


class LaneLoop:
    """Runs what waits in the backlog."""

    def __init__(self, lane: Lane, desk: Desk, backlog: Backlog, limits: Mapping[str, Limit]) -> None:
        self._lane = lane
        self._desk = desk
        self._backlog = backlog
        self._limits = limits
        self._backoff = Backoff(_FIRST_PAUSE, desk.settings.times.poll_deaf)
        self._stretch = _FIRST_STRETCH  # so many trusted rows are likely to be through when the commit is due
        self._was_together = False  # whether the group before was of such rows
        times = desk.settings.times
        # Rows that are locked are not renewed, so the leases of a group have to last until its last handler has ended.
        longest = times.lease - times.grace - times.patience - desk.settings.commit_within
        self._longest = longest.total_seconds()

    async def run(self) -> None:
        """Run until the worker stops; what was begun when it is cancelled is given back."""
        rows: deque[Delivery] = deque()
        try:
            while not self._desk.stopping:
                rows = await self._backlog.take(self._desk.settings.batch)
                try:
                    await self._group(rows)
                    self._backoff.reset()
                except SubstrateLostError as lost:
                    self._put_back(rows)
                    await self._pause(lost)
                self._put_back(rows)
        finally:
            self._desk.release(rows)
            await self._lane.drop()

    def _put_back(self, rows: deque[Delivery]) -> None:
        self._backlog.put_back(rows)
        rows.clear()

    async def _pause(self, lost: SubstrateLostError) -> None:
        pause = self._backoff.next()
        self._desk.probe.tell(SubstrateLost("run handlers", describe(lost), pause))
        await self._backlog.closed(within=pause)

    async def _group(self, rows: deque[Delivery]) -> None:
        """Run rows from the left until the commit is due; those that are not through are in `rows` again.

        Wherever it is interrupted, each row is first put where it belongs; what takes time comes after that.
        """
        group = _Group()
        current: list[Delivery] = []
        try:
            if not await self._fill_together(group, rows, current):
                await self._fill(group, rows, current)
            await self._commit(group)
        except AcceptRefusedError:
            again = [*group.deliveries(), *current]
            for delivery in again:
                self._desk.isolate(delivery)
            rows.extendleft(reversed(again))
            await self._lane.abandon()
        except _RunAloneError:
            self._desk.isolate(current[0])
            rows.extendleft(reversed([*group.deliveries(), *current]))
            await self._lane.abandon()
        except TakenBackError as taken:
            rows.extendleft(reversed([*group.deliveries(), *current]))
            await (self._lane.drop() if taken.unanswered else self._lane.abandon())
        except _VoidedError as voided:
            rows.extendleft(reversed([*group.deliveries(), *self._acquitted(group, current, voided)]))
            await (self._lane.abandon() if voided.undone else self._lane.drop())
        except CommitRefusedError as refusal:
            self._divide(group, rows, refusal)
            await self._lane.abandon()
        except SubstrateLostError as lost:
            self._backlog.put(self._suspected(group, current, lost))
            await self._lane.drop()
            raise
        except asyncio.CancelledError:
            rows.extendleft(reversed([*group.deliveries(), *current]))
            raise

    def _acquitted(self, group: _Group, current: list[Delivery], voided: _VoidedError) -> list[Delivery]:
        """The row whose handler has voided its group, if it is to be run again; if not, it has failed.

        Of a group without savepoints only the first row's key was written. Whoever has handled another one meanwhile,
        before it in the group or elsewhere, may be why it failed: behind its own gate it will be known.
        """
        if voided.undone and group.conclusions:
            return current
        (guilty,) = current
        outcome = conclude(guilty, [(voided.handler, voided.error)], self._desk.random)
        self._desk.conclude(guilty, outcome, [voided.handler.name])
        return []

    def _suspected(self, group: _Group, current: list[Delivery], lost: SubstrateLostError) -> list[Delivery]:
        """The rows that were under way when the connection was lost, each to be run alone, behind the others.

        One whose commit takes the connection down every time is not the database's failure but its own.
        """
        again = [*group.deliveries(), *current]
        for delivery in again:
            self._desk.isolate(delivery)
        if len(group.conclusions) == 1 and not current:
            (delivery,) = again
            if self._desk.count_disconnection(delivery) >= _DISCONNECTIONS:
                self._fail(delivery, lost)
                return []
        return again

    async def _fill_together(self, group: _Group, rows: deque[Delivery], current: list[Delivery]) -> bool:
        """Run those rows that may do without savepoints; false: there are none, or not now."""
        runs = self._trusted_runs(rows)
        # Whoever has to wait for them has the next turn.
        if not runs or (self._was_together and rows[0] is not runs[0][0]):
            self._was_together = False
            return False
        if not await self._lane.begin_together(runs):
            await self._lane.abandon()
            return False
        group.together = self._was_together = True
        waiting = deque(runs)
        try:
            if self._is_brief(runs[0]):
                await self._run_abreast(group, waiting, current)
            else:
                await self._run_together(group, waiting, current)
        finally:
            # Those whose turn has not come keep their place: before others they would make them wait for ever.
            begun = {id(delivery) for delivery, _ in runs[: len(runs) - len(waiting)]}
            left = [delivery for delivery in rows if id(delivery) not in begun]
            rows.clear()
            rows.extend(left)
        done = len(group.conclusions)
        self._stretch = max(done, 1) if waiting else min(max(self._stretch, done * 2), self._desk.settings.batch)
        return True

    def _is_brief(self, run: tuple[Delivery, Handler]) -> bool:
        _, handler = run
        return self._desk.trust.is_brief(handler.name)

    async def _run_abreast(
        self, group: _Group, waiting: deque[tuple[Delivery, Handler]], current: list[Delivery]
    ) -> None:
        """Run all of them at the same time."""
        runs = list(waiting)
        waiting.clear()
        current.extend([delivery for delivery, _ in runs])
        for delivery in current:
            self._desk.begin(delivery)
        began = time.perf_counter()
        await run_abreast(self._desk, self._lane.errands(), runs)
        if time.perf_counter() - began > _LONG:
            for name in {handler.name for _, handler in runs}:
                self._desk.trust.took_long(name)
        group.conclusions.extend([self._desk.conclusion(each, HANDLED, [handler.name]) for each, handler in runs])
        current.clear()

    def _trusted_runs(self, rows: Sequence[Delivery]) -> list[tuple[Delivery, Handler]]:
        """The rows that need no savepoint, no more than are likely to be through in time, and what is to be run."""
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

    async def _run_together(
        self, group: _Group, waiting: deque[tuple[Delivery, Handler]], current: list[Delivery]
    ) -> None:
        """Run them until the commit is due; none after one that may have left something behind in the session."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._desk.settings.commit_within.total_seconds()
        while waiting and not self._desk.stopping and (not group.conclusions or clock() < deadline):
            delivery, handler = waiting.popleft()
            current.append(delivery)
            self._desk.begin(delivery)
            error = await self._run_in_transaction(handler, delivery, group)
            if error is not None:
                raise _VoidedError(handler, error, undone=True)
            group.conclusions.append(self._desk.conclusion(delivery, HANDLED, [handler.name]))
            current.clear()
            if not self._lane.was_plain:
                return

    async def _fill(self, group: _Group, rows: deque[Delivery], current: list[Delivery]) -> None:
        """Run rows into the group; `current` is the one that is being run."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._desk.settings.commit_within.total_seconds()
        while rows and not self._desk.stopping and (not group.conclusions or clock() < deadline):
            handlers = self._desk.routes.handlers_for(rows[0])
            solitary = self._is_solitary(rows[0], handlers)
            if solitary and group.conclusions:
                return
            delivery = rows.popleft()
            current.append(delivery)
            if solitary:
                await self._deliver_within_limits(delivery, handlers, group)
            else:
                await self._deliver(delivery, handlers, group)
            current.clear()
            if solitary:
                return

    def _is_solitary(self, delivery: Delivery, handlers: Sequence[Handler]) -> bool:
        """Whether others should not wait for it inside one transaction, or it for them."""
        for handler in handlers:
            if not handler.transactional or handler.name in self._limits:
                return True
        return self._desk.is_isolated(delivery)

    async def _deliver_within_limits(self, delivery: Delivery, handlers: Sequence[Handler], group: _Group) -> None:
        async with AsyncExitStack() as limits:
            for name in sorted(handler.name for handler in handlers if handler.name in self._limits):
                await limits.enter_async_context(self._limits[name])
            # Plain ones first: nobody should hold a transaction open while they run.
            await self._deliver(delivery, sorted(handlers, key=lambda each: each.transactional), group)

    async def _deliver(self, delivery: Delivery, handlers: Sequence[Handler], group: _Group) -> None:
        failures: list[tuple[Handler, BaseException]] = []
        ran: list[str] = []
        before: Handler | None = None
        self._desk.begin(delivery)
        for handler in handlers:
            if self._desk.has_taken_effect(delivery, handler.name):
                continue
            gate = await self._gate(handler, delivery, before)
            if gate is Gate.FENCED:
                self._desk.lost(delivery)
                return
            if gate is Gate.BUSY:
                group.conclusions.append(self._desk.conclusion(delivery, Released(), ran))
                return
            if gate is Gate.HANDLED:
                continue
            error = await self._run(handler, delivery, group)
            ran.append(handler.name)
            before = handler if handler.transactional and not handler.is_exhausted(delivery) else before
            if error is not None:
                failures.append((handler, error))
        outcome = conclude(delivery, failures, self._desk.random) if ran else AlreadyHandled()
        group.conclusions.append(self._desk.conclusion(delivery, outcome, ran))

    async def _gate(self, handler: Handler, delivery: Delivery, before: Handler | None) -> Gate:
        """A plain handler's key is written when the row is settled; its gate is what the claim saw.

        `before` is the last handler of this row that ran in the transaction. If nobody can go on after it, that is its
        failure: to run the row alone would come to the same.
        """
        if not handler.transactional or handler.is_exhausted(delivery):
            return Gate.RUN
        try:
            return await self._lane.begin(delivery, handler.name)
        except AcceptRefusedError as refusal:
            if before is None:
                raise
            raise _VoidedError(before, refusal.__cause__ or refusal) from None

    async def _run(self, handler: Handler, delivery: Delivery, group: _Group) -> BaseException | None:
        if handler.is_exhausted(delivery):
            return used_up(handler)
        if handler.transactional:
            return await self._run_in_transaction(handler, delivery, group)
        error = (await run(self._desk, handler, delivery)).error
        if error is None:
            self._desk.took_effect(delivery, handler.name)
        return error

    async def _run_in_transaction(self, handler: Handler, delivery: Delivery, group: _Group) -> BaseException | None:
        """Run it in the transaction and keep what it wrote, or undo that, with what it takes along, and answer why."""
        began = time.perf_counter()
        execution = await run(self._desk, handler, delivery, self._lane.transaction)
        error = execution.error
        if execution.ran_away and error is not None:
            self._desk.trust.failed(handler.name)
            raise _VoidedError(handler, error)
        try:
            if error is None:
                try:
                    self._lane.accept()
                except TransactionMisusedError as misused:
                    error = misused
                else:
                    self._desk.trust.ran(handler.name, plainly=self._lane.was_plain, briefly=self._lane.was_brief)
                    if time.perf_counter() - began > _LONG:
                        self._desk.trust.took_long(handler.name)
                    return None
            self._desk.trust.failed(handler.name)
            await (self._lane.undo_together() if group.together else self._lane.undo())
        except GroupVoidError as void:
            self._desk.trust.failed(handler.name)
            raise _VoidedError(handler, error or TransactionMisusedError(str(void))) from None
        except SubstrateLostError as lost:
            # The database's failure and not the handler's, unless it happens again and again.
            if self._desk.count_disconnection(delivery) < _DISCONNECTIONS:
                raise
            raise _VoidedError(handler, error or lost) from None
        if group.conclusions and sqlstate_of(error) in _CONTENTION:
            raise _RunAloneError
        return error

    async def _commit(self, group: _Group) -> None:
        if not group.conclusions:
            await self._lane.abandon()
            return
        reached("commit.before")
        began = time.perf_counter()
        if group.together:
            await self._lane.commit_together(len(group.conclusions))
            stood = {each.delivery.lease.row_id for each in group.conclusions}
        else:
            stood = await self._lane.commit(group.conclusions)
        reached("commit.after")
        self._desk.probe.tell(SettlementWritten(len(group.conclusions), time.perf_counter() - began))
        self._desk.settled_together(group.conclusions, stood)

    def _divide(self, group: _Group, rows: deque[Delivery], refusal: CommitRefusedError) -> None:
        """A commit was refused: of one row, that is its failure; of several, each has to try alone."""
        if group.together:
            for conclusion in group.conclusions:
                for name in conclusion.ran:
                    self._desk.trust.failed(name)
            rows.extendleft(reversed(group.deliveries()))
            return
        if len(group.conclusions) > 1:
            for delivery in group.deliveries():
                self._desk.isolate(delivery)
            rows.extendleft(reversed(group.deliveries()))
            return
        (conclusion,) = group.conclusions
        if conclusion.ran:
            self._fail(conclusion.delivery, refusal.__cause__ or refusal)
        else:
            # No handler of it ran, so it is none's failure, and what became of it needs no transaction of the lane's.
            self._desk.conclude(conclusion.delivery, conclusion.outcome)

    def _fail(self, delivery: Delivery, error: BaseException) -> None:
        """What its handlers did in the transaction cannot be committed; the last of them is named."""
        handlers = [each for each in self._desk.routes.handlers_for(delivery) if each.transactional]
        for handler in handlers:
            self._desk.trust.failed(handler.name)
        outcome = conclude(delivery, [(each, error) for each in handlers[-1:]], self._desk.random)
        self._desk.conclude(delivery, outcome, [each.name for each in handlers])
