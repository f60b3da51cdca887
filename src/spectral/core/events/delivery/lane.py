"""A lane: transactional handlers on one connection, several rows to a commit.

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
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.delivery.blame import acquitted, cannot_commit, is_conflict
from spectral.core.events.delivery.dispatch import conclude, run, used_up
from spectral.core.events.delivery.group import (
    CONFLICTS,
    DISCONNECTIONS,
    NOT_SERIALIZABLE,
    Group,
    RunAloneError,
    TakenBackError,
    VoidedError,
    run_in_transaction,
)
from spectral.core.events.delivery.together import Together
from spectral.core.events.delivery.trust import Sharing
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.outcome import AlreadyHandled, Released
from spectral.core.events.ports import AcceptRefusedError, CommitRefusedError, Gate
from spectral.core.events.probe import SettlementWritten, SubstrateLost
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.backlog import Backlog
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Conclusion, Lane
    from spectral.core.events.routes import Limit

_FIRST_PAUSE: Final = timedelta(milliseconds=250)


class LaneLoop:
    """Runs what waits in the backlog."""

    def __init__(self, lane: Lane, desk: Desk, backlog: Backlog, limits: Mapping[str, Limit]) -> None:
        self._lane = lane
        self._desk = desk
        self._backlog = backlog
        self._limits = limits
        self._backoff = Backoff(_FIRST_PAUSE, desk.settings.times.poll_deaf)
        self._together = Together(lane, desk, self._is_solitary)

    async def run(self) -> None:
        """Run until the worker stops; what was begun when it is cancelled is given back."""
        rows: deque[Delivery] = deque()
        try:
            while not self._desk.stopping:
                # No more than it may get done at one go: what a lane has in its hand no other can run.
                most = max(self._desk.settings.small_batch, self._together.stretch)
                rows = await self._backlog.take(most)
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
        group = Group()
        try:
            if not await self._together.fill(group, rows):
                await self._fill(group, rows)
            await self._commit(group)
        except AcceptRefusedError:
            again = group.everything()
            for delivery in again:
                self._desk.isolate(delivery)
            rows.extendleft(reversed(again))
            await self._lane.abandon()
        except RunAloneError:
            self._desk.isolate(group.current[0])
            rows.extendleft(reversed(group.everything()))
            await self._lane.abandon()
        except TakenBackError as taken:
            rows.extendleft(reversed(group.everything()))
            await (self._lane.drop() if taken.unusable else self._lane.abandon())
        except VoidedError as voided:
            rows.extendleft(reversed([*group.deliveries(), *acquitted(self._desk, group, voided)]))
            await (self._lane.abandon() if voided.undone else self._lane.drop())
        except CommitRefusedError as refusal:
            self._divide(group, rows, refusal)
            await self._lane.abandon()
        except SubstrateLostError as lost:
            self._backlog.put(self._suspected(group, lost))
            await self._lane.drop()
            raise
        except asyncio.CancelledError:
            rows.extendleft(reversed(group.everything()))
            raise

    def _suspected(self, group: Group, lost: SubstrateLostError) -> list[Delivery]:
        """The rows that were under way when the connection was lost, each to be run alone, behind the others.

        One whose commit takes the connection down every time is not the database's failure but its own.
        """
        again = group.everything()
        for delivery in again:
            self._desk.isolate(delivery)
        if len(group.conclusions) == 1 and not group.current:
            (delivery,) = again
            if self._desk.count_disconnection(delivery) >= DISCONNECTIONS:
                cannot_commit(self._desk, group, lost)
                return []
        return again

    async def _fill(self, group: Group, rows: deque[Delivery]) -> None:
        """Run rows into the group, each behind its own savepoint."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._desk.settings.commit_within.total_seconds()
        most = self._desk.settings.small_batch
        while rows and not self._desk.stopping and len(group.conclusions) < most:
            if group.conclusions and clock() >= deadline:
                return
            handlers = self._desk.routes.handlers_for(rows[0])
            solitary = self._is_solitary(rows[0], handlers) or not all(map(self._shares_freely, handlers))
            if solitary and group.conclusions:
                return
            delivery = rows.popleft()
            group.begin(delivery)
            if not solitary:
                await self._deliver(delivery, handlers, group)
            elif not await self._deliver_within_limits(delivery, handlers, group):
                rows.appendleft(delivery)
            group.current.clear()
            if solitary:
                return

    def _is_solitary(self, delivery: Delivery, handlers: Sequence[Handler]) -> bool:
        """Whether others should not wait for it inside one transaction, or it for them."""
        for handler in handlers:
            if not handler.transactional or handler.name in self._limits:
                return True
        return self._desk.is_isolated(delivery)

    def _shares_freely(self, handler: Handler) -> bool:
        return self._desk.trust.sharing(handler.name) is Sharing.FREELY

    async def _deliver_within_limits(self, delivery: Delivery, handlers: Sequence[Handler], group: Group) -> bool:
        """False: when it was its turn, the worker was being stopped, and nothing was begun."""
        async with AsyncExitStack() as limits:
            for name in sorted(handler.name for handler in handlers if handler.name in self._limits):
                await limits.enter_async_context(self._limits[name])
            if self._desk.stopping:
                return False
            # Plain ones first: nobody should hold a transaction open while they run.
            await self._deliver(delivery, sorted(handlers, key=lambda each: each.transactional), group)
            return True

    async def _deliver(self, delivery: Delivery, handlers: Sequence[Handler], group: Group) -> None:
        # Of a row that is run again: what was done outside of its transaction was not undone with that.
        done, failed = self._desk.run_before(delivery)
        group.failures.extend(failed)
        ran = [*done, *(handler.name for handler, _ in failed)]
        before: Handler | None = None
        self._desk.begin(delivery)
        for handler in handlers:
            if not handler.transactional and handler.name in ran:
                continue
            gate = await self._gate(handler, delivery, before)
            if gate is Gate.FENCED:
                await self._fenced(delivery)
                return
            if gate is Gate.BUSY:
                group.conclusions.append(self._desk.conclusion(delivery, Released(), tuple(ran)))
                return
            if gate is Gate.HANDLED:
                continue
            error = await self._run(handler, delivery, group)
            ran.append(handler.name)
            before = handler if handler.transactional and not handler.is_exhausted(delivery) else before
            if error is not None:
                group.failures.append((handler, error))
        outcome = conclude(delivery, group.failures, self._desk.random) if ran else AlreadyHandled()
        group.conclusions.append(self._desk.conclusion(delivery, outcome, tuple(ran)))

    async def _gate(self, handler: Handler, delivery: Delivery, before: Handler | None) -> Gate:
        """A plain handler's key is written when the row is settled; its gate is what the claim saw.

        `before` is the last handler of this row that ran in the transaction. If nobody can go on after it, that is its
        failure: to run the row alone would come to the same.
        """
        if not handler.transactional or handler.is_exhausted(delivery):
            return Gate.RUN
        try:
            gate = await self._lane.begin(delivery, handler.name)
        except AcceptRefusedError as refusal:
            if before is None:
                raise
            raise VoidedError(before, refusal.__cause__ or refusal) from None
        if gate in (Gate.RUN, Gate.HANDLED):  # it holds the row
            self._desk.dispel(delivery)
        return gate

    async def _stood(self, conclusions: Sequence[Conclusion], lost: AbstractSet[UUID]) -> dict[UUID, Conclusion]:
        gone = [each.delivery for each in conclusions if each.delivery.lease.row_id in lost]
        return await self._lane.stood(self._desk.doubted(gone))

    async def _fenced(self, delivery: Delivery) -> None:
        """The row is no longer this worker's: perhaps by its own doing, whose answer was lost."""
        stood = await self._lane.stood(self._desk.doubted([delivery]))
        if stood:
            self._desk.settled_together(list(stood.values()), stood.keys(), stood)
        else:
            self._desk.lost(delivery)

    async def _run(self, handler: Handler, delivery: Delivery, group: Group) -> BaseException | None:
        if handler.is_exhausted(delivery):
            return used_up(handler)
        if handler.transactional:
            return await run_in_transaction(self._desk, self._lane, group, handler, delivery)
        error = (await run(self._desk, handler, delivery)).error
        if error is None:
            self._desk.took_effect(delivery, handler.name)
        else:
            self._desk.took_no_effect(delivery, handler, error)
        return error

    async def _commit(self, group: Group) -> None:
        if not group.conclusions:
            await self._lane.abandon()
            return
        reached("commit.before")
        began = time.perf_counter()
        lost: set[UUID] = set()
        try:
            if group.together:
                await self._lane.commit_together(len(group.conclusions))
            else:
                lost = await self._lane.commit(group.conclusions)
            stood = await self._stood(group.conclusions, lost) if lost else {}
        except (SubstrateLostError, asyncio.CancelledError):
            self._desk.doubt(group.conclusions)
            raise
        reached("commit.after")
        self._desk.probe.tell(SettlementWritten(len(group.conclusions), time.perf_counter() - began))
        self._desk.settled_together(group.conclusions, lost, stood)

    def _divide(self, group: Group, rows: deque[Delivery], refusal: CommitRefusedError) -> None:
        """A commit was refused: of one row, that is its failure; of several, each has to try alone.

        If others were in the way, as they are where transactions are serializable, it is nobody's failure.
        """
        error = refusal.__cause__ or refusal
        state = sqlstate_of(error)
        # Without savepoints, a key that somebody else has written too is refused as not serializable.
        may_be_a_key = group.together and state == NOT_SERIALIZABLE
        if len(group.conclusions) > 1 and state in CONFLICTS and not may_be_a_key:
            for name in {name for conclusion in group.conclusions for name in conclusion.ran}:
                self._desk.met_a_conflict(name, although_apart=group.is_only)
        if group.together:
            self._together.start_small()
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
        if is_conflict(error, group.kept) and self._desk.may_run_again(conclusion.delivery):
            self._desk.isolate(conclusion.delivery)
            rows.appendleft(conclusion.delivery)
        else:
            cannot_commit(self._desk, group, error)
