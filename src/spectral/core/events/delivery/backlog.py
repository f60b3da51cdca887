"""Claimed rows that wait for a lane; what a lane does not get to goes back to the front."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from spectral.core.events.lease import Delivery


class Backlog:
    """A queue that can be put back into. Its length is bounded by what is claimed, not here."""

    def __init__(self, lanes: int) -> None:
        self._rows: deque[Delivery] = deque()
        self._filled = asyncio.Event()
        self._lanes = lanes
        self._closed = asyncio.Event()

    def put(self, deliveries: Iterable[Delivery]) -> None:
        """Rows to run, behind the others."""
        self._rows.extend(deliveries)
        self._signal()

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Rows that were taken and not run, before the others, in their order."""
        self._rows.extendleft(reversed(list(deliveries)))
        self._signal()

    async def take(self, limit: int) -> deque[Delivery]:
        """Wait for rows; take a fair share, so that no lane idles while another has a heap. None: it is closed."""
        while not self._rows and not self._closed.is_set():
            self._filled.clear()
            await self._filled.wait()
        share = -(-len(self._rows) // self._lanes)
        return deque(self._rows.popleft() for _ in range(min(limit, share)))

    def clear(self) -> list[Delivery]:
        """Everything that waits, to be released."""
        rows = list(self._rows)
        self._rows.clear()
        return rows

    def close(self) -> list[Delivery]:
        """Let nobody wait any more; what was waiting is to be released."""
        self._closed.set()
        self._filled.set()
        return self.clear()

    async def closed(self, within: timedelta) -> None:
        """Wait for that, or for the time to pass."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self._closed.wait()

    def _signal(self) -> None:
        if self._rows:
            self._filled.set()
