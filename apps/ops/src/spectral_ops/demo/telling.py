"""How the tour tells what it does: a line for each step on stderr, and on a terminal a bar for each generation."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.progress import Progress, TaskID

    from spectral_ops.demo.outbox import Standing


class Teller(Protocol):
    """Is told each step, and how far the deliveries are."""

    def say(self, step: str) -> None:
        """A step begins, or has ended."""
        ...

    def show(self, standings: Sequence[Standing]) -> None:
        """How far the events of each generation are."""
        ...


@contextmanager
def telling(write: Callable[[str], None]) -> Iterator[Teller]:
    """The teller for this terminal, or one that only writes lines."""
    if not sys.stderr.isatty():
        yield _Lines(write)
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and only a terminal needs it
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415  as above

    columns = (
        TextColumn("{task.description}", style="bold"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[shown]}", style="dim"),
    )
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with Progress(*columns, console=console, transient=True) as progress:
        yield _Bars(progress)


class _Lines:
    """Implements `Teller` where nothing can be redrawn."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._elapsed = _stopwatch()

    def say(self, step: str) -> None:
        """One line."""
        self._write(f"{self._elapsed()}  {step}")

    def show(self, standings: Sequence[Standing]) -> None:
        """Nothing: the steps say enough."""


class _Bars:
    """Implements `Teller` on a terminal: the lines, and below them the bars."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[int, TaskID] = {}
        self._elapsed = _stopwatch()

    def say(self, step: str) -> None:
        """One line above the bars, or as many as the terminal's width asks for."""
        from rich.table import Table  # noqa: PLC0415  see telling

        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_column(style="dim", no_wrap=True)
        line.add_row(self._elapsed(), step)
        self._progress.console.print(line)

    def show(self, standings: Sequence[Standing]) -> None:
        """One bar for each generation."""
        for each in standings:
            if each.generation not in self._bars:
                self._bars[each.generation] = self._progress.add_task(f"generation {each.generation}", shown="")
            # short enough for 80 columns
            shown = f"{each.delivered:,} of {each.total:,}, {each.in_flight} in flight"
            if each.failed:
                shown += f", {each.failed} in DLQ"
            self._progress.update(self._bars[each.generation], total=each.total, completed=each.delivered, shown=shown)


def _stopwatch() -> Callable[[], str]:
    """What it shows is as wide as any other."""
    began = time.monotonic()
    return lambda: f"{time.monotonic() - began:5.1f} s"
