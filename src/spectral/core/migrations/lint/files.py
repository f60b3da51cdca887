"""Names of migration files: `YYYYMMDDHHMMSS_snake_case.sql`, one version each, so that sorting is the order."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spectral.core.migrations.lint.findings import Finding, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_NAME = re.compile(r"(?P<version>[0-9]{14})_[a-z][a-z0-9]*(?:_[a-z0-9]+)*\.sql")
_FIRST_YEAR, _LAST_YEAR = 2000, 2099


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The files to lint in the order of their names; a directory stands for the SQL files in it."""
    found: set[Path] = set()
    for path in paths:
        found.update(path.glob("*.sql") if path.is_dir() else (path,))
    return sorted(found, key=lambda path: (path.name, path))


def check_names(files: list[Path]) -> Iterator[Finding]:
    """Names that the runner would refuse or put in an order nobody chose."""
    first_with: dict[str, Path] = {}
    for path in files:
        named = _NAME.fullmatch(path.name)
        if named is None:
            yield _finding(path, "the name is not YYYYMMDDHHMMSS_snake_case.sql; rename the file")
            continue
        version = named["version"]
        if not _is_plausible(version):
            yield _finding(path, f"{version} is no time between {_FIRST_YEAR} and {_LAST_YEAR}; rename the file")
        if version in first_with:
            yield _finding(path, f"{first_with[version].name} has the same version; give this file a later one")
        first_with.setdefault(version, path)


def _is_plausible(version: str) -> bool:
    try:
        moment = datetime.strptime(version, "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return False
    return _FIRST_YEAR <= moment.year <= _LAST_YEAR


def _finding(path: Path, message: str) -> Finding:
    return Finding(Rule.FILE_NAME, path, 1, message)
