"""Scans: completing one and telling of it are one transaction; the index is made afterwards, by whoever is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import tuple_row

from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.worlds.contracts.events.scan_completed import (
    SCAN_COMPLETED_TYPE,
    SCAN_COMPLETED_VERSION,
    ScanCompleted,
)
from spectral.worlds.domain.scans import Finding, Severity, index_terms

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import psycopg

    from spectral.core.events.delivery.publish import Publishing

_START: Final = "insert into worlds.scans (scan_id, world_model_id) values (%s, %s)"
_COMPLETE: Final = """
    update worlds.scans as scan set completed_at = clock_timestamp()
    from worlds.world_models as model
    where scan.scan_id = %s and scan.completed_at is null and model.world_model_id = scan.world_model_id
    returning scan.world_model_id, scan.completed_at, model.workspace_id
"""
_INSERT_FINDINGS: Final = """
    insert into worlds.findings (scan_id, position, term, severity)
    select %s, found.position, found.term, found.severity
    from unnest(%s::text[], %s::text[]) with ordinality as found (term, severity, position)
"""
_FINDINGS: Final = "select term, severity from worlds.findings where scan_id = %s order by position"
_INSERT_INDEX: Final = """
    insert into worlds.scan_index (term, scan_id, occurrences)
    select entry.term, %s, entry.occurrences
    from unnest(%s::text[], %s::integer[]) as entry (term, occurrences)
    on conflict (term, scan_id) do nothing
"""


class ScanNotOpenError(LookupError):
    """There is no such scan, or it is completed already."""


class Scans:
    """Scans, on a connection of the caller's. Every method is one transaction, or joins one."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], shared: Publishing | None = None) -> None:
        self._connection = connection
        self._publisher = publisher_for(connection, shared)

    async def start(self, scan_id: UUID, world_model_id: UUID) -> None:
        """Begin a scan."""
        async with self._connection.transaction():
            await self._connection.execute(_START, [scan_id, world_model_id])

    async def complete(self, scan_id: UUID, findings: Sequence[Finding]) -> ScanCompleted:
        """Write down what was found and end the scan, which worlds itself wants to know; answers what was told.

        Raises:
            ScanNotOpenError: there is no such scan, or it is completed already.
            PublishError: nothing was written.
        """
        async with self._connection.transaction():
            completed, workspace_id = await self._complete(scan_id, findings)
            await self._publisher.publish(
                EventEnvelope(
                    event_type=SCAN_COMPLETED_TYPE,
                    event_version=SCAN_COMPLETED_VERSION,
                    occurred_at=completed.completed_at,
                    source="worlds",
                    target="worlds",
                    workspace_id=workspace_id,
                    payload=completed.model_dump(mode="json"),
                )
            )
        return completed

    async def _complete(self, scan_id: UUID, findings: Sequence[Finding]) -> tuple[ScanCompleted, UUID | None]:
        cursor = self._connection.cursor(row_factory=tuple_row)
        row = await (await cursor.execute(_COMPLETE, [scan_id])).fetchone()
        if row is None:
            raise ScanNotOpenError(f"there is no open scan {scan_id}; start it first")
        world_model_id, completed_at, workspace_id = row
        terms = [finding.term for finding in findings]
        await cursor.execute(_INSERT_FINDINGS, [scan_id, terms, [finding.severity.value for finding in findings]])
        completed = ScanCompleted(
            scan_id=scan_id, world_model_id=world_model_id, findings=len(findings), completed_at=completed_at
        )
        return completed, workspace_id


async def index_scan(connection: psycopg.AsyncConnection[Any], scan_id: UUID) -> None:
    """Enter the findings of a completed scan, which do not change any more, in the caller's transaction."""
    cursor = connection.cursor(row_factory=tuple_row)
    rows = await (await cursor.execute(_FINDINGS, [scan_id])).fetchall()
    index = index_terms(Finding(term, Severity(severity)) for term, severity in rows)
    await cursor.execute(_INSERT_INDEX, [scan_id, list(index), list(index.values())])
