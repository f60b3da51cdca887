"""What can go wrong while the schema is brought forward, by name.

    MigrationError                 hangs on SpectralError
    ├── MigrationFileError         a file on disk cannot be a migration; the database was not asked
    ├── MigrationDriftError        the ledger and the files disagree; nothing was changed
    ├── MigrationFailedError       a file failed and was rolled back whole; earlier files stay applied
    ├── MigrationLockError         somebody else held a lock for too long; the file was rolled back whole
    ├── UnsupportedServerError     this server, or this role on it, cannot be migrated
    └── DatabaseUnavailableError   no connection, or it was lost

Messages name files, lines and SQLSTATEs. They never carry a connection string, a row, or Postgres' DETAIL, which
quotes rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core import database
from spectral.core.events.failure import SpectralError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.migrations.ledger import Drift


class MigrationError(SpectralError):
    """The root of every error of this room."""


class MigrationFileError(MigrationError):
    """A file has a bad name, a version that is taken, no statement, or a statement that would end the transaction."""


class MigrationDriftError(MigrationError):
    """The files on disk are not the ones that were applied; `drift` says how, file by file."""

    def __init__(self, drift: Sequence[Drift]) -> None:
        self.drift = tuple(drift)
        super().__init__("nothing was changed: " + "; ".join(each.message for each in self.drift))


class MigrationFailedError(MigrationError):
    """A statement failed, its file was rolled back whole, and the files before it stay applied."""

    def __init__(self, filename: str, *, line: int, sqlstate: str | None, reason: str) -> None:
        self.filename = filename
        self.line = line
        self.sqlstate = sqlstate
        super().__init__(
            f"{filename}, line {line}: {reason} (SQLSTATE {sqlstate or 'unknown'}); "
            "the file was rolled back whole, the files before it stay applied; "
            "once the cause is mended, run: spectral migrate up"
        )


class MigrationLockError(MigrationError):
    """A lock could not be had within the lock timeout, in any of the attempts."""


class UnsupportedServerError(MigrationError):
    """The server is too old or read-only, or the role may not create what the ledger needs."""


class DatabaseUnavailableError(MigrationError, database.DatabaseUnavailableError):
    """The server could not be reached, or went away."""
