"""`worlds.curation.applied`: the answer to an approved curation, which closes it."""

from uuid import UUID

from pydantic import BaseModel

from spectral.core.events import Consumer, DeliveryContext, Transaction
from spectral.platform.infrastructure.decisions import Closure, close_curation


class CurationAppliedEvent(BaseModel):
    """A rule, or the reason why there is none."""

    curation_id: UUID
    rule_id: UUID | None
    refusal: str | None


async def record_outcome(event: CurationAppliedEvent, tx: Transaction, delivery: DeliveryContext) -> None:
    """Close the curation with what became of it."""
    closure = Closure(curation_id=event.curation_id, rule_id=event.rule_id, refusal=event.refusal)
    if not await close_curation(tx.connection, closure):
        delivery.logger.warning("curation_not_open", curation_id=str(event.curation_id))


def register(consumer: Consumer) -> None:
    """Have the consumer close curations."""
    consumer.on("worlds.curation.applied", name="platform.curation_applied_closer")(record_outcome)
