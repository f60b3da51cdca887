"""`worlds.world_model_card.published`: the card is projected into a snapshot of the System Card.

The model names what platform looks at. The snapshot is made of the payload itself, so that it says what the producer
said, with every field that platform knows nothing of.
"""

from uuid import UUID

from pydantic import AwareDatetime, BaseModel

from spectral.core.events import Consumer, EventEnvelope, Transaction
from spectral.platform.infrastructure.system_cards import Snapshot, keep_snapshot


class WorldModelCardPublishedEvent(BaseModel):
    """By what a snapshot is found."""

    world_model_id: UUID
    revision: int
    published_at: AwareDatetime


async def project_card(event: WorldModelCardPublishedEvent, envelope: EventEnvelope, tx: Transaction) -> None:
    """Keep the card as it was published."""
    snapshot = Snapshot(
        world_model_id=event.world_model_id,
        revision=event.revision,
        workspace_id=envelope.workspace_id,
        event_id=envelope.event_id,
        card=envelope.payload,
        published_at=event.published_at,
    )
    await keep_snapshot(tx.connection, snapshot)


def register(consumer: Consumer) -> None:
    """Have the consumer project cards."""
    consumer.on("worlds.world_model_card.published", name="platform.world_model_card_projection")(project_card)
