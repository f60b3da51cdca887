"""`platform.failure_cluster.detected`: a cluster becomes a rule candidate.

The event says what the failures have in common. What they said is asked for, through a port: who answers is decided
where the consumer is built.
"""

from functools import partial
from typing import Final
from uuid import UUID

from pydantic import BaseModel

from spectral.core.events import Consumer, Transaction
from spectral.worlds.domain.rules import FailureEvidence, Proposal
from spectral.worlds.infrastructure.rules import propose

SAMPLES: Final = 5
"""As many as a person reads before writing a rule."""


class FailureClusterDetectedEvent(BaseModel):
    """What makes a candidate."""

    cluster_id: UUID
    world_model_id: UUID
    signature: str
    failures: int


async def propose_rule(event: FailureClusterDetectedEvent, tx: Transaction, *, evidence: FailureEvidence) -> None:
    """Propose a rule for the cluster, with some of what its failures said."""
    samples = await evidence.samples_of(event.cluster_id, limit=SAMPLES)
    proposal = Proposal(
        cluster_id=event.cluster_id,
        world_model_id=event.world_model_id,
        signature=event.signature,
        failures=event.failures,
        samples=tuple(samples),
    )
    await propose(tx.connection, proposal)


def register(consumer: Consumer, evidence: FailureEvidence) -> None:
    """Have the consumer propose rules, with what this evidence answers."""
    consumer.on("platform.failure_cluster.detected", name="worlds.failure_cluster_rule_proposer")(
        partial(propose_rule, evidence=evidence)
    )
