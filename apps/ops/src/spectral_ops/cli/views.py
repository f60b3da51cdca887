"""What the migrate commands show: the JSON documents, and the rows of their tables. Keys are only ever added."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spectral.core.migrations import AppliedMigration, Drift, Migration, Status, Step, UpReport, Verification

_MILLISECOND = timedelta(milliseconds=1)


def status_document(database: str, status: Status) -> dict[str, object]:
    """`spectral migrate status --json`."""
    return {
        "database": database,
        "applied": [_applied(row) for row in status.applied],
        "adoptable": _files(status.adoptable),
        "pending": _files(status.pending),
        "drift": _drift(status.drift),
    }


def status_rows(status: Status) -> list[tuple[str, str]]:
    """Every file once, in version order, with its state."""
    drifted = {each.version: each for each in status.drift}
    rows = [
        (row.version, row.filename, f"applied {row.applied_at:%Y-%m-%d %H:%M} ({row.origin})") for row in status.applied
    ]
    rows += [(each.version, each.filename, "applied (supabase), not in the ledger yet") for each in status.adoptable]
    rows += [(each.version, each.filename, "pending") for each in status.pending]
    return [
        (filename, f"DRIFTED: {drifted[version].kind}" if version in drifted else state)
        for version, filename, state in sorted(rows)
    ]


def plan_document(database: str, steps: Sequence[Step]) -> dict[str, object]:
    """`spectral migrate plan --json`."""
    return {
        "database": database,
        "steps": [{"action": step.action.value, **_file(step.migration)} for step in steps],
    }


def up_document(database: str, report: UpReport, *, dry_run: bool) -> dict[str, object]:
    """`spectral migrate up --json`."""
    return {
        "database": database,
        "dry_run": dry_run,
        "adopted": _files(report.adopted),
        "applied": _files(report.applied),
        "skipped": _files(report.skipped),
    }


def up_summary(report: UpReport, *, dry_run: bool) -> str:
    """The same in words."""
    verb = "would be " if dry_run else ""
    done = [f"{len(report.applied)} {verb}applied"] if report.applied else []
    done += [f"{len(report.adopted)} {verb}adopted"] if report.adopted else []
    done += [f"{len(report.skipped)} applied by another process"] if report.skipped else []
    return ", ".join(done) or "nothing to do"


def verify_document(database: str, found: Verification) -> dict[str, object]:
    """`spectral migrate verify --json`."""
    return {
        "database": database,
        "clean": found.clean,
        "drift": _drift(found.drift),
        "adoptable": _files(found.adoptable),
        "pending": _files(found.pending),
        "objects": [
            {"kind": each.kind, "name": each.name, "change": each.change.value, "message": each.message}
            for each in found.objects
        ],
    }


def verify_findings(found: Verification) -> list[str]:
    """The same in words, one finding per line."""
    return [
        *(each.message for each in found.drift),
        *(f"{each.filename} was applied by the Supabase CLI and is not in the ledger" for each in found.adoptable),
        *(f"{each.filename} is pending" for each in found.pending),
        *(each.message for each in found.objects),
    ]


def _applied(row: AppliedMigration) -> dict[str, object]:
    return {
        "version": row.version,
        "name": row.name,
        "checksum": row.checksum,
        "applied_at": row.applied_at.isoformat(),
        "applied_by": row.applied_by,
        "duration_ms": round(row.duration / _MILLISECOND, 3),
        "origin": row.origin,
    }


def _file(migration: Migration) -> dict[str, object]:
    return {"version": migration.version, "name": migration.name, "checksum": migration.checksum}


def _files(migrations: Iterable[Migration]) -> list[dict[str, object]]:
    return [_file(each) for each in migrations]


def _drift(drift: Iterable[Drift]) -> list[dict[str, object]]:
    return [
        {"kind": each.kind.value, "version": each.version, "file": each.filename, "message": each.message}
        for each in drift
    ]
