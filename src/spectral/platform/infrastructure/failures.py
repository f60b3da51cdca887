"""Clusters of failures: finding one and telling of it are one transaction; what the failures said is told who asks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import tuple_row

from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.platform.contracts.events.failure_cluster_detected import (
    FAILURE_CLUSTER_DETECTED_TYPE,
    FAILURE_CLUSTER_DETECTED_VERSION,
    FailureClusterDetected,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from spectral.core.events.delivery.publish import Publishing
    from spectral.platform.domain.failures import Cluster

_INSERT_CLUSTER: Final = """
    insert into platform.failure_clusters (
        cluster_id, workspace_id, world_model_id, signature, failures, detected_at
    ) values (%s, %s, %s, %s, %s, %s)
"""
_INSERT_SAMPLES: Final = """
    insert into platform.failure_samples (cluster_id, position, sample)
    select %s, given.position, given.sample
    from unnest(%s::text[]) with ordinality as given (sample, position)
"""
_SAMPLES: Final = """
    select sample from platform.failure_samples where cluster_id = %s order by position limit %s
"""


class Failures:
    """Clusters of failures, on a connection of the caller's. Every method is one transaction, or joins one."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], shared: Publishing | None = None) -> None:
        self._connection = connection
        self._publisher = publisher_for(connection, shared)

    async def detect(self, cluster: Cluster) -> FailureClusterDetected:
        """Record the cluster, and tell worlds; answers what was told.

        Raises:
            PublishError: nothing was written.
        """
        detected = FailureClusterDetected(
            cluster_id=cluster.cluster_id,
            world_model_id=cluster.world_model_id,
            signature=cluster.signature,
            failures=cluster.failures,
            detected_at=datetime.now(UTC),
        )
        async with self._connection.transaction():
            await self._connection.execute(
                _INSERT_CLUSTER,
                [
                    cluster.cluster_id,
                    cluster.workspace_id,
                    cluster.world_model_id,
                    cluster.signature,
                    cluster.failures,
                    detected.detected_at,
                ],
            )
            await self._connection.execute(_INSERT_SAMPLES, [cluster.cluster_id, list(cluster.samples)])
            await self._publisher.publish(
                EventEnvelope(
                    event_type=FAILURE_CLUSTER_DETECTED_TYPE,
                    event_version=FAILURE_CLUSTER_DETECTED_VERSION,
                    occurred_at=detected.detected_at,
                    source="platform",
                    target="worlds",
                    workspace_id=cluster.workspace_id,
                    payload=detected.model_dump(mode="json"),
                )
            )
        return detected


class PostgresFailureSamples:
    """Implements `FailureSamples` from platform's own tables, with platform's own login.

    The caller's transaction is the caller's: another context may not read these tables, and is not made to.

    Args:
        dsn: answers the connection string, when it is needed.
    """

    def __init__(self, dsn: Callable[[], str]) -> None:
        self._dsn = dsn

    async def samples_of(self, cluster_id: UUID, *, limit: int) -> Sequence[str]:
        """See `FailureSamples`."""
        async with await psycopg.AsyncConnection.connect(self._dsn(), row_factory=tuple_row) as connection:
            rows = await (await connection.execute(_SAMPLES, [cluster_id, limit])).fetchall()
        return [sample for (sample,) in rows]
