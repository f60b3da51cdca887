"""Trust: which transactional handlers may share a transaction without a savepoint for each row, and which a round trip.

A savepoint, a reset of the session and a gate before every row cost more than most handlers do. They are needed where a
handler fails, so that its neighbours keep what they wrote, and where it leaves something in the session that the next
one must not find. A handler that has done neither for a while is trusted not to; should it fail all the same, its whole
group is run again, each row with its own savepoint. So that this stays rare, trust is lost with the first failure.

A brief handler is one that sends one statement and waits for nothing else. Several of them may run at the same time in
one transaction: the server carries out one statement after the other, so it is as if they had come one by one.
"""

from __future__ import annotations

from typing import Final

ENOUGH = 50
"""Runs in a row that were plain and did not fail. At most so often a neighbour's work is done again."""

_NEVER: Final = -1


class Trust:
    """What one worker has seen of its handlers."""

    def __init__(self) -> None:
        self._plain: dict[str, int] = {}  # runs in a row
        self._brief: dict[str, int] = {}

    def has(self, handler_name: str) -> bool:
        """Whether it may go without a savepoint."""
        return self._plain.get(handler_name, 0) >= ENOUGH

    def is_brief(self, handler_name: str) -> bool:
        """Whether it may run beside others."""
        return self._brief.get(handler_name, 0) >= ENOUGH

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
