"""What is concluded and not yet written: handlers put it in without waiting, the settler takes it in heaps."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spectral.core.events.ports import Conclusion


class Tray:
    """Its length is bounded by what is claimed, not here."""

    def __init__(self) -> None:
        self._conclusions: deque[Conclusion] = deque()
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return len(self._conclusions)

    def put(self, conclusion: Conclusion) -> None:
        """Have it written."""
        if not self._conclusions:
            self._filled.set()
        self._conclusions.append(conclusion)

    async def take(self, limit: int) -> list[Conclusion]:
        """Wait for the first; take what is there, up to so many, no row twice.

        A worker may hold a row twice, by a lease it has lost and by a new one. The server answers rows: in one heap the
        lost lease would pass for the one that stands.
        """
        while not self._conclusions:
            self._filled.clear()
            await self._filled.wait()
        taken = [self._conclusions.popleft() for _ in range(min(limit, len(self._conclusions)))]
        if len({each.delivery.lease.row_id for each in taken}) < len(taken):
            self._put_back_from_the_first_that_is_there_twice(taken)
        return taken

    def _put_back_from_the_first_that_is_there_twice(self, taken: list[Conclusion]) -> None:
        rows = [each.delivery.lease.row_id for each in taken]
        end = next(number for number, row_id in enumerate(rows) if row_id in rows[:number])
        self._conclusions.extendleft(reversed(taken[end:]))
        del taken[end:]
