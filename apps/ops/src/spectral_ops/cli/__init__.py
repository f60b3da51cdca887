"""The command line `spectral`. Data goes to stdout, everything else to stderr; exit codes are listed in `errors`.

Commands import what they need when they run, so that `spectral --help` answers at once.
"""

from __future__ import annotations

import sys

from spectral_ops.cli.app import app
from spectral_ops.cli.database import environment
from spectral_ops.cli.errors import ExitCode, report
from spectral_ops.cli.output import note

__all__ = ["main"]


def main() -> None:
    """Run the command named on the command line and exit with its code."""
    if any("\udc80" <= letter <= "\udcff" for argument in sys.argv for letter in argument):
        note("error: the arguments are not in the encoding of this terminal; write them in UTF-8")
        sys.exit(ExitCode.USAGE)
    try:
        app(prog_name="spectral")
    except Exception as error:  # noqa: BLE001  the one place where an error becomes a message and an exit code
        sys.exit(report(error, environment()))
