"""`platform.decision.recorded`: the aggregator. It adds one, so it relies on an event taking effect once."""

from pydantic import AwareDatetime, BaseModel

from spectral.core.events import Consumer, Transaction
from spectral.platform.domain.failures import Verdict
from spectral.platform.infrastructure.decisions import count_decision


class DecisionRecordedEvent(BaseModel):
    """What is counted."""

    verdict: Verdict
    decided_at: AwareDatetime


async def aggregate_decision(event: DecisionRecordedEvent, tx: Transaction) -> None:
    """Count the decision."""
    await count_decision(tx.connection, event.verdict, event.decided_at)


def register(consumer: Consumer) -> None:
    """Have the consumer count decisions."""
    consumer.on("platform.decision.recorded", name="platform.decision_recorded_aggregator")(aggregate_decision)
