"""The runner: look, then act. `status`, `plan`, `verify` and `script` only read; `up` alone changes the database.

Everything is decided by comparing files with the ledger before the first change, and decided again for each file
inside its own transaction, under the lock. That makes `up` safe to run twice and by two processes at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from spectral.core.migrations.files import Migration, discover
from spectral.core.migrations.fingerprint import ObjectDrift, object_drift
from spectral.core.migrations.ledger import Drift, Status, compare, read_applied, read_supabase
from spectral.core.migrations.progress import Applying, Overwriting
from spectral.core.migrations.rendering import render
from spectral.core.migrations.server import connected, read_facts, require_writable
from spectral.core.migrations.transaction import Session, UpOptions, apply_file, prepare_ledger

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from psycopg import Connection

    from spectral.core.migrations.progress import OnProgress, Progress


class Action(StrEnum):
    """What `up` does with a file."""

    ADOPT = "adopt"
    APPLY = "apply"


@dataclass(frozen=True, slots=True)
class Step:
    """One file that `up` would apply, or would enter into the ledger because the Supabase CLI has applied it."""

    action: Action
    migration: Migration


@dataclass(frozen=True, slots=True)
class UpReport:
    """What one `up` did; `skipped` files were applied by another process while it ran."""

    adopted: tuple[Migration, ...] = ()
    applied: tuple[Migration, ...] = ()
    skipped: tuple[Migration, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """Everything that stands between this database and the files on disk."""

    drift: tuple[Drift, ...]
    adoptable: tuple[Migration, ...]
    pending: tuple[Migration, ...]
    objects: tuple[ObjectDrift, ...]

    @property
    def clean(self) -> bool:
        """Nothing drifted, nothing pending, nothing changed by hand."""
        return not (self.drift or self.adoptable or self.pending or self.objects)


def status(dsn: str, *, directories: Sequence[Path] | None = None) -> Status:
    """Compare the files with the ledger; never raises for drift.

    Raises:
        MigrationFileError: a file on disk cannot be a migration.
        DatabaseUnavailableError: there is no server.
        UnsupportedServerError: the server is too old.
    """
    files = discover(directories)
    with _reading(dsn) as connection:
        return _look(connection, files)


def plan(dsn: str, *, directories: Sequence[Path] | None = None) -> tuple[Step, ...]:
    """What `up` would do, in order.

    Raises:
        MigrationDriftError: `up` would refuse. Otherwise as `status`.
    """
    found = status(dsn, directories=directories)
    found.require_no_drift()
    return _steps(found)


def verify(dsn: str, *, directories: Sequence[Path] | None = None) -> Verification:
    """Compare files, ledger and schema: checksums, nothing pending, no object changed by hand. Raises as `status`."""
    files = discover(directories)
    with _reading(dsn) as connection:
        found = _look(connection, files)
        objects = object_drift(connection) if found.applied else ()
    return Verification(found.drift, found.adoptable, found.pending, objects)


def script(dsn: str | None, *, directories: Sequence[Path] | None = None) -> str:
    """The pending files as one SQL script that also keeps the ledger; with no DSN all files, for an empty database.

    Raises:
        MigrationDriftError: `up` would refuse. Otherwise as `status`.
    """
    if dsn is None:
        return render((), discover(directories), after=None)
    found = status(dsn, directories=directories)
    found.require_no_drift()
    done = [row.version for row in found.applied] + [each.version for each in found.adoptable]
    return render(found.adoptable, found.pending, after=max(done, default=None))


def up(
    dsn: str,
    *,
    directories: Sequence[Path] | None = None,
    options: UpOptions | None = None,
    on_progress: OnProgress | None = None,
) -> UpReport:
    """Apply every pending file in order, each in a transaction of its own. Nothing is done when nothing is pending.

    Raises:
        MigrationDriftError: files and ledger disagree; nothing was changed.
        MigrationFailedError: a file failed and was rolled back whole; earlier ones stay applied.
        MigrationLockError: a lock was not to be had; likewise.
        UnsupportedServerError: too old, a standby, read-only, or a role that may not create schemas.
        DatabaseUnavailableError: no server, or the connection was lost; running again is safe.
        MigrationFileError: a file on disk cannot be a migration.
    """
    files, chosen = discover(directories), options or UpOptions()
    with connected(dsn) as connection:
        facts = read_facts(connection)
        found = _look(connection, files)
        found.require_no_drift()
        if chosen.dry_run:
            return UpReport(adopted=found.adoptable, applied=found.pending)
        require_writable(facts)
        if not found.adoptable and not found.pending:
            return UpReport()
        return _carry_out(Session(connection, files, chosen, on_progress or _silently), found)


def _carry_out(session: Session, found: Status) -> UpReport:
    prepare_ledger(session, found.adoptable)
    if found.applied and (changed := object_drift(session.connection)):
        session.on_progress(Overwriting(changed))
    applied: list[Migration] = []
    skipped: list[Migration] = []
    for position, migration in enumerate(found.pending, start=1):
        session.on_progress(Applying(migration, position, len(found.pending)))
        (applied if apply_file(session, migration) else skipped).append(migration)
    return UpReport(found.adoptable, tuple(applied), tuple(skipped))


def _steps(found: Status) -> tuple[Step, ...]:
    adopt = [Step(Action.ADOPT, each) for each in found.adoptable]
    return (*adopt, *(Step(Action.APPLY, each) for each in found.pending))


def _look(connection: Connection[Any], files: Sequence[Migration]) -> Status:
    return compare(files, read_applied(connection), read_supabase(connection))


@contextmanager
def _reading(dsn: str) -> Generator[Connection[Any]]:
    """One snapshot for everything that is compared; a standby or a read-only role will do."""
    with connected(dsn) as connection, connection.transaction():
        connection.execute("set transaction isolation level repeatable read, read only")
        read_facts(connection)
        yield connection


def _silently(_: Progress) -> None:
    """Report nothing."""
