"""Producers: every decision of the business and its event are one transaction, and all of it is in the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral_ops.demo.business import REPORT_FILED, SCAN_COMPLETED, SEASON_OPENED, TILE_ORDERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

    from spectral.core.events.testing import Ledger


class _ChangedMindError(Exception):
    """The business transaction is rolled back."""


class Producer:
    """One caller of one generation, on a connection of its own."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], generation: int, ledger: Ledger) -> None:
        self._connection = connection
        self._generation = generation
        self._ledger = ledger
        self._publisher = publisher_for(connection, publishing(PublishSettings(generation=generation)))

    async def complete_scan(self, number: int, *, change_mind: bool = False) -> None:
        """Complete one scan; or change one's mind after publishing, and nothing ever happened."""
        await self._decide([_scan(number)], change_mind=change_mind)

    async def complete_scans(self, numbers: Iterable[int]) -> None:
        """Complete thousands of scans in one transaction."""
        await self._decide([_scan(number) for number in numbers])

    async def order_tiles(self, count: int) -> None:
        """For the plain handler."""
        await self._decide([_event(TILE_ORDERED, "platform", "worlds") for _ in range(count)])

    async def file_reports(self, count: int) -> None:
        """For the handler that fails for good."""
        await self._decide([_event(REPORT_FILED, "worlds", "platform") for _ in range(count)])

    async def open_season(self) -> None:
        """Tell everybody."""
        await self._decide([_event(SEASON_OPENED, "platform", None)])

    async def _decide(self, events: Sequence[EventEnvelope], *, change_mind: bool = False) -> None:
        attempts = [self._ledger.attempt_of(event, generation=self._generation) for event in events]
        try:
            async with self._connection.transaction():
                await self._connection.execute(
                    "insert into public.decisions (event_id, event_type) select * from unnest(%s::uuid[], %s::text[])",
                    [[event.event_id for event in events], [event.event_type for event in events]],
                )
                if len(events) == 1:
                    await self._publisher.publish(events[0])
                else:
                    await self._publisher.publish_many(events)
                if change_mind:
                    raise _ChangedMindError  # noqa: TRY301  it is the transaction that has to see it
        except _ChangedMindError:
            for attempt in attempts:
                attempt.failed()
        else:
            for attempt in attempts:
                attempt.ok()


def _scan(number: int) -> EventEnvelope:
    return _event(SCAN_COMPLETED, "worlds", "platform", number=number)


def _event(event_type: str, source: str, target: str | None, **payload: object) -> EventEnvelope:
    return EventEnvelope(event_type=event_type, source=source, target=target, payload=payload)
