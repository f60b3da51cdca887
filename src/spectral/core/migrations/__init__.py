"""Bringing a database's schema forward: plain SQL files, a ledger, one transaction per file.

    discover   the files on disk                     status   applied, pending, drifted
    up         apply what is pending                 plan     what up would do
    verify     has anything been changed by hand     script   the same for a DBA with psql

Read in this order: `files`, `ledger`, `fingerprint`, `transaction`, `runner`.
"""

from spectral.core.database import describe_database
from spectral.core.migrations.failure import (
    DatabaseUnavailableError,
    MigrationDriftError,
    MigrationError,
    MigrationFailedError,
    MigrationFileError,
    MigrationLockError,
    UnsupportedServerError,
)
from spectral.core.migrations.files import Migration, bundled_directory, discover
from spectral.core.migrations.fingerprint import ObjectChange, ObjectDrift
from spectral.core.migrations.ledger import AppliedMigration, Drift, DriftKind, Origin, Status
from spectral.core.migrations.progress import (
    Adopted,
    Applied,
    Applying,
    OnProgress,
    Overwriting,
    Progress,
    Skipped,
    Waiting,
)
from spectral.core.migrations.runner import Action, Step, UpReport, Verification, plan, script, status, up, verify
from spectral.core.migrations.transaction import UpOptions

__all__ = [
    "Action",
    "Adopted",
    "Applied",
    "AppliedMigration",
    "Applying",
    "DatabaseUnavailableError",
    "Drift",
    "DriftKind",
    "Migration",
    "MigrationDriftError",
    "MigrationError",
    "MigrationFailedError",
    "MigrationFileError",
    "MigrationLockError",
    "ObjectChange",
    "ObjectDrift",
    "OnProgress",
    "Origin",
    "Overwriting",
    "Progress",
    "Skipped",
    "Status",
    "Step",
    "UnsupportedServerError",
    "UpOptions",
    "UpReport",
    "Verification",
    "Waiting",
    "bundled_directory",
    "describe_database",
    "discover",
    "plan",
    "script",
    "status",
    "up",
    "verify",
]
