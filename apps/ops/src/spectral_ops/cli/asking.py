"""Asking before a change. Without a terminal nobody is asked, and nothing is done unless --yes says so."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from spectral_ops.cli.errors import ConfirmationNeededError
from spectral_ops.cli.events_options import plain

if TYPE_CHECKING:
    from collections.abc import Generator


def confirm(what: str, *, yes: bool) -> None:
    """Go on only if the person wants it.

    Raises:
        ConfirmationNeededError: they do not, or there is nobody to ask.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfirmationNeededError(f"{what}: not done, nobody is there to ask; say it with --yes")
    with _interruptible():  # before it is asked: whoever sees the question may say no at once
        # Not typer's own question: it writes a blank to stdout, where only data belongs.
        typer.echo(f"{plain(what)}? [y/N] ", err=True, nl=False)
        answer = sys.stdin.readline()
    if answer.strip().lower() not in {"y", "yes"}:
        raise ConfirmationNeededError("not done")


@contextmanager
def _interruptible() -> Generator[None]:
    """An event loop takes the first Ctrl-C to cancel its task, which would be noticed after the answer only."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
