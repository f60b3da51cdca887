"""Clusters of failures, and what is decided about them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uuid import UUID


class Verdict(StrEnum):
    """What can be decided about a cluster."""

    APPROVE = "approve"
    REJECT = "reject"
    DEFER = "defer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Failures that look alike; `samples` are what some of them said."""

    cluster_id: UUID
    world_model_id: UUID
    signature: str
    failures: int
    samples: tuple[str, ...]
    workspace_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What somebody wants done with a cluster, and why."""

    cluster_id: UUID
    verdict: Verdict
    decided_by: str
    reason: str
