"""`platform.curation.approved`: the curation becomes a rule or is refused, and the answer is part of the transaction.

The cluster's own event may still be on its way, so an unknown candidate is an error that passes. When it has not passed
at the last attempt, that is an answer too: nobody waits for ever.
"""

from uuid import UUID

from pydantic import BaseModel

from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, Transaction
from spectral.worlds.domain.rules import CandidateNotKnownError, Refused, Verdict
from spectral.worlds.infrastructure.rules import adopt, answer


class CurationApprovedEvent(BaseModel):
    """What worlds needs to apply it."""

    curation_id: UUID
    cluster_id: UUID
    rule: str


async def apply_curation(
    event: CurationApprovedEvent, envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext
) -> None:
    """Apply the curation, and write back what became of it."""
    verdict: Verdict
    try:
        verdict = await adopt(tx.connection, event.curation_id, event.cluster_id, event.rule)
    except CandidateNotKnownError as missing:
        if not delivery.is_last_attempt:
            raise
        verdict = Refused(str(missing))
    await tx.publish(answer(event.curation_id, verdict, workspace_id=envelope.workspace_id))


def register(consumer: Consumer) -> None:
    """Have the consumer apply curations."""
    consumer.on("platform.curation.approved", name="worlds.curation_approved_applier")(apply_curation)
