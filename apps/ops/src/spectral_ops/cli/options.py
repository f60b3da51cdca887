"""Options that commands share, so that one word means one thing everywhere."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated

import typer

from spectral_ops.cli.database import environment

OPERATOR_VARIABLE = "SPECTRAL_OPERATOR"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why; kept in the audit.", show_default=False)]
By = Annotated[
    str | None,
    typer.Option(
        "--by", help=f"Who; kept in the audit. {OPERATOR_VARIABLE}, or user@host, unless told.", show_default=False
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Rows to show at most.")]


def actor(given: str | None) -> str:
    """Who acts, for the audit."""
    named = given or environment().get(OPERATOR_VARIABLE)
    if named:
        return named
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number that no user has
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
