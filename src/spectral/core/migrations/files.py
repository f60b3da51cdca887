"""The migrations on disk: `YYYYMMDDHHMMSS_name.sql`, in version order, each all-or-nothing.

A file that could not be applied as one transaction is refused here, before a database is asked for anything.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.migrations.failure import MigrationFileError
from spectral.core.migrations.statements import split

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAME = re.compile(r"(?P<version>[0-9]{14})_(?P<name>[A-Za-z0-9_-]+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: what it is called, what it says, and the checksum by which it is known again."""

    version: str
    name: str
    sql: str
    checksum: str
    path: Path

    @property
    def filename(self) -> str:
        """The file's name as the Supabase CLI and the ledger know it."""
        return f"{self.version}_{self.name}.sql"


def bundled_directory() -> Path:
    """Where Spectral's own migrations are: beside this module in an installed wheel, else in the checkout."""
    packaged = Path(str(resources.files("spectral.core.migrations"))) / "sql"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[4] / "supabase" / "migrations"


def discover(directories: Sequence[Path] | None = None) -> tuple[Migration, ...]:
    """Read every `.sql` file of these directories (by default Spectral's own), merged in version order.

    Raises:
        MigrationFileError: a directory is missing, or a file has a bad name, a version that is taken, no statement,
            or a statement such as `commit` that would end its transaction.
    """
    found = [
        _read(path)
        for directory in _distinct((bundled_directory(),) if directories is None else directories)
        for path in _sql_files(directory)
    ]
    by_version: dict[str, Migration] = {}
    for migration in found:
        taken = by_version.setdefault(migration.version, migration)
        if taken is not migration:
            raise MigrationFileError(
                f"{migration.filename} and {taken.filename} have the same version; rename one to a newer version"
            )
    return tuple(by_version[version] for version in sorted(by_version))


def checksum_of(sql: str) -> str:
    """The SHA-256 of a file's text; a checkout with Windows line ends has the same one."""
    return hashlib.sha256(_normalise(sql).encode()).hexdigest()


def _normalise(sql: str) -> str:
    return sql.replace("\r\n", "\n")


def _distinct(directories: Iterable[Path]) -> list[Path]:
    return list(dict.fromkeys(directory.resolve() for directory in directories))


def _sql_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise MigrationFileError(f"there is no directory {directory}; name one that holds migrations")
    return sorted(path for path in directory.iterdir() if path.suffix == ".sql" and path.is_file())


def _read(path: Path) -> Migration:
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise MigrationFileError(
            f"{path.name} is not called YYYYMMDDHHMMSS_name.sql (14 digits, then letters, digits, _ or -); rename it"
        )
    try:
        sql = _normalise(path.read_bytes().decode())
    except UnicodeDecodeError:
        raise MigrationFileError(f"{path.name} is not UTF-8; save it as UTF-8") from None
    statements = split(sql)
    if not statements:
        raise MigrationFileError(f"{path.name} holds no statement; write one or delete the file")
    for statement in statements:
        if statement.controls_transaction:
            raise MigrationFileError(
                f"{path.name}, line {statement.line}: {statement.words[0]} would break the one transaction "
                "in which a file is applied; delete that statement"
            )
    return Migration(named["version"], named["name"], sql, checksum_of(sql), path)
