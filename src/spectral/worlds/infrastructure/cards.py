"""World models and their cards: a new revision and the event that tells of it are one transaction."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.worlds.contracts.events.world_model_card_published import (
    WORLD_MODEL_CARD_PUBLISHED_TYPE,
    WORLD_MODEL_CARD_PUBLISHED_VERSION,
    CardEvaluation,
    WorldModelCardPublished,
)

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

    from spectral.core.events.delivery.publish import Publishing
    from spectral.worlds.domain.cards import CardDraft

# Publications of one card wait for each other here, so that revisions have no gap. No foreign key waits for it.
_LOCK_WORLD_MODEL: Final = """
    select workspace_id from worlds.world_models where world_model_id = %s for no key update
"""
_NEXT_REVISION: Final = """
    select coalesce(max(revision), 0) + 1 from worlds.model_cards where world_model_id = %s
"""
_INSERT_CARD: Final = """
    insert into worlds.model_cards (
        world_model_id, revision, title, summary, capabilities, limitations, evaluations, published_at
    ) values (%s, %s, %s, %s, %s, %s, %s, %s)
"""


class WorldModelNotFoundError(LookupError):
    """There is no such world model."""


class Cards:
    """World models and their cards, on a connection of the caller's. Every method is one transaction, or joins one."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], shared: Publishing | None = None) -> None:
        self._connection = connection
        self._publisher = publisher_for(connection, shared)

    async def create_world_model(self, world_model_id: UUID, name: str, *, workspace_id: UUID | None = None) -> None:
        """Have a world model that cards and scans can be of."""
        async with self._connection.transaction():
            await self._connection.execute(
                "insert into worlds.world_models (world_model_id, workspace_id, name) values (%s, %s, %s)",
                [world_model_id, workspace_id, name],
            )

    async def publish(self, world_model_id: UUID, draft: CardDraft) -> WorldModelCardPublished:
        """Make the draft the world model's current card, and tell platform; answers what was told.

        Raises:
            WorldModelNotFoundError: there is none with this id.
            PublishError: nothing was written.
        """
        async with self._connection.transaction():
            workspace_id, revision = await self._next_revision(world_model_id)
            card = _published(world_model_id, revision, draft)
            await self._connection.execute(_INSERT_CARD, _row(card))
            await self._publisher.publish(
                EventEnvelope(
                    event_type=WORLD_MODEL_CARD_PUBLISHED_TYPE,
                    event_version=WORLD_MODEL_CARD_PUBLISHED_VERSION,
                    occurred_at=card.published_at,
                    source="worlds",
                    target="platform",
                    workspace_id=workspace_id,
                    payload=card.model_dump(mode="json"),
                )
            )
        return card

    async def _next_revision(self, world_model_id: UUID) -> tuple[UUID | None, int]:
        cursor = self._connection.cursor(row_factory=tuple_row)
        found = await (await cursor.execute(_LOCK_WORLD_MODEL, [world_model_id])).fetchone()
        if found is None:
            raise WorldModelNotFoundError(f"there is no world model {world_model_id}; create it first")
        revision = await (await cursor.execute(_NEXT_REVISION, [world_model_id])).fetchone()
        assert revision is not None  # noqa: S101  an aggregate always answers
        return found[0], revision[0]


def _published(world_model_id: UUID, revision: int, draft: CardDraft) -> WorldModelCardPublished:
    return WorldModelCardPublished(
        world_model_id=world_model_id,
        revision=revision,
        title=draft.title,
        summary=draft.summary,
        capabilities=draft.capabilities,
        limitations=draft.limitations,
        evaluations=tuple(CardEvaluation(benchmark=each.benchmark, score=each.score) for each in draft.evaluations),
        published_at=datetime.now(UTC),
    )


def _row(card: WorldModelCardPublished) -> list[object]:
    return [
        card.world_model_id,
        card.revision,
        card.title,
        card.summary,
        list(card.capabilities),
        list(card.limitations),
        Jsonb([each.model_dump(mode="json") for each in card.evaluations]),
        card.published_at,
    ]
