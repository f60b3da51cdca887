"""The ledger: which files this database has seen, and how the files on disk compare with it.

`spectral_migrations.history` has one row per applied file, written in the transaction that applied it. Comparing is
pure: rows and files in, a `Status` out; only `up` acts on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from psycopg.rows import class_row

from spectral.core.migrations.failure import MigrationDriftError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta
    from pathlib import Path
    from typing import Any

    from psycopg import Connection

    from spectral.core.migrations.files import Migration

# Idempotent, and only ever run under the migration lock: `if not exists` alone does not survive two at once.
CREATE_LEDGER = """\
create schema if not exists spectral_migrations;

create table if not exists spectral_migrations.history (
    version    text primary key,
    name       text not null,
    checksum   text not null,
    applied_at timestamptz not null default pg_catalog.clock_timestamp(),
    applied_by text not null default session_user,
    duration   interval not null,
    origin     text not null constraint history_origin_known check (origin in ('runner', 'supabase', 'script'))
);

create table if not exists spectral_migrations.objects (
    kind   text not null,
    name   text not null,
    digest text not null,
    primary key (kind, name)
);"""

_INSERT = """\
insert into spectral_migrations.history (version, name, checksum, duration, origin)
values (%s, %s, %s, %s, %s)"""

_READ = """\
select version, name, checksum, applied_at, applied_by, duration, origin
from spectral_migrations.history
order by version"""

# The catalog answers everybody; to_regclass would refuse a role without usage on the schema.
_EXISTS = """\
select exists (
    select from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s
)"""


class Origin(StrEnum):
    """Who applied a file."""

    RUNNER = "runner"
    SUPABASE = "supabase"
    SCRIPT = "script"


class DriftKind(StrEnum):
    """How a file and the ledger disagree."""

    CHANGED = "changed"
    MISSING = "missing"
    OUT_OF_ORDER = "out_of_order"


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One row of the ledger."""

    version: str
    name: str
    checksum: str
    applied_at: datetime
    applied_by: str
    duration: timedelta
    origin: str

    @property
    def filename(self) -> str:
        """The name of the file that was applied."""
        return f"{self.version}_{self.name}.sql"


@dataclass(frozen=True, slots=True)
class Drift:
    """One disagreement, and what to do about it."""

    kind: DriftKind
    version: str
    filename: str
    message: str


@dataclass(frozen=True, slots=True)
class Status:
    """The files on disk beside the ledger: applied, applied by Supabase but not yet in the ledger, pending, drifted."""

    applied: tuple[AppliedMigration, ...]
    adoptable: tuple[Migration, ...]
    pending: tuple[Migration, ...]
    drift: tuple[Drift, ...]

    def require_no_drift(self) -> None:
        """Raise `MigrationDriftError` when the files are not the ones that were applied."""
        if self.drift:
            raise MigrationDriftError(self.drift)


def compare(files: Sequence[Migration], applied: Sequence[AppliedMigration], supabase: Collection[str]) -> Status:
    """Decide, for each file and each ledger row, what it is.

    Versions in Supabase's table that are not on disk are the user's own and none of our business.
    """
    known = {row.version for row in applied}
    adoptable = tuple(each for each in files if each.version not in known and each.version in supabase)
    done = known | {each.version for each in adoptable}
    pending = tuple(each for each in files if each.version not in done)
    drift = (*_changed_or_missing(files, applied), *_out_of_order(files, pending, done))
    return Status(tuple(applied), adoptable, pending, drift)


def read_applied(connection: Connection[Any]) -> tuple[AppliedMigration, ...]:
    """The ledger's rows in version order; none when there is no ledger yet."""
    if not _exists(connection, "spectral_migrations", "history"):
        return ()
    with connection.cursor(row_factory=class_row(AppliedMigration)) as cursor:
        return tuple(cursor.execute(_READ).fetchall())


def read_supabase(connection: Connection[Any]) -> frozenset[str]:
    """The versions that the Supabase CLI says it applied; none on a database it never touched."""
    if not _exists(connection, "supabase_migrations", "schema_migrations"):
        return frozenset()
    rows = connection.execute("select version from supabase_migrations.schema_migrations").fetchall()
    return frozenset(str(version) for (version,) in rows)


def record(connection: Connection[Any], migration: Migration, *, duration: timedelta, origin: Origin) -> None:
    """Write the row of a file; belongs in the transaction that applied it."""
    row = (migration.version, migration.name, migration.checksum, duration, origin.value)
    connection.execute(_INSERT, row)


def _exists(connection: Connection[Any], schema: str, table: str) -> bool:
    row = connection.execute(_EXISTS, (schema, table)).fetchone()
    return bool(row and row[0])


def _changed_or_missing(files: Sequence[Migration], applied: Sequence[AppliedMigration]) -> list[Drift]:
    on_disk = {each.version: each for each in files}
    found: list[Drift] = []
    for row in applied:
        file = on_disk.get(row.version)
        if file is None:
            newer = all(row.version > version for version in on_disk)
            message = f"{row.filename} was applied but is not on disk: " + (
                "a newer release migrated this database; install that one, or leave out `migrate up` in this one"
                if newer
                else "bring the file back, or name the directory that holds it"
            )
            found.append(Drift(DriftKind.MISSING, row.version, row.filename, message))
        elif file.checksum != row.checksum:
            message = (
                f"{file.filename} is not what was applied (its checksum differs): "
                "restore the file as it was and put the change into a new one"
            )
            found.append(Drift(DriftKind.CHANGED, row.version, file.filename, message))
    return found


def _out_of_order(files: Sequence[Migration], pending: Sequence[Migration], done: Collection[str]) -> list[Drift]:
    # Judged per directory: a library and a project that uses it number their files independently, and an upgrade of
    # one may well bring a file older than the newest of the other.
    newest: dict[Path, Migration] = {}
    for each in files:  # in version order, so the last one stays
        if each.version in done:
            newest[each.path.parent] = each
    found: list[Drift] = []
    for each in pending:
        latest = newest.get(each.path.parent)
        if latest is not None and each.version < latest.version:
            message = (
                f"{each.filename} is pending but older than {latest.filename}, which is applied: "
                "rename it to a version newer than that"
            )
            found.append(Drift(DriftKind.OUT_OF_ORDER, each.version, each.filename, message))
    return found
