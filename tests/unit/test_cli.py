"""The command line without a database: the version, where the DSN comes from, what an error becomes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spectral.core.events.failure import ConfigurationError, SpectralError
from spectral.core.migrations import (
    DatabaseUnavailableError,
    MigrationDriftError,
    MigrationFailedError,
    MigrationFileError,
    UnsupportedServerError,
)
from spectral_ops.cli.database import resolve_dsn
from spectral_ops.cli.errors import ExitCode, report

SPECTRAL = str(Path(sys.executable).with_name("spectral"))


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_shown(arguments: list[str]) -> None:
    ran = subprocess.run([SPECTRAL, *arguments], capture_output=True, text=True, check=True, env={})
    assert ran.stdout.startswith("spectral 0.")


@pytest.mark.parametrize(
    ("variables", "dsn"),
    [
        ({"SPECTRAL_DATABASE_URL": "postgresql://a", "DATABASE_URL": "postgresql://b"}, "postgresql://a"),
        ({"SPECTRAL_DATABASE_URL": "", "DATABASE_URL": "postgresql://b", "PGHOST": "c"}, "postgresql://b"),
        ({"DATABASE_URL": "postgresql+psycopg://u:p@h/d"}, "postgresql://u:p@h/d"),
        ({"DATABASE_URL": "postgres+asyncpg://u:p@h/d"}, "postgresql://u:p@h/d"),
        ({"PGHOST": "c"}, ""),
        ({"PGSERVICE": "prod"}, ""),
    ],
)
def test_the_database_is_named_by_the_environment(variables: dict[str, str], dsn: str) -> None:
    assert resolve_dsn(variables) == dsn


def test_no_database_named_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="SPECTRAL_DATABASE_URL") as caught:
        resolve_dsn({"PGPASSWORD": "canary"})
    assert report(caught.value, {}) is ExitCode.USAGE
    assert "canary" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "remedy"),
    [
        (DatabaseUnavailableError("gone"), 75, "psql \"$SPECTRAL_DATABASE_URL\" -c 'select 1'"),
        (MigrationDriftError(()), 1, "spectral migrate status"),
        (ModuleNotFoundError("no", name="pglast"), 1, 'pip install "spectral-events[lint]"'),
    ],
)
def test_an_error_is_two_lines_and_ends_with_a_command(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int, remedy: str
) -> None:
    assert report(error, {}) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 2
    assert shown.err.endswith(f"{remedy}\n")


@pytest.mark.parametrize(
    "error",
    [
        MigrationFileError("a bad name: rename it"),
        MigrationFailedError("a.sql", line=3, sqlstate="42601", reason="no"),
        UnsupportedServerError("an old server: upgrade it"),
        SpectralError("some other: do this"),
    ],
)
def test_a_message_that_says_what_to_do_stands_alone(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    assert report(error, {}) == 1
    assert capsys.readouterr().err == f"error: {error}\n"


def test_an_unexpected_error_is_not_quoted_unless_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    error = RuntimeError("postgresql://me:canary@host/db")
    assert report(error, {}) is ExitCode.FAILED
    assert "canary" not in capsys.readouterr().err
    report(error, {"SPECTRAL_DEBUG": "1"})
    assert "canary" in capsys.readouterr().err
