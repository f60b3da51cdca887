"""Asking before a change. Without a terminal nobody is asked, and nothing is done unless --yes says so."""

from __future__ import annotations

import sys

import typer

from spectral_ops.cli.errors import ConfirmationNeededError
from spectral_ops.cli.events_options import plain


def confirm(what: str, *, yes: bool) -> None:
    """Go on only if the person wants it.

    Raises:
        ConfirmationNeededError: they do not, or there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfirmationNeededError(f"{what}: not done, nobody is there to ask; say it with --yes")
    # Not typer's own question: it writes a blank to stdout, where only data belongs.
    typer.echo(f"{plain(what)}? [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ConfirmationNeededError("not done")
