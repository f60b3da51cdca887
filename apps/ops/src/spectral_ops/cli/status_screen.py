"""How `status`, `top` and `doctor` look: sentences and tables for 3 am, on any width, with or without colour.

Commands stand on lines of their own and are never folded, so that they can be copied.
"""

from __future__ import annotations

import sys
import textwrap
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from spectral.core.operations.insights_values import NOTHING
from spectral.core.operations.verdict_values import Level
from spectral.core.operations.verdict_words import listed, spoken
from spectral_ops.cli.database import environment
from spectral_ops.cli.events_options import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from spectral.core.operations.insights import Amount, Backlog, Snapshot
    from spectral.core.operations.verdict import Verdict

STYLES: Final = {
    Level.OK: "bold green",
    Level.NOTICE: "bold cyan",
    Level.ATTENTION: "bold yellow",
    Level.UNHEALTHY: "bold red",
}
COMMAND_STYLE: Final = "cyan"

_MARGIN: Final = max(len(level) for level in Level) + 2
_READABLE: Final = 100  # a longer line is hard to follow with the eye
_PIPE_WIDTH: Final = 120
_WIDEST: Final = 1000
_MOST_WORKERS: Final = 12
_BAR: Final = 20


def screen() -> Console:
    """Stdout, as wide as it is; a pipe has no width, unless COLUMNS gives it one."""
    known = sys.stdout.isatty() or environment().get("COLUMNS")
    return Console(width=None if known else _PIPE_WIDTH, markup=False, highlight=False, emoji=False)


def block(level: Level, lines: Sequence[str], command: str | None, width: int) -> Text:
    """A level in the margin, sentences beside it, and what to run below them."""
    text = Text()
    text.append(f"{level:<{_MARGIN}}", STYLES[level])
    room = max(min(width, _READABLE) - _MARGIN, 20)
    folded = [part for line in lines for part in textwrap.wrap(line, room, break_on_hyphens=False) or [""]]
    text.append(("\n" + " " * _MARGIN).join(map(plain, folded)))
    if command:
        text.append("\n" + " " * _MARGIN + "-> ")
        text.append(plain_lines(command), COMMAND_STYLE)
    return text


def show(console: Console, *parts: RenderableType | None) -> None:
    """Print the parts that there are, an empty line between them. Nothing is cut: a narrow terminal folds it."""
    there = [part for part in parts if part is not None]
    for number, part in enumerate(there):
        if number:
            console.print()
        if isinstance(part, Text):
            console.print(part, soft_wrap=True)
        else:
            before, console.width = console.width, _WIDEST
            console.width = max(before, console.measure(part).maximum)
            console.print(part)
            console.width = before


def verdict_parts(verdict: Verdict, width: int) -> tuple[Text, Text | None]:
    """The headline, and the other sentences if there are any."""
    headline, *others = (block(each.level, [each.text], each.command, width) for each in verdict.sentences)
    return headline, Text("\n").join(others) if others else None


def backlog_table(snapshot: Snapshot, *, bars: bool = False) -> Table | None:
    """What waits, runs and failed, by context and generation; none if there is nothing at all."""
    if not snapshot.backlogs:
        return None
    table = _table("context", "generation", bars="backlog" if bars else None)
    for heading in ("due", "oldest", "later", "in flight", "stale", "failed", "workers"):
        table.add_column(heading, justify="right", no_wrap=True)
    most = max((backlog.due.value for backlog in snapshot.backlogs), default=0)
    for backlog in snapshot.backlogs:
        servants = len(snapshot.servants(backlog.context, backlog.generation))
        braked = " braked" if snapshot.brake_on(backlog.context) else ""
        table.add_row(
            f"{plain(backlog.context) or '(broadcasts)'}{braked}",
            f"{backlog.generation} {backlog.generation_status or 'unknown'}",
            *([_bar(backlog, most)] if bars else []),
            _number(backlog.due),
            _age(backlog.oldest_due),
            _number(backlog.waiting),
            _number(backlog.in_flight),
            _number(backlog.stale, "yellow"),
            _number(backlog.failed, "red"),
            Text(str(servants), "" if servants or not backlog.due else "bold red"),
        )
    return table


def worker_table(snapshot: Snapshot) -> RenderableType | None:
    """Who is at work; the vanished ones first, for they are what is looked for."""
    if not snapshot.workers:
        return None
    table = _table("worker", "state", "generations", "contexts", "where")
    table.add_column("in flight", justify="right", no_wrap=True)
    table.add_column("since", justify="right", no_wrap=True)
    for worker in sorted(snapshot.workers, key=lambda each: each.alive)[:_MOST_WORKERS]:
        table.add_row(
            plain(worker.name),
            Text("alive", "green") if worker.alive else Text("vanished", "bold red"),
            listed(worker.generations),
            plain(listed(worker.contexts)),
            f"{plain(worker.host)} pid {worker.pid}",
            str(worker.in_flight or ""),
            _age(snapshot.taken_at - worker.signed_in_at),
        )
    more = len(snapshot.workers) - _MOST_WORKERS
    return Group(table, Text(f"and {more} more workers")) if more > 0 else table


def _table(*headings: str, bars: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    if bars is not None:
        table.add_column(bars, width=_BAR, no_wrap=True)
    return table


def _number(amount: Amount, style: str = "") -> Text:
    return Text("" if amount == NOTHING else str(amount), style)


def _age(span: timedelta | None) -> str:
    if span is None:
        return ""
    return "<1 s" if span < timedelta(seconds=1) else spoken(span)


def _bar(backlog: Backlog, most: int) -> Text:
    filled = round(_BAR * backlog.due.value / most) if most else 0
    return Text("█" * max(filled, 1 if backlog.due else 0), "blue")
