"""The one place where an exception becomes a message and an exit code.

    0 ok   1 failed   2 usage   3 not found   4 unhealthy   5 needs confirmation   75 database unavailable
    130 interrupted, which is nobody's error and not made here

One or two lines on stderr: what happened, and the command that helps. A traceback only with SPECTRAL_DEBUG=1, since it
may show values.
"""

from __future__ import annotations

import traceback
from enum import IntEnum
from typing import TYPE_CHECKING

from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExitCode(IntEnum):
    """What a script may rely on."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNHEALTHY = 4
    NEEDS_CONFIRMATION = 5
    UNAVAILABLE = 75


class ConfirmationNeededError(Exception):
    """A change was asked for and not confirmed; nothing was done."""


def report(error: Exception, variables: Mapping[str, str]) -> ExitCode:
    """Tell the person what happened and what to run next; the code is for the shell."""
    if variables.get("SPECTRAL_DEBUG") == "1":
        traceback.print_exception(error)
    message, remedy, code = _explain(error)
    note(f"error: {message}")
    if remedy:
        note(f"  try: {remedy}")
    return code


def _explain(error: Exception) -> tuple[str, str | None, ExitCode]:
    """The message, the command that helps (none where the message itself ends with what to do), the exit code."""
    missing = _explain_missing(error)
    if missing is not None:
        return *missing, ExitCode.FAILED
    from spectral.core import database, migrations  # noqa: PLC0415  only a failing command pays for the import
    from spectral.core.events.failure import (  # noqa: PLC0415  as above
        ConfigurationError,
        SpectralError,
        SubstrateLostError,
    )

    # The first line that fits decides, so the narrow classes stand above the wide ones.
    remedies: list[tuple[type[Exception], str | None, ExitCode]] = [
        (ConfirmationNeededError, None, ExitCode.NEEDS_CONFIRMATION),
        (ConfigurationError, None, ExitCode.USAGE),
        (database.DatabaseUnavailableError, "psql \"$SPECTRAL_DATABASE_URL\" -c 'select 1'", ExitCode.UNAVAILABLE),
        (SubstrateLostError, None, ExitCode.UNAVAILABLE),
        (database.NotFoundError, None, ExitCode.NOT_FOUND),
        (migrations.MigrationDriftError, "spectral migrate status", ExitCode.FAILED),
        (SpectralError, None, ExitCode.FAILED),
    ]
    for kind, remedy, code in remedies:
        if isinstance(error, kind):
            return str(error), getattr(error, "remedy", None) or remedy, code
    # Not one of ours: its text may quote anything, a connection string included.
    return f"unexpected {type(error).__name__}", "SPECTRAL_DEBUG=1 spectral ... (shows where)", ExitCode.FAILED


def _explain_missing(error: Exception) -> tuple[str, str] | None:
    """A package that is not installed, or cannot be loaded; told before anything else is imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "pglast":
        return "checking SQL needs an extra package", 'pip install "spectral-events[lint]"'
    if isinstance(error, ModuleNotFoundError) and error.name == "mcp":
        return "serving agents needs an extra package", 'pip install "spectral-events[mcp]"'
    if isinstance(error, ImportError) and _comes_from(error, "psycopg"):
        return "psycopg cannot be loaded; it needs the library libpq", 'pip install "spectral-events[binary]"'
    return None


def _comes_from(error: BaseException, package: str) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(f"/{package}/" in frame.filename.replace("\\", "/") for frame in frames)
