"""Several at once: two processes, a held migration lock, a busy table. Every wait is for a named signal."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from typing import IO, TYPE_CHECKING

import psycopg
import pytest

from spectral.core.migrations import MigrationLockError, Progress, Skipped, UpOptions, Waiting, status, up
from spectral.core.migrations.transaction import LOCK_KEY

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.database

IMPATIENT = UpOptions(lock_timeout=timedelta(milliseconds=50), attempts=2, pause=timedelta(0))


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (directory / f"{name.removeprefix('v')}.sql").write_text(sql)
    return directory


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write(
        tmp_path / "files",
        v20250101000000_a="create table runs (name text); insert into runs values ('a')",
        v20250102000000_b="insert into runs values ('b')",
        v20250103000000_c="insert into runs values ('c')",
    )


def test_two_processes_at_once_apply_each_file_once(empty_database: str, files: Path) -> None:
    command = [sys.executable, "-c", "from spectral_ops.cli import main; main()", "migrate", "up", "--json"]
    command += ["--no-bundled", "--directory", str(files), "--lock-timeout", "0.2"]
    with psycopg.connect(empty_database) as holder:
        # Both processes have to queue for the lock before either may have it.
        holder.execute("select pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        both = [
            subprocess.Popen(
                command,
                env={"SPECTRAL_DATABASE_URL": empty_database},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in both:
            assert "waits for a lock" in first_line(process.stderr)
        holder.rollback()
    outputs = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    applied = [each["name"] for stdout, _ in outputs for each in json.loads(stdout)["applied"]]
    assert sorted(applied) == ["a", "b", "c"]
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("select name from runs order by name").fetchall() == [("a",), ("b",), ("c",)]


def first_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def test_a_file_that_another_process_applied_meanwhile_is_skipped(empty_database: str, files: Path) -> None:
    seen: list[Progress] = []

    def overtake(event: Progress) -> None:
        seen.append(event)
        if len(seen) == 1:  # this runner has looked and is about to begin: another one does all the work
            up(empty_database, directories=[files])

    report = up(empty_database, directories=[files], on_progress=overtake)
    assert (report.applied, [each.name for each in report.skipped]) == ((), ["a", "b", "c"])
    assert sum(isinstance(event, Skipped) for event in seen) == 3


def test_a_held_migration_lock_is_reported_with_its_holder(empty_database: str, files: Path) -> None:
    with psycopg.connect(empty_database, application_name="deploy-7") as holder:
        holder.execute("select pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        with pytest.raises(MigrationLockError, match="for the migration lock, held by pid") as caught:
            up(empty_database, directories=[files], options=IMPATIENT)
        assert f"pid {holder.info.backend_pid} (deploy-7" in str(caught.value)
    assert len(status(empty_database, directories=[files]).pending) == 3


def test_a_lock_that_becomes_free_between_attempts_is_had(empty_database: str, files: Path) -> None:
    with psycopg.connect(empty_database) as holder:
        holder.execute("select pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        seen: list[Progress] = []

        def release(event: Progress) -> None:
            seen.append(event)
            if isinstance(event, Waiting):
                holder.rollback()

        report = up(empty_database, directories=[files], options=IMPATIENT, on_progress=release)
    assert len(report.applied) == 3
    assert sum(isinstance(event, Waiting) for event in seen) == 1


def test_a_busy_table_is_tried_again_and_named_by_line(empty_database: str, files: Path) -> None:
    up(empty_database, directories=[files])
    write(files, v20250104000000_d="create table half ();\n\nalter table runs add column more int;")
    with psycopg.connect(empty_database, application_name="long-report") as reader:
        reader.execute("select from runs")
        seen: list[Progress] = []
        with pytest.raises(MigrationLockError, match=r"20250104000000_d\.sql needs on line 3") as caught:
            up(empty_database, directories=[files], options=IMPATIENT, on_progress=seen.append)
        assert f"pid {reader.info.backend_pid} (long-report" in str(caught.value)
    assert sum(isinstance(event, Waiting) for event in seen) == 1
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("select to_regclass('half')").fetchall() == [(None,)]
    assert [each.name for each in up(empty_database, directories=[files]).applied] == ["d"]


def test_the_limits_end_with_the_transaction(empty_database: str, tmp_path: Path) -> None:
    inside = "create table limits as select current_setting('lock_timeout') l, current_setting('statement_timeout') s"
    directory = write(tmp_path / "files", v20250101000000_a=inside)
    strict = psycopg.conninfo.make_conninfo(empty_database, options="-c statement_timeout=1min")
    up(strict, directories=[directory], options=UpOptions(lock_timeout=timedelta(seconds=7)))
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("select l, s from limits").fetchall() == [("7s", "0")]


@pytest.mark.parametrize("options", [{"lock_timeout": timedelta(0)}, {"attempts": 0}])
def test_options_that_would_wait_for_ever_or_never_try_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has to be"):
        UpOptions(**options)  # type: ignore[arg-type]
