"""Keep: renew the leases of what this worker holds, and take back what nobody works on any more.

Runs beside the worker's loop, in a thread of its own, so that a handler that blocks the loop does not lose its lease. A
loop that never moves again does: after the longest a handler may take, its leases are left to run out.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.probe import SubstrateLost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Lease
    from spectral.core.events.ports import Keeper

_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_LONGEST_PAUSE: Final = timedelta(seconds=2)
"""Others may take back this worker's claims while it is out of sight, so it must not be for long."""

_RENEWALS_PER_LEASE: Final = 4
_UNHANDLED_EVERY: Final = 60.0
_MENDED_EVERY: Final = 3  # reaps: still within the time of a safety poll
_END_WITHIN: Final = 2.0  # seconds
_AT_ONCE: Final = 1.0  # second, for a chore that may find a heap


class KeepLoop:
    """Renews, reaps, and fails what nobody handles."""

    def __init__(
        self, keeper: Keeper, desk: Desk, wake: Callable[[], None], lost: Callable[[Collection[Lease]], None]
    ) -> None:
        self._keeper = keeper
        self._desk = desk
        self._wake = wake
        self._lost = lost
        self._times = desk.settings.times
        self._down_since: float | None = time.monotonic()
        self._is_ending = False
        self._unhandled_left = False
        self.may_renew: Callable[[], bool] = lambda: True

    @property
    def is_open(self) -> bool:
        """Whether leases are kept."""
        return self._down_since is None

    def down_for(self) -> float:
        """For how many seconds they have not been."""
        since = self._down_since
        return 0.0 if since is None else time.monotonic() - since

    async def run(self) -> None:
        """Keep until cancelled."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while True:
                try:
                    await self._to_its_end(self._open())
                    self._down_since = None
                    self._wake()
                    backoff.reset()
                    await self._keep()
                except SubstrateLostError as lost:
                    self._down_since = self._down_since or time.monotonic()
                    pause = backoff.next()
                    self._desk.probe.tell(SubstrateLost("keep leases", describe(lost), pause))
                    await asyncio.sleep(pause.total_seconds())
        finally:
            await self._keeper.close()

    async def _open(self) -> None:
        await self._keeper.open()
        await self._renew()

    async def _keep(self) -> None:
        """Do each thing when its time comes."""
        times = self._times
        # Well within the grace: a worker that is out of sight for a moment keeps what it renewed before.
        renew = min(times.grace, times.lease / _RENEWALS_PER_LEASE).total_seconds() / 2
        unhandled = min(_UNHANDLED_EVERY, times.unhandled_after.total_seconds())
        chores: dict[Callable[[], Coroutine[None, None, None]], float] = {
            self._renew: renew,
            self._reap: times.reap.total_seconds(),
            self._mend_bell: _MENDED_EVERY * times.reap.total_seconds(),
            self._release_unknown: 2 * times.answer.total_seconds(),
            self._fail_unhandled: unhandled,
        }
        due = {chore: time.monotonic() + every for chore, every in chores.items()}
        # Everybody who has just lost the same server gets the time to show that they live.
        due[self._reap] = time.monotonic() + times.grace.total_seconds()
        while True:
            await asyncio.sleep(max(0.0, min(due.values()) - time.monotonic()))
            for chore, every in chores.items():
                if time.monotonic() >= due[chore]:
                    await self._to_its_end(chore())
                    is_through = chore != self._fail_unhandled or not self._unhandled_left
                    due[chore] = time.monotonic() + (every if is_through else 0.0)

    async def _to_its_end(self, chore: Coroutine[None, None, None]) -> None:
        """Do it; if cancelled meanwhile, soon.

        Rows that were failed and are not told of nobody else will tell of; and whoever has signed in, but was not
        answered, could not sign out.
        """
        task = asyncio.create_task(chore)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._is_ending = True
            with suppress(Exception):  # the database may be gone, or take too long, and whoever stops need not know
                async with asyncio.timeout(_END_WITHIN):
                    await task
            raise

    async def _renew(self) -> None:
        """Nothing that was claimed a moment ago: most rows are settled before their first renewal."""
        leases = self._desk.leases(held_for=self._times.grace / 4)
        if not leases or not self.may_renew():
            return
        reached("renew.before")
        stand = await self._keeper.renew(leases)
        gone = [lease for lease in leases if lease not in stand]
        if gone:
            self._lost(gone)

    async def _reap(self) -> None:
        reached("reap.before")
        while not self._is_ending and (notes := await self._keeper.reap()):
            for note in notes:
                self._desk.probe.tell(note)
        reached("reap.after")

    async def _mend_bell(self) -> None:
        """Whoever was awake and is dead has publishers that trusted it."""
        await self._keeper.mend_bell()

    async def _release_unknown(self) -> None:
        """A claim whose answer was lost may stand: give back what this worker has claimed and does not know of."""
        # Older than any claim that is still on its way to the desk.
        await self._keeper.release_unknown(self._desk.known(), 2 * self._times.answer)

    async def _fail_unhandled(self) -> None:
        """Some of a heap: while they are failed, nothing is renewed and nobody's claims are taken over."""
        until = time.monotonic() + _AT_ONCE
        for context in dict.fromkeys(line.context for line in self._desk.routes.lines if line.event_types is not None):
            while not self._is_ending and (note := await self._keeper.fail_unhandled(context)):
                self._desk.probe.tell(note)
                if time.monotonic() >= until:
                    self._unhandled_left = True
                    return
        self._unhandled_left = False
