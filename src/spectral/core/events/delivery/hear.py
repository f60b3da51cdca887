"""Hear: LISTEN first, then have the worker drain; after every loss the same again.

Runs beside the worker's loop, in a thread of its own: no handler can starve it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.probe import EarLost, EarOpened

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.events.ports import Ear
    from spectral.core.events.probe import Probe
    from spectral.core.events.settings import WorkerSettings


class HearLoop:
    """Keeps the ear open; `wake` asks the worker to drain, however many notifications came."""

    def __init__(self, ear: Ear, settings: WorkerSettings, probe: Probe, wake: Callable[[], None]) -> None:
        self._ear = ear
        self._settings = settings
        self._probe = probe
        self._wake = wake
        self._down_since: float | None = time.monotonic()

    @property
    def is_open(self) -> bool:
        """Whether notifications come in."""
        return self._down_since is None

    def down_for(self) -> float:
        """For how many seconds they have not."""
        since = self._down_since
        return 0.0 if since is None else time.monotonic() - since

    async def run(self) -> None:
        """Listen until cancelled."""
        times = self._settings.times
        backoff = Backoff(times.reconnect, times.reconnect_cap)
        try:
            while True:
                try:
                    await self._ear.open()
                    reached("ear.opened")
                    self._down_since = None
                    self._probe.tell(EarOpened(self._settings.channels()))
                    self._wake()
                    await self._listen(backoff)
                except SubstrateLostError as lost:
                    pause = backoff.next()
                    self._down_since = self._down_since or time.monotonic()
                    self._probe.tell(EarLost(describe(lost), pause))
                    self._wake()  # what was about to be announced is not lost, only unheard
                    await asyncio.sleep(pause.total_seconds())
        finally:
            await self._ear.close()

    async def _listen(self, backoff: Backoff) -> None:
        while True:
            if await self._ear.hear(self._settings.times.heartbeat):
                self._wake()
            backoff.reset()
