"""Trust: which transactional handlers may share a transaction, which without savepoints, and which a round trip.

A savepoint, a reset of the session and a gate before every row cost more than most handlers do. They are needed where a
handler fails, so that its neighbours keep what they wrote, and where it leaves something in the session that the next
one must not find. A handler that has done neither for a while is trusted not to; should it fail all the same, its whole
group is run again, each row with its own savepoint. So that this stays rare, trust is lost with the first failure.

Whoever shares a transaction keeps what it has locked until all of it is committed. Where handlers write to a few rows
that all of them want, two such transactions meet in a deadlock, which the server notices after a second, again and
again. So for a while there is only one group of a handler that has met one, among all workers that know; and none,
should that one meet another. Rows that nobody shares a transaction with lock little, and not for long.

A brief handler is one that sends one statement and waits for nothing else. Several of them may run at the same time in
one transaction: the server carries out one statement after the other, so it is as if they had come one by one.
"""

from __future__ import annotations

import math
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ENOUGH = 50
"""Runs in a row that were plain and did not fail. At most so often a neighbour's work is done again."""

_NEVER: Final = -1
_APART_AT_FIRST: Final = 60.0
_APART_AT_MOST: Final = 600.0
"""Seconds. To share freely again costs all lanes a second or two if it comes to the same: so it is tried ever later."""

_UNTIL_ALL_KNOW: Final = 10.0  # seconds


class Sharing(Enum):
    """With whom the rows of a handler may share a transaction."""

    FREELY = auto()
    ONE_GROUP = auto()  # with each other, in one at a time
    NOT_AT_ALL = auto()


class Apart(NamedTuple):
    """What a handler may share, for how many seconds, and until when."""

    sharing: Sharing
    seconds: float
    until: float


_NOT_APART: Final = Apart(Sharing.FREELY, 0.0, -math.inf)


class Trust:
    """What one worker has seen of its handlers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._apart: dict[str, Apart] = {}
        self._plain: dict[str, int] = {}  # runs in a row
        self._brief: dict[str, int] = {}

    def has(self, handler_name: str) -> bool:
        """Whether it may go without a savepoint."""
        return self._plain.get(handler_name, 0) >= ENOUGH

    def is_brief(self, handler_name: str) -> bool:
        """Whether it may run beside others."""
        return self._brief.get(handler_name, 0) >= ENOUGH

    def sharing(self, handler_name: str) -> Sharing:
        """With whom its rows may share a transaction, savepoints or not."""
        apart = self._apart.get(handler_name)
        return Sharing.FREELY if apart is None or self.clock() >= apart.until else apart.sharing

    def met_a_conflict(self, handler_name: str, *, although_apart: bool) -> Apart | None:
        """In a transaction that it shared: what others have locked in it may be why.

        although_apart: in the only group of it that there was, or beside that. Answers what it may share from now on;
        none: no less than before.
        """
        now = self.clock()
        sharing, seconds, until = self._apart.get(handler_name, _NOT_APART)
        if now < until:
            # At first there are groups that were begun before, and other workers, which have to learn it too.
            is_early = now < until - seconds + _UNTIL_ALL_KNOW
            if not although_apart or is_early or sharing is Sharing.NOT_AT_ALL:
                return None
            apart = self._apart[handler_name] = Apart(Sharing.NOT_AT_ALL, seconds, until)
            return apart
        is_again = now < until + seconds  # it did not go well for as long as it had to wait for it
        seconds = min(2 * seconds, _APART_AT_MOST) if is_again else _APART_AT_FIRST
        apart = self._apart[handler_name] = Apart(Sharing.ONE_GROUP, seconds, now + seconds)
        return apart

    def ran(self, handler_name: str, *, plainly: bool, briefly: bool = False) -> None:
        """It returned; plainly: it can have left nothing behind. Who ever does will do so again."""
        _count(self._plain, handler_name, well=plainly)
        _count(self._brief, handler_name, well=briefly)

    def failed(self, handler_name: str) -> None:
        """It has to earn it anew."""
        _start_anew(self._plain, handler_name)
        _start_anew(self._brief, handler_name)

    def took_long(self, handler_name: str) -> None:
        """Whoever ran beside it had to wait for it: it has to show once more that it is brief."""
        _start_anew(self._brief, handler_name)

    def strayed(self, handler_name: str) -> None:
        """It wanted more than one statement, or waited for something else: it is not to run beside others any more."""
        self._brief[handler_name] = _NEVER


def _count(runs: dict[str, int], handler_name: str, *, well: bool) -> None:
    seen = runs.get(handler_name, 0)
    if not well:
        runs[handler_name] = _NEVER
    elif 0 <= seen < ENOUGH:
        runs[handler_name] = seen + 1


def _start_anew(runs: dict[str, int], handler_name: str) -> None:
    if runs.get(handler_name, 0) > 0:
        runs[handler_name] = 0
