"""Trust: which transactional handlers may share a transaction without a savepoint for each row.

A savepoint, a reset of the session and a gate before every row cost more than most handlers do. They are needed where a
handler fails, so that its neighbours keep what they wrote, and where it leaves something in the session that the next
one must not find. A handler that has done neither for a while is trusted not to; should it fail all the same, its whole
group is run again, each row with its own savepoint. So that this stays rare, trust is lost with the first failure.
"""

from __future__ import annotations

from typing import Final

ENOUGH = 50
"""Runs in a row that were plain and did not fail. At most so often a neighbour's work is done again."""

_NEVER: Final = -1


class Trust:
    """What one worker has seen of its handlers."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def has(self, handler_name: str) -> bool:
        """Whether it may go without."""
        return self._seen.get(handler_name, 0) >= ENOUGH

    def ran(self, handler_name: str, *, plainly: bool) -> None:
        """It returned; plainly: it can have left nothing behind. Who ever does will do so again."""
        seen = self._seen.get(handler_name, 0)
        if not plainly:
            self._seen[handler_name] = _NEVER
        elif 0 <= seen < ENOUGH:
            self._seen[handler_name] = seen + 1

    def failed(self, handler_name: str) -> None:
        """It has to earn it anew."""
        if self._seen.get(handler_name, 0) > 0:
            self._seen[handler_name] = 0
