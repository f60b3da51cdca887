"""Settle: write what became of deliveries that no lane settled: plain ones, lost transactions, releases.

Many in one short fenced transaction; while one is being written and a whole heap waits, a second writer takes that. A
loss of the database is waited out while the leases are renewed; a row that the server refuses is tried again a few
times and then left to the reaper. The worker survives either.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.ports import SettleRefusedError
from spectral.core.events.probe import SettleGivenUp, SettlementWritten, SubstrateLost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.ports import Conclusion, Settlements

_TRIES: Final = 8
_FIRST_PAUSE: Final = timedelta(milliseconds=250)


class SettleLoop:
    """A writer. The second one of a worker has its connection only once there was a heap for it."""

    def __init__(self, settlements: Settlements, desk: Desk) -> None:
        self._settlements = settlements
        self._desk = desk
        self._backoff = Backoff(_FIRST_PAUSE, desk.settings.times.poll_deaf)

    async def run(self) -> None:
        """Write what there is, as it comes, until cancelled."""
        await self._write_all(self._desk.to_settle.take)

    async def run_beside(self) -> None:
        """Write what is too much for one, until cancelled."""
        await self._write_all(self._desk.to_settle.take_heap)

    async def _write_all(self, take: Callable[[], Awaitable[list[Conclusion]]]) -> None:
        try:
            while True:
                await self._write(await take())
        finally:
            await self._settlements.close()

    async def _write(self, batch: list[Conclusion]) -> None:
        while True:
            try:
                reached("settle.before")
                began = time.perf_counter()
                lost = await self._settlements.settle(batch)
                reached("settle.after")
                self._desk.probe.tell(SettlementWritten(len(batch), time.perf_counter() - began))
            except SubstrateLostError as loss:
                self._desk.doubt(batch)
                await self._pause(loss)
            except asyncio.CancelledError:
                self._desk.doubt(batch)  # it may have been sent
                raise
            except SettleRefusedError as refusal:
                if len(batch) == 1:
                    self._try_later(batch[0], refusal)
                else:
                    for conclusion in batch:
                        await self._write([conclusion])
                return
            else:
                self._backoff.reset()
                await self._answered(batch, lost)
                return

    async def _answered(self, batch: list[Conclusion], lost: AbstractSet[UUID]) -> None:
        """First those that stand; of one that lost its lease, what was written before may have to be asked for."""
        if not lost:
            self._desk.settled_together(batch, lost, {})
            return
        gone = [each for each in batch if each.delivery.lease.row_id in lost]
        self._desk.settled_together([each for each in batch if each.delivery.lease.row_id not in lost], set(), {})
        stood = await self._stood(self._desk.doubted([each.delivery for each in gone]))
        self._desk.settled_together(gone, lost, stood)

    async def _stood(self, doubted: list[Conclusion]) -> dict[UUID, Conclusion]:
        while True:
            try:
                return await self._settlements.stood(doubted)
            except SubstrateLostError as loss:
                await self._pause(loss)

    async def _pause(self, loss: SubstrateLostError) -> None:
        pause = self._backoff.next()
        self._desk.probe.tell(SubstrateLost("settle", describe(loss), pause))
        await asyncio.sleep(pause.total_seconds())

    def _try_later(self, conclusion: Conclusion, refusal: SettleRefusedError) -> None:
        """Most likely its row is locked by a transaction that ends soon; the others need not wait for it."""
        tries = self._desk.count_refusal(conclusion.delivery)
        if tries is not None and tries < _TRIES:
            pause = _FIRST_PAUSE * 2**tries
            asyncio.get_running_loop().call_later(pause.total_seconds(), self._desk.to_settle.put, conclusion)
            return
        self._desk.give_up(conclusion.delivery)
        self._desk.probe.tell(SettleGivenUp(conclusion.delivery, describe(refusal.__cause__ or refusal)))
