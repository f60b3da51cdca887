"""Files that are not the ones that were applied: refused before anything is changed, with the file and a way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spectral.core.migrations import DriftKind, MigrationDriftError, plan, script, status, up, verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.database


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (directory / f"{name.removeprefix('v')}.sql").write_text(sql)
    return directory


@pytest.fixture
def applied(empty_database: str, tmp_path: Path) -> Path:
    directory = write(tmp_path / "files", v20250101000000_a="create table a ()", v20250103000000_c="create table c ()")
    up(empty_database, directories=[directory])
    return directory


def refused(dsn: str, directory: Path) -> MigrationDriftError:
    """`up`, `plan` and `script` refuse alike; `status` and `verify` report; nothing is written."""
    before = status(dsn, directories=[directory])
    for verb in (plan, script):
        with pytest.raises(MigrationDriftError):
            verb(dsn, directories=[directory])
    with pytest.raises(MigrationDriftError, match="nothing was changed") as caught:
        up(dsn, directories=[directory])
    assert status(dsn, directories=[directory]) == before
    assert verify(dsn, directories=[directory]).drift == before.drift == caught.value.drift
    return caught.value


def test_an_edited_file_is_refused(empty_database: str, applied: Path) -> None:
    write(applied, v20250101000000_a="create table a (id int)", v20250104000000_d="create table d ()")
    error = refused(empty_database, applied)
    assert [each.kind for each in error.drift] == [DriftKind.CHANGED]
    assert "20250101000000_a.sql is not what was applied" in str(error)
    assert "put the change into a new one" in str(error)


def test_a_deleted_file_is_refused(empty_database: str, applied: Path) -> None:
    (applied / "20250101000000_a.sql").unlink()
    error = refused(empty_database, applied)
    assert [each.kind for each in error.drift] == [DriftKind.MISSING]
    assert "20250101000000_a.sql was applied but is not on disk" in str(error)


def test_a_file_older_than_the_newest_applied_one_is_refused(empty_database: str, applied: Path) -> None:
    write(applied, v20250102000000_b="create table b ()")
    error = refused(empty_database, applied)
    assert [each.kind for each in error.drift] == [DriftKind.OUT_OF_ORDER]
    assert "20250102000000_b.sql is pending but older than 20250103000000_c.sql" in str(error)


def test_every_disagreement_is_named_at_once(empty_database: str, applied: Path) -> None:
    (applied / "20250101000000_a.sql").unlink()
    write(applied, v20250102000000_b="create table b ()", v20250103000000_c="create table other ()")
    assert {each.kind for each in refused(empty_database, applied).drift} == set(DriftKind)


def test_another_directory_may_bring_an_older_file(empty_database: str, applied: Path, tmp_path: Path) -> None:
    library = write(tmp_path / "library", v20250102000000_b="create table b ()")
    report = up(empty_database, directories=[applied, library])
    assert [each.name for each in report.applied] == ["b"]
    assert verify(empty_database, directories=[library, applied]).clean
