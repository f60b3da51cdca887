"""Failures of a world model that look alike were found to be one cluster.

What the failures said is not in it, for it may be long: ask through `FailureSamples`.
"""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

FAILURE_CLUSTER_DETECTED_TYPE: Final = "platform.failure_cluster.detected"
FAILURE_CLUSTER_DETECTED_VERSION: Final = 1


class FailureClusterDetected(BaseModel):
    """One cluster, and what its failures have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cluster_id: UUID = Field(description="The cluster.")
    world_model_id: UUID = Field(description="The world model that failed.")
    signature: str = Field(description="What the failures have in common.", min_length=1, max_length=200)
    failures: int = Field(description="How many there were when it was detected.", ge=1)
    detected_at: AwareDatetime = Field(description="When it was detected.")


EXAMPLES: Final = (
    FailureClusterDetected(
        cluster_id=UUID("1d6a2f8e-7c3b-4f55-9e0d-6b7a8c9d0e01"),
        world_model_id=UUID("5f0c7a52-6b8e-4d43-9a0e-3d5a5b1f7c11"),
        signature="crane passes through fog bank",
        failures=17,
        detected_at=datetime(2026, 11, 3, 12, 0, tzinfo=UTC),
    ),
)
