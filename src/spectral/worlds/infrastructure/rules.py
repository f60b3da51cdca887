"""Candidates and rules, in the transaction of whoever asks; and the answer to a curation."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import tuple_row

from spectral.core.events import EventEnvelope
from spectral.worlds.contracts.events.curation_applied import (
    CURATION_APPLIED_TYPE,
    CURATION_APPLIED_VERSION,
    CurationApplied,
    CurationOutcome,
)
from spectral.worlds.domain.rules import Adopted, CandidateNotKnownError, Refused, Verdict

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

    from spectral.worlds.domain.rules import Proposal

_PROPOSE: Final = """
    insert into worlds.rule_candidates (cluster_id, world_model_id, signature, failures, samples)
    values (%s, %s, %s, %s, %s)
    on conflict (cluster_id) do nothing
"""
_CANDIDATE: Final = "select candidate_id from worlds.rule_candidates where cluster_id = %s"
# Two curations of one cluster: the first to commit makes the rule.
_ADOPT: Final = """
    insert into worlds.rules (candidate_id, curation_id, rule) values (%s, %s, %s)
    on conflict (candidate_id) do nothing
    returning rule_id
"""


async def propose(connection: psycopg.AsyncConnection[Any], proposal: Proposal) -> None:
    """Have a rule candidate of this cluster; a cluster that is reported again changes nothing."""
    await connection.execute(
        _PROPOSE,
        [
            proposal.cluster_id,
            proposal.world_model_id,
            proposal.signature,
            proposal.failures,
            list(proposal.samples),
        ],
    )


async def adopt(connection: psycopg.AsyncConnection[Any], curation_id: UUID, cluster_id: UUID, rule: str) -> Verdict:
    """Make the cluster's candidate a rule.

    Raises:
        CandidateNotKnownError: there is no candidate of this cluster yet.
    """
    cursor = connection.cursor(row_factory=tuple_row)
    candidate = await (await cursor.execute(_CANDIDATE, [cluster_id])).fetchone()
    if candidate is None:
        raise CandidateNotKnownError(cluster_id)
    adopted = await (await cursor.execute(_ADOPT, [candidate[0], curation_id, rule])).fetchone()
    return Adopted(adopted[0]) if adopted else Refused("the candidate is a rule already")


def answer(curation_id: UUID, verdict: Verdict, *, workspace_id: UUID | None) -> EventEnvelope:
    """What platform is told of its curation."""
    told = CurationApplied(
        curation_id=curation_id,
        outcome=CurationOutcome.APPLIED if isinstance(verdict, Adopted) else CurationOutcome.REFUSED,
        rule_id=verdict.rule_id if isinstance(verdict, Adopted) else None,
        refusal=verdict.reason if isinstance(verdict, Refused) else None,
        decided_at=datetime.now(UTC),
    )
    return EventEnvelope(
        event_type=CURATION_APPLIED_TYPE,
        event_version=CURATION_APPLIED_VERSION,
        occurred_at=told.decided_at,
        source="worlds",
        target="platform",
        workspace_id=workspace_id,
        payload=told.model_dump(mode="json"),
    )
