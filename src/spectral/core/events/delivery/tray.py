"""What is concluded and not yet written: handlers put it in without waiting, the settler takes it in heaps."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spectral.core.events.ports import Conclusion


HEAP: Final = 200
"""As many as are written at once."""


class Tray:
    """Its length is bounded by what is claimed, not here."""

    def __init__(self) -> None:
        self._conclusions: deque[Conclusion] = deque()
        self._filled = asyncio.Event()
        self._heaped = asyncio.Event()

    def __len__(self) -> int:
        return len(self._conclusions)

    def put(self, conclusion: Conclusion) -> None:
        """Have it written."""
        self._conclusions.append(conclusion)
        there = len(self._conclusions)
        if there == 1:
            self._filled.set()
        elif there == HEAP:
            self._heaped.set()

    async def take(self, limit: int = HEAP) -> list[Conclusion]:
        """Wait for the first; take what is there, up to so many, no row twice."""
        while not self._conclusions:
            self._filled.clear()
            await self._filled.wait()
        return self._taken(limit)

    async def take_heap(self) -> list[Conclusion]:
        """Wait until a whole heap is there, because whoever takes it as it comes is not quick enough; take that."""
        while len(self._conclusions) < HEAP:
            self._heaped.clear()
            await self._heaped.wait()
        return self._taken(HEAP)

    def _taken(self, limit: int) -> list[Conclusion]:
        """So many at most, no row twice.

        A worker may hold a row twice, by a lease it has lost and by a new one. The server answers rows: in one heap the
        lost lease would pass for the one that stands.
        """
        taken = [self._conclusions.popleft() for _ in range(min(limit, len(self._conclusions)))]
        if len({each.delivery.lease.row_id.int for each in taken}) < len(taken):  # to hash a UUID takes a call
            self._put_back_from_the_first_that_is_there_twice(taken)
        return taken

    def _put_back_from_the_first_that_is_there_twice(self, taken: list[Conclusion]) -> None:
        rows = [each.delivery.lease.row_id for each in taken]
        end = next(number for number, row_id in enumerate(rows) if row_id in rows[:number])
        self._conclusions.extendleft(reversed(taken[end:]))
        del taken[end:]
