"""A scan of a world model has been completed.

The findings stay in the tables of worlds: the event is for whoever may read them there, and for those who only count.
"""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

SCAN_COMPLETED_TYPE: Final = "worlds.scan.completed"
SCAN_COMPLETED_VERSION: Final = 1


class ScanCompleted(BaseModel):
    """Which scan, of what, and how much it found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scan_id: UUID = Field(description="The scan.")
    world_model_id: UUID = Field(description="What was scanned.")
    findings: int = Field(description="How many findings there are.", ge=0)
    completed_at: AwareDatetime = Field(description="When the last finding was written.")


EXAMPLES: Final = (
    ScanCompleted(
        scan_id=UUID("9b1f6d0e-94d2-4b0a-8f5e-0f6f5a3f2f01"),
        world_model_id=UUID("5f0c7a52-6b8e-4d43-9a0e-3d5a5b1f7c11"),
        findings=3,
        completed_at=datetime(2026, 11, 2, 9, 45, tzinfo=UTC),
    ),
    ScanCompleted(
        scan_id=UUID("9b1f6d0e-94d2-4b0a-8f5e-0f6f5a3f2f02"),
        world_model_id=UUID("5f0c7a52-6b8e-4d43-9a0e-3d5a5b1f7c11"),
        findings=0,
        completed_at=datetime(2026, 11, 2, 10, 0, tzinfo=UTC),
    ),
)
