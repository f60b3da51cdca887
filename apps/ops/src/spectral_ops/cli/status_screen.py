"""How `status`, `top` and `doctor` look: sentences and tables for 3 am, on any width, with or without colour.

Commands stand on lines of their own and are never folded, so that they can be copied.
"""

from __future__ import annotations

import sys
import textwrap
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.text import Text

from spectral.core.operations.insights_values import NOTHING
from spectral.core.operations.verdict_values import Level
from spectral.core.operations.verdict_words import listed, spoken
from spectral_ops.cli.database import environment
from spectral_ops.cli.events_options import plain, plain_lines
from spectral_ops.cli.fitted_table import Name, fitted

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
_WIDEST: Final = 10_000
_MOST_WORKERS: Final = 12
_BAR: Final = 20


def screen() -> Console:
    """Stdout, as wide as it is; a pipe has no width, unless COLUMNS gives it one."""
    known = sys.stdout.isatty() or environment().get("COLUMNS")
    return Console(width=None if known else _WIDEST, markup=False, highlight=False, emoji=False)


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


def backlog_table(snapshot: Snapshot, width: int, *, bars: bool = False) -> RenderableType | None:
    """What waits, runs and failed, by context and generation; none if there is nothing at all."""
    if not snapshot.backlogs:
        return None
    most = max((backlog.due.value for backlog in snapshot.backlogs), default=0)
    rows: list[list[str | Text | Name]] = []
    for backlog in snapshot.backlogs:
        servants = len(snapshot.servants(backlog.context, backlog.generation))
        braked = " braked" if snapshot.brake_on(backlog.context) else ""
        rows.append(
            [
                Name(plain(backlog.context) or "(broadcasts)", braked),
                f"{backlog.generation} {backlog.generation_status or 'unknown'}",
                *([_bar(backlog, most)] if bars else []),
                _number(backlog.due),
                _age(backlog.oldest_due),
                _number(backlog.waiting),
                _number(backlog.in_flight),
                _number(backlog.stale, "yellow"),
                _number(backlog.failed, "red"),
                Text(str(servants), "" if servants or not backlog.due else "bold red"),
            ]
        )
    names, bar = ["context", "generation"], "backlog".ljust(_BAR)
    numbers = ["due", "oldest", "later", "in flight", "stale", "failed", "workers"]
    return fitted([*names, bar], numbers, rows, width, spare=bar) if bars else fitted(names, numbers, rows, width)


def worker_table(snapshot: Snapshot, width: int) -> RenderableType | None:
    """Who is at work, then who vanished: a screen that ends before the list does must not hide that somebody works."""
    if not snapshot.workers:
        return None
    ordered = [*snapshot.living, *snapshot.vanished]
    rows: list[list[str | Text | Name]] = [
        [
            Name(plain(worker.name)),
            Text("alive", "green") if worker.alive else Text("vanished", "bold red"),
            listed(worker.generations),
            Name(plain(listed(worker.contexts))),
            Name(plain(worker.host), f" pid {worker.pid}"),
            str(worker.in_flight or ""),
            _age(snapshot.taken_at - worker.signed_in_at),
        ]
        for worker in ordered[:_MOST_WORKERS]
    ]
    names = ("worker", "state", "generations", "contexts", "where")
    table = fitted(names, ("in flight", "since"), rows, width)
    more = ordered[_MOST_WORKERS:]
    if not more:
        return table
    vanished = sum(not worker.alive for worker in more)
    among = f", {vanished} of them vanished" if vanished else ""
    return Group(table, Text(f"and {len(more)} more workers{among}"))


def _number(amount: Amount, style: str = "") -> Text:
    return Text("" if amount == NOTHING else str(amount), style)


def _age(span: timedelta | None) -> str:
    if span is None:
        return ""
    return "<1 s" if span < timedelta(seconds=1) else spoken(span)


def _bar(backlog: Backlog, most: int) -> Text:
    filled = round(_BAR * backlog.due.value / most) if most else 0
    return Text("█" * max(filled, 1 if backlog.due else 0), "blue")
