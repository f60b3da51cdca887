"""Somebody decided what is to become of a cluster of failures."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

DECISION_RECORDED_TYPE: Final = "platform.decision.recorded"
DECISION_RECORDED_VERSION: Final = 1


class DecisionVerdict(StrEnum):
    """What was decided."""

    APPROVE = "approve"
    REJECT = "reject"
    DEFER = "defer"


class DecisionRecorded(BaseModel):
    """One decision. Who decided and why stays in platform."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision_id: UUID = Field(description="The decision.")
    cluster_id: UUID = Field(description="What was decided about.")
    verdict: DecisionVerdict = Field(description="What was decided.")
    decided_at: AwareDatetime = Field(description="When it was decided.")


EXAMPLES: Final = tuple(
    DecisionRecorded(
        decision_id=UUID(f"7e5d4c3b-2a19-4807-9605-1f2e3d4c5b0{number}"),
        cluster_id=UUID("1d6a2f8e-7c3b-4f55-9e0d-6b7a8c9d0e01"),
        verdict=verdict,
        decided_at=datetime(2026, 11, 3, 12, number, tzinfo=UTC),
    )
    for number, verdict in enumerate(DecisionVerdict)
)
