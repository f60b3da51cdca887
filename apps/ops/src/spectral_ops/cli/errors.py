"""The one place where an exception becomes a message and an exit code.

    0 ok   1 failed   2 usage   3 not found   4 unhealthy   5 needs confirmation   75 database unavailable

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


def report(error: Exception, variables: Mapping[str, str]) -> ExitCode:
    """Tell the person what happened and what to run next; the code is for the shell."""
    if variables.get("SPECTRAL_DEBUG") == "1":
        traceback.print_exception(error)
    message, remedy, code = _explain(error)
    note(f"error: {message}")
    note(f"  try: {remedy}")
    return code


def _explain(error: Exception) -> tuple[str, str, ExitCode]:
    from spectral.core import migrations  # noqa: PLC0415  only a failing command pays for the import
    from spectral.core.events.failure import ConfigurationError, SpectralError  # noqa: PLC0415  as above

    if isinstance(error, ModuleNotFoundError) and error.name == "pglast":
        return "checking SQL needs an extra package", 'pip install "spectral-events[lint]"', ExitCode.FAILED
    # The first line that fits decides, so the narrow classes stand above the wide one.
    remedies: list[tuple[type[Exception], str, ExitCode]] = [
        (ConfigurationError, "export SPECTRAL_DATABASE_URL=postgresql://user@host:5432/database", ExitCode.USAGE),
        (migrations.DatabaseUnavailableError, "spectral migrate status", ExitCode.UNAVAILABLE),
        (migrations.MigrationDriftError, "spectral migrate status", ExitCode.FAILED),
        (migrations.MigrationFileError, "spectral migrate lint", ExitCode.FAILED),
        (migrations.MigrationError, "spectral migrate up", ExitCode.FAILED),
        (SpectralError, "spectral --help", ExitCode.FAILED),
    ]
    for kind, remedy, code in remedies:
        if isinstance(error, kind):
            return str(error), remedy, code
    # Not one of ours: its text may quote anything, a connection string included.
    return f"unexpected {type(error).__name__}", "SPECTRAL_DEBUG=1 spectral ... (shows where)", ExitCode.FAILED
