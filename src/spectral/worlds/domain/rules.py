"""Rules: a cluster of failures is a candidate, a curation makes it a rule or is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID


class FailureEvidence(Protocol):
    """What worlds wants to know of failures that it has not seen itself. Who answers is decided where it is wired."""

    async def samples_of(self, cluster_id: UUID, *, limit: int) -> Sequence[str]:
        """Some of what the failures said."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A cluster that may become a rule."""

    cluster_id: UUID
    world_model_id: UUID
    signature: str
    failures: int
    samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """The candidate is a rule now."""

    rule_id: UUID


@dataclass(frozen=True, slots=True)
class Refused:
    """There is no new rule, and why."""

    reason: str


Verdict: TypeAlias = Adopted | Refused


class CandidateNotKnownError(Exception):
    """The curation came before its cluster, which may still come: events keep no order among each other."""

    def __init__(self, cluster_id: UUID) -> None:
        super().__init__(f"there is no rule candidate of cluster {cluster_id} yet")
