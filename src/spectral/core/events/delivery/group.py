"""A group: rows whose handlers share a transaction of a lane, and what one of them may do to it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.dispatch import may_pass, run
from spectral.core.events.failure import SubstrateLostError, TransactionMisusedError
from spectral.core.events.ports import Conclusion, GroupVoidError
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Lane

NOT_SERIALIZABLE: Final = "40001"
"""Somebody was quicker: Postgres asks for the whole transaction to be run again, and then it may well stand."""

CONFLICTS: Final = frozenset({"40P01", NOT_SERIALIZABLE})
"""Deadlock, serialization failure: two transactions that cannot both be kept, and the other one has gone on by now."""

_CONTENTION: Final = CONFLICTS | {"55P03"}
"""Deadlock, serialization failure, lock timeout: perhaps the doing of a row before it in the same transaction."""

_OUTDATED: Final = frozenset({"0A000", "26000"})
"""A statement that the driver has prepared is not what it was: a table has other columns, or its name is forgotten."""

_LONG: Final = 0.1
_LONG_ELSEWHERE: Final = 0.02
"""Seconds. A handler that takes so long is not brief, in all or besides its statement."""

DISCONNECTIONS: Final = 3
"""So often the database is to blame, and not the row under which the connection was lost."""


@dataclass(slots=True)
class Group:
    """Rows whose transaction is open, and what to write of them.

    current: those that are being run. together: without savepoints. is_only: no other of its handler's is open.
    kept, failures: of the row that was begun last, the handlers that did well in the transaction, and those that did
    not, there or outside.
    """

    conclusions: list[Conclusion] = field(default_factory=list)
    current: list[Delivery] = field(default_factory=list)
    together: bool = False
    is_only: bool = False
    kept: list[Handler] = field(default_factory=list)
    failures: list[tuple[Handler, BaseException]] = field(default_factory=list)

    def begin(self, delivery: Delivery) -> None:
        """It is its turn."""
        self.current.append(delivery)
        self.kept.clear()
        self.failures.clear()

    def deliveries(self) -> list[Delivery]:
        """Those that have run."""
        return [conclusion.delivery for conclusion in self.conclusions]

    def everything(self) -> list[Delivery]:
        """Those that have run, and those that are being run."""
        return [*self.deliveries(), *self.current]


class RunAloneError(Exception):
    """The row has to be run again in a transaction of its own."""


class TakenBackError(Exception):
    """Nothing of the group is to be kept, and its rows are to be run again.

    Somebody has lost trust over it, or the connection is to be another, so it will not come to the same. `unusable`:
    the connection still waits for an answer, or what it remembers is out of date.
    """

    def __init__(self, *, unusable: bool = False) -> None:
        super().__init__()
        self.unusable = unusable


class VoidedError(Exception):
    """A handler took the transaction of the whole group down with it; `undone`: which is as it was before."""

    def __init__(self, handler: Handler, error: BaseException, *, undone: bool = False) -> None:
        super().__init__(handler.name)
        self.handler = handler
        self.error = error
        self.undone = undone


async def run_in_transaction(
    desk: Desk, lane: Lane, group: Group, handler: Handler, delivery: Delivery
) -> BaseException | None:
    """Run it in the transaction and keep what it wrote, or undo that, with what it takes along, and answer why.

    Raises:
        VoidedError: nothing of the group can be kept.
        RunAloneError: somebody before it in the transaction, or beside it, may be why it failed.
        TakenBackError: the connection may be why it failed.
        SubstrateLostError: the connection is lost.
    """
    began = time.perf_counter()
    execution = await run(desk, handler, delivery, lane.transaction)
    error = execution.error
    if error is not None:
        _require_own_failure(desk, handler, delivery, error, ran_away=execution.ran_away)
    try:
        if error is None:
            try:
                lane.accept()
            except TransactionMisusedError as misused:
                error = misused
                desk.blame(delivery, handler.name, error)
            else:
                group.kept.append(handler)
                desk.trust.ran(handler.name, plainly=lane.was_plain, briefly=lane.was_brief)
                seconds = time.perf_counter() - began
                if seconds > _LONG or seconds - lane.answered_after > _LONG_ELSEWHERE:
                    desk.trust.took_long(handler.name)
                return None
        desk.trust.failed(handler.name)
        await (lane.undo_together() if group.together else lane.undo())
    except GroupVoidError as void:
        desk.trust.failed(handler.name)
        raise VoidedError(handler, error or TransactionMisusedError(str(void))) from None
    except SubstrateLostError as lost:
        # The database's failure and not the handler's, unless it happens again and again.
        if desk.count_disconnection(delivery) < DISCONNECTIONS:
            raise
        raise VoidedError(handler, error or lost) from None
    _require_own_doing(desk, group, handler, delivery, error)
    return error


def _require_own_doing(desk: Desk, group: Group, handler: Handler, delivery: Delivery, error: BaseException) -> None:
    """Raise that it is to be run alone if others may be why it failed, and it has been undone."""
    state = sqlstate_of(error)
    shared = bool(group.conclusions)
    if state in CONFLICTS:
        # Even the first row of a group, which has locked nothing, may be in others' way: in the queue for a row.
        desk.met_a_conflict(handler.name, although_apart=group.is_only or not shared)
    if shared and state in _CONTENTION:
        raise RunAloneError
    if state in CONFLICTS and may_pass(error, handler) and desk.may_run_again(delivery):
        raise RunAloneError


def _require_own_failure(
    desk: Desk, handler: Handler, delivery: Delivery, error: BaseException, *, ran_away: bool
) -> None:
    """Raise what it is if it is more, or less, than a handler that has failed."""
    if ran_away:
        desk.trust.failed(handler.name)
        raise VoidedError(handler, error)
    if sqlstate_of(error) in _OUTDATED and desk.may_renew_for(delivery):
        raise TakenBackError(unusable=True)
