"""A new revision of a world model's card is public.

The whole card travels with the event: whoever projects it needs nothing else. Revisions count from 1 without a gap, but
events may come in any order.
"""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

WORLD_MODEL_CARD_PUBLISHED_TYPE: Final = "worlds.world_model_card.published"
WORLD_MODEL_CARD_PUBLISHED_VERSION: Final = 1


class CardEvaluation(BaseModel):
    """How the world model did in one benchmark."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    benchmark: str = Field(description="The benchmark's name.", min_length=1)
    score: float = Field(description="The score, as the benchmark defines it.", allow_inf_nan=False)


class WorldModelCardPublished(BaseModel):
    """One revision of a card, complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    world_model_id: UUID = Field(description="Whose card it is.")
    revision: int = Field(description="Counts from 1; the highest is the current card.", ge=1)
    title: str = Field(description="The card's title, for people.", min_length=1, max_length=200)
    summary: str = Field(description="What the world model is, in a few sentences.")
    capabilities: tuple[str, ...] = Field(description="What it can do, in the author's order.")
    limitations: tuple[str, ...] = Field(description="What it cannot do, in the author's order.")
    evaluations: tuple[CardEvaluation, ...] = Field(description="How it was measured.")
    published_at: AwareDatetime = Field(description="When the revision became public.")


EXAMPLES: Final = (
    WorldModelCardPublished(
        world_model_id=UUID("5f0c7a52-6b8e-4d43-9a0e-3d5a5b1f7c11"),
        revision=3,
        title="Harbour, night",
        summary="A harbour with tides, fog and moving cranes.",
        capabilities=("tides up to 4 m", "fog by the hour"),
        limitations=("no ice",),
        evaluations=(CardEvaluation(benchmark="drift-100", score=0.875),),
        published_at=datetime(2026, 11, 2, 9, 30, tzinfo=UTC),
    ),
    WorldModelCardPublished(
        world_model_id=UUID("c1b7a0de-3f0b-4bb6-8d55-6c0f9a5b2e77"),
        revision=1,
        title="Größere Düne",
        summary="",
        capabilities=(),
        limitations=(),
        evaluations=(),
        published_at=datetime(2026, 11, 3, 0, 0, 0, 250_000, tzinfo=UTC),
    ),
)
