"""The steps of a publish, once for drivers that are awaited and once for drivers that block.

prepare (refuse what cannot be published) → require the caller's transaction → insert → confirm the count.
A driver's publisher says how it sees a transaction and how it sends a statement, and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Unpack

from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.failure import PublishError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spectral.core.events.delivery.publish import Insert, Publishing, PublishOptions


class AsyncOutboxPublisher(ABC):
    """Writes events into `core.outbox` in the transaction the caller has open.

    It never commits and never begins: what it wrote is delivered if the caller commits, and was never there if the
    caller rolls back, to a savepoint included. One `publish` is one round trip.
    """

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing

    async def publish(self, envelope: EventEnvelope, **options: Unpack[PublishOptions]) -> None:
        """Publish one event.

        Raises:
            PublishError: it was not published; unless the server refused it, the transaction is still usable.
        """
        with self._publishing.watched([envelope]) as trace:
            insert = self._publishing.prepare(envelope, options, trace)
            await self._require_transaction()
            insert.confirm(await self._insert_one(insert))

    async def publish_many(self, envelopes: Iterable[EventEnvelope], **options: Unpack[PublishOptions]) -> int:
        """Publish many events, thousands to a round trip; answers how many were new.

        Raises:
            PublishError: none was published, if the transaction is rolled back; outside of one
                (`require_transaction=False`) batches of 5,000 before the refused one stay.
        """
        events = _several(envelopes)
        with self._publishing.watched(events) as trace:
            inserts = self._publishing.prepare_many(events, options, trace)
            if inserts:
                await self._require_transaction()
            return sum([insert.confirm(await self._insert_many(insert)) for insert in inserts])

    @abstractmethod
    async def _require_transaction(self) -> None:
        """Raise `NotInTransactionError` unless the caller's transaction is open, or none is required."""

    @abstractmethod
    async def _insert_one(self, insert: Insert) -> int:
        """Insert the only row; answer how many rows the server inserted, 0 if the id is known."""

    @abstractmethod
    async def _insert_many(self, insert: Insert) -> int:
        """Insert all rows or, if known ids are to be ignored, the new ones; answer how many."""


class SyncOutboxPublisher(ABC):
    """The same for drivers that block."""

    def __init__(self, publishing: Publishing) -> None:
        self._publishing = publishing

    def publish(self, envelope: EventEnvelope, **options: Unpack[PublishOptions]) -> None:
        """Publish one event.

        Raises:
            PublishError: it was not published; unless the server refused it, the transaction is still usable.
        """
        with self._publishing.watched([envelope]) as trace:
            insert = self._publishing.prepare(envelope, options, trace)
            self._require_transaction()
            insert.confirm(self._insert_one(insert))

    def publish_many(self, envelopes: Iterable[EventEnvelope], **options: Unpack[PublishOptions]) -> int:
        """Publish many events, thousands to a round trip; answers how many were new.

        Raises:
            PublishError: none was published, if the transaction is rolled back; outside of one
                (`require_transaction=False`) batches of 5,000 before the refused one stay.
        """
        events = _several(envelopes)
        with self._publishing.watched(events) as trace:
            inserts = self._publishing.prepare_many(events, options, trace)
            if inserts:
                self._require_transaction()
            return sum(insert.confirm(self._insert_many(insert)) for insert in inserts)

    @abstractmethod
    def _require_transaction(self) -> None:
        """Raise `NotInTransactionError` unless the caller's transaction is open, or none is required."""

    @abstractmethod
    def _insert_one(self, insert: Insert) -> int:
        """Insert the only row; answer how many rows the server inserted, 0 if the id is known."""

    @abstractmethod
    def _insert_many(self, insert: Insert) -> int:
        """Insert all rows or, if known ids are to be ignored, the new ones; answer how many."""


def _several(envelopes: Iterable[EventEnvelope]) -> list[EventEnvelope]:
    given: object = envelopes  # untyped callers
    if isinstance(given, EventEnvelope):  # which would give its fields, one by one
        raise PublishError("publish_many takes many events, such as a list of them; publish is for one")
    return list(envelopes)
