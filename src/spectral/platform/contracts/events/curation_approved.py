"""A curation was approved: a cluster of failures is to become a rule.

Whoever keeps the rules answers with what became of it.
"""

from datetime import UTC, datetime
from typing import Final
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

CURATION_APPROVED_TYPE: Final = "platform.curation.approved"
CURATION_APPROVED_VERSION: Final = 1


class CurationApproved(BaseModel):
    """Which cluster, and the rule that people agreed on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    curation_id: UUID = Field(description="The curation; the answer names it.")
    cluster_id: UUID = Field(description="The cluster that is to become a rule.")
    rule: str = Field(description="The rule, in the words that were approved.", min_length=1, max_length=2000)
    approved_at: AwareDatetime = Field(description="When it was approved.")


EXAMPLES: Final = (
    CurationApproved(
        curation_id=UUID("3c0b9d0e-0b4b-4cb1-9d0b-4a1f7f3b8a01"),
        cluster_id=UUID("1d6a2f8e-7c3b-4f55-9e0d-6b7a8c9d0e01"),
        rule="A crane stops at a fog bank.",
        approved_at=datetime(2026, 11, 4, 7, 59, tzinfo=UTC),
    ),
)
