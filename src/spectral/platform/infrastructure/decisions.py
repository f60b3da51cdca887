"""Decisions and curations: each is recorded and told in one transaction; an approval is both, and tells both."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

from psycopg.rows import tuple_row

from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.platform.contracts.events.curation_approved import (
    CURATION_APPROVED_TYPE,
    CURATION_APPROVED_VERSION,
    CurationApproved,
)
from spectral.platform.contracts.events.decision_recorded import (
    DECISION_RECORDED_TYPE,
    DECISION_RECORDED_VERSION,
    DecisionRecorded,
    DecisionVerdict,
)
from spectral.platform.domain.failures import Decision, Verdict

if TYPE_CHECKING:
    import psycopg

    from spectral.core.events.delivery.publish import Publishing

_WORKSPACE: Final = "select workspace_id from platform.failure_clusters where cluster_id = %s"
_INSERT_DECISION: Final = """
    insert into platform.decisions (decision_id, cluster_id, verdict, decided_by, reason, decided_at)
    values (%s, %s, %s, %s, %s, %s)
"""
_INSERT_CURATION: Final = """
    insert into platform.curations (curation_id, cluster_id, decision_id, rule, approved_at)
    values (%s, %s, %s, %s, %s)
"""
_COUNT: Final = """
    insert into platform.decision_totals (decided_on, verdict, total)
    values ((%s at time zone 'utc')::date, %s, 1)
    on conflict (decided_on, verdict) do update set total = decision_totals.total + 1
"""
# A curation is closed once: an answer that comes again finds it closed.
_CLOSE: Final = """
    update platform.curations set status = %s, rule_id = %s, refusal = %s, closed_at = clock_timestamp()
    where curation_id = %s and status = 'approved'
"""


class ClusterNotFoundError(LookupError):
    """There is no such cluster."""


class Decisions:
    """Decisions about clusters, on a connection of the caller's. Every method is one transaction, or joins one."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], shared: Publishing | None = None) -> None:
        self._connection = connection
        self._publisher = publisher_for(connection, shared)

    async def record(self, decision: Decision) -> DecisionRecorded:
        """Record the decision, which platform itself wants to know; answers what was told.

        Raises:
            ClusterNotFoundError: it is about no cluster that is known.
            PublishError: nothing was written.
        """
        async with self._connection.transaction():
            return await self._record(decision, await self._workspace_of(decision.cluster_id))

    async def approve(self, cluster_id: UUID, rule: str, *, decided_by: str, reason: str) -> CurationApproved:
        """Decide that the cluster is to become this rule, and have worlds make it one; answers what worlds was told.

        Raises:
            ClusterNotFoundError: there is no such cluster.
            PublishError: nothing was written.
        """
        decision = Decision(cluster_id=cluster_id, verdict=Verdict.APPROVE, decided_by=decided_by, reason=reason)
        async with self._connection.transaction():
            workspace_id = await self._workspace_of(cluster_id)
            recorded = await self._record(decision, workspace_id)
            approved = CurationApproved(
                curation_id=uuid4(), cluster_id=cluster_id, rule=rule, approved_at=recorded.decided_at
            )
            await self._connection.execute(
                _INSERT_CURATION,
                [approved.curation_id, cluster_id, recorded.decision_id, rule, approved.approved_at],
            )
            await self._publisher.publish(
                EventEnvelope(
                    event_type=CURATION_APPROVED_TYPE,
                    event_version=CURATION_APPROVED_VERSION,
                    occurred_at=approved.approved_at,
                    source="platform",
                    target="worlds",
                    workspace_id=workspace_id,
                    payload=approved.model_dump(mode="json"),
                )
            )
        return approved

    async def _record(self, decision: Decision, workspace_id: UUID | None) -> DecisionRecorded:
        recorded = DecisionRecorded(
            decision_id=uuid4(),
            cluster_id=decision.cluster_id,
            verdict=DecisionVerdict(decision.verdict),
            decided_at=datetime.now(UTC),
        )
        await self._connection.execute(
            _INSERT_DECISION,
            [
                recorded.decision_id,
                decision.cluster_id,
                decision.verdict.value,
                decision.decided_by,
                decision.reason,
                recorded.decided_at,
            ],
        )
        await self._publisher.publish(
            EventEnvelope(
                event_type=DECISION_RECORDED_TYPE,
                event_version=DECISION_RECORDED_VERSION,
                occurred_at=recorded.decided_at,
                source="platform",
                target="platform",
                workspace_id=workspace_id,
                payload=recorded.model_dump(mode="json"),
            )
        )
        return recorded

    async def _workspace_of(self, cluster_id: UUID) -> UUID | None:
        cursor = self._connection.cursor(row_factory=tuple_row)
        row = await (await cursor.execute(_WORKSPACE, [cluster_id])).fetchone()
        if row is None:
            raise ClusterNotFoundError(f"there is no cluster {cluster_id}; detect it first")
        workspace_id: UUID | None = row[0]
        return workspace_id


async def count_decision(connection: psycopg.AsyncConnection[Any], verdict: Verdict, decided_at: datetime) -> None:
    """Count the decision on its day, in the caller's transaction. Not idempotent: whoever calls it has to be."""
    await connection.execute(_COUNT, [decided_at, verdict.value])


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """How a curation ended: with a rule, or with the reason why there is none."""

    curation_id: UUID
    rule_id: UUID | None = None
    refusal: str | None = None


async def close_curation(connection: psycopg.AsyncConnection[Any], closure: Closure) -> bool:
    """Close the curation in the caller's transaction; answers whether it was open."""
    status = "refused" if closure.rule_id is None else "applied"
    cursor = await connection.execute(_CLOSE, [status, closure.rule_id, closure.refusal, closure.curation_id])
    return cursor.rowcount == 1
