"""Settle: write what became of deliveries that no lane settled: plain ones, lost transactions, releases.

Many in one short fenced transaction. A loss of the database is waited out while the leases are renewed; a row that the
server refuses is tried again a few times and then left to the reaper. The worker survives either.
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
    from uuid import UUID

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Lease
    from spectral.core.events.ports import Conclusion, Settlements

_BATCH: Final = 200
_TRIES: Final = 8
_FIRST_PAUSE: Final = timedelta(milliseconds=250)


class SettleLoop:
    """Writes conclusions as they come."""

    def __init__(self, settlements: Settlements, desk: Desk) -> None:
        self._settlements = settlements
        self._desk = desk
        self._backoff = Backoff(_FIRST_PAUSE, desk.settings.times.poll_deaf)
        self._refused: dict[Lease, int] = {}

    async def run(self) -> None:
        """Write until cancelled."""
        queue = self._desk.to_settle
        left: Conclusion | None = None
        try:
            while True:
                first = left or await queue.get()
                batch, left = self._gather(first)
                await self._write(batch)
        finally:
            await self._settlements.close()

    def _gather(self, first: Conclusion) -> tuple[list[Conclusion], Conclusion | None]:
        """What waits, and the one that has to wait for the next batch.

        A worker may hold a row twice, by a lease it has lost and by a new one. The server answers rows: in one batch
        the lost lease would pass for the one that stands.
        """
        queue = self._desk.to_settle
        batch = {first.delivery.lease.row_id: first}
        while len(batch) < _BATCH and not queue.empty():
            conclusion = queue.get_nowait()
            if conclusion.delivery.lease.row_id in batch:
                return list(batch.values()), conclusion
            batch[conclusion.delivery.lease.row_id] = conclusion
        return list(batch.values()), None

    async def _write(self, batch: list[Conclusion]) -> None:
        while True:
            try:
                reached("settle.before")
                began = time.perf_counter()
                stood = await self._settlements.settle(batch)
                reached("settle.after")
                self._desk.probe.tell(SettlementWritten(len(batch), time.perf_counter() - began))
            except SubstrateLostError as lost:
                pause = self._backoff.next()
                self._desk.probe.tell(SubstrateLost("settle", describe(lost), pause))
                await asyncio.sleep(pause.total_seconds())
            except SettleRefusedError as refusal:
                if len(batch) == 1:
                    self._try_later(batch[0], refusal)
                else:
                    for conclusion in batch:
                        await self._write([conclusion])
                return
            else:
                self._backoff.reset()
                for conclusion in batch:
                    self._settled(conclusion, stood)
                return

    def _settled(self, conclusion: Conclusion, stood: set[UUID]) -> None:
        lease = conclusion.delivery.lease
        self._refused.pop(lease, None)
        self._desk.settled(conclusion, stood=lease.row_id in stood)

    def _try_later(self, conclusion: Conclusion, refusal: SettleRefusedError) -> None:
        """Most likely its row is locked by a transaction that ends soon; the others need not wait for it."""
        lease = conclusion.delivery.lease
        tries = self._refused.get(lease, 0) + 1
        if tries < _TRIES:
            self._refused[lease] = tries
            pause = _FIRST_PAUSE * 2**tries
            asyncio.get_running_loop().call_later(pause.total_seconds(), self._desk.to_settle.put_nowait, conclusion)
            return
        self._refused.pop(lease, None)
        self._desk.give_up(conclusion.delivery)
        self._desk.probe.tell(SettleGivenUp(conclusion.delivery, describe(refusal.__cause__ or refusal)))
