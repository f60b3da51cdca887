"""`worlds.scan.completed`: the indexer. Inside one context an event may say little, for the tables are at hand."""

from uuid import UUID

from pydantic import BaseModel

from spectral.core.events import Consumer, Transaction
from spectral.worlds.infrastructure.scans import index_scan


class ScanCompletedEvent(BaseModel):
    """What the indexer needs to know."""

    scan_id: UUID


async def index_completed_scan(event: ScanCompletedEvent, tx: Transaction) -> None:
    """Enter the scan's findings into the index."""
    await index_scan(tx.connection, event.scan_id)


def register(consumer: Consumer) -> None:
    """Have the consumer index scans."""
    consumer.on("worlds.scan.completed", name="worlds.scan_completed_indexer")(index_completed_scan)
