"""A hand-over as it goes: how far it is, and whether somebody has had enough of it."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from spectral.core.deployments import Count


@contextmanager
def bar(total: Count) -> Generator[Callable[[int], None]]:
    """How far it is: a bar on a terminal, else a line for each batch."""
    if not sys.stderr.isatty():
        yield lambda moved: note(f"{moved:,} of {total}")
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and only a terminal needs it
    from rich.progress import MofNCompleteColumn, Progress  # noqa: PLC0415  as above

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("handed over", total=total.rows)
        yield lambda moved: progress.update(task, completed=moved)


@contextmanager
def interrupted() -> Generator[Callable[[], bool]]:
    """Whether somebody pressed Ctrl-C meanwhile; what runs is not cut off by it."""
    import asyncio  # noqa: PLC0415  --help must not pay for it

    loop, pressed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, pressed.set)
    try:
        yield pressed.is_set
    finally:
        loop.remove_signal_handler(signal.SIGINT)
