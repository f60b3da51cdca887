"""Worlds has dealt with an approved curation: it became a rule, or was refused.

The answer to `platform.curation.approved`, exactly one for each curation.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

CURATION_APPLIED_TYPE: Final = "worlds.curation.applied"
CURATION_APPLIED_VERSION: Final = 1


class CurationOutcome(StrEnum):
    """How it ended."""

    APPLIED = "applied"
    REFUSED = "refused"


class CurationApplied(BaseModel):
    """What became of one curation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    curation_id: UUID = Field(description="The curation that was approved.")
    outcome: CurationOutcome = Field(description="Whether there is a rule now.")
    rule_id: UUID | None = Field(description="The new rule; null if refused.")
    refusal: str | None = Field(description="Why there is none, for people; null if applied.")
    decided_at: AwareDatetime = Field(description="When worlds dealt with it.")


EXAMPLES: Final = (
    CurationApplied(
        curation_id=UUID("3c0b9d0e-0b4b-4cb1-9d0b-4a1f7f3b8a01"),
        outcome=CurationOutcome.APPLIED,
        rule_id=UUID("f2a4b1c8-22d8-4b63-8a0f-0d9e6a7b5c01"),
        refusal=None,
        decided_at=datetime(2026, 11, 4, 8, 0, tzinfo=UTC),
    ),
    CurationApplied(
        curation_id=UUID("3c0b9d0e-0b4b-4cb1-9d0b-4a1f7f3b8a02"),
        outcome=CurationOutcome.REFUSED,
        rule_id=None,
        refusal="the candidate is a rule already",
        decided_at=datetime(2026, 11, 4, 8, 5, tzinfo=UTC),
    ),
)
