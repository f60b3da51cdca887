"""The report: tables for people, JSON for programs, and the picture beside it."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from benchmarks.figures import Board, Summary
from benchmarks.plot import figure, svg_of
from benchmarks.verdicts import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from benchmarks.verdicts import Verdict

FULL_NAME: Final = "bench"
# What may stand beside a figure: its name in the JSON, its column, and how it is written.
COLUMNS: Final = {
    "p95": ("p95", "{:.2f}"),
    "p99": ("p99", "{:.2f}"),
    "max": ("max", "{:.1f}"),
    "latency_p50": ("latency p50, ms", "{:.2f}"),
    "latency_p99": ("latency p99, ms", "{:.2f}"),
    "published": ("published/s", "{:,.0f}"),
    "client_cpu": ("client CPU s / 1,000", "{:.3f}"),
    "server_cpu": ("server CPU s / 1,000", "{:.3f}"),
    "relay_cpu": ("relay CPU s / 1,000", "{:.3f}"),
    "broker_cpu": ("broker CPU s / 1,000", "{:.3f}"),
    "client_cpu_percent": ("% of a CPU", "{:.2f}"),
    "wal": ("WAL bytes / event", "{:,.0f}"),
    "statements": ("statements / event", "{:.2f}"),
    "round_trips": ("round trips / event", "{:.2f}"),
}


@dataclass(frozen=True, slots=True)
class Report:
    """One run."""

    machine: Mapping[str, str]
    rounds: int
    boards: tuple[Board, ...]
    absent: Mapping[str, str] = field(default_factory=dict[str, str])

    def verdicts(self) -> list[Verdict]:
        """What the figures had to show."""
        return judge({board.name: board for board in self.boards})

    def caption(self) -> str:
        """Where the figures come from, in a line."""
        said = ", ".join(f"{name} {value}" if name != "processor" else value for name, value in self.machine.items())
        return f"{said}; medians of {self.rounds} interleaved round{'s' * (self.rounds > 1)}"


def machine(postgres: str) -> dict[str, str]:
    """What the figures belong to."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "processor": f"{os.cpu_count()} x {found[1].strip() if found else platform.machine()}",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Linux": platform.release(),
        "Python": platform.python_version(),
        "Postgres": postgres,
    }


def show(report: Report, console: Console) -> None:
    """The tables."""
    console.print(report.caption())
    for board in report.boards:
        if board.summaries:
            console.print(table_of(board))
    if report.absent:
        absent = Table("absent", "because", title="not measured", title_justify="left")
        for label, reason in report.absent.items():
            absent.add_row(label, reason)
        console.print(absent)
    console.print(verdict_table(report.verdicts()))


def table_of(board: Board) -> Table:
    """One scenario: the median, the spread, and whatever else is known."""
    known = [name for name in COLUMNS if any(name in one.extras for one in board.summaries)]
    table = Table("", board.unit, "spread", title=board.title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for name in known:
        table.add_column(COLUMNS[name][0], justify="right")
    for one in board.summaries:
        extras = (COLUMNS[name][1].format(one.extras[name]) if name in one.extras else "" for name in known)
        style = "bold" if one.group == "ours" else None
        table.add_row(one.label, figure(one.median), f"{figure(one.low)} to {figure(one.high)}", *extras, style=style)
    return table


def verdict_table(verdicts: list[Verdict]) -> Table:
    """Each promise: measured, target, kept or not."""
    table = Table("what the figures must show", "measured", "target", "", "from", title_justify="left")
    for verdict in verdicts:
        measured = "" if verdict.measured is None else f"{verdict.measured:.2f}"
        sign = "at most" if verdict.at_most else "at least"
        table.add_row(verdict.promise, measured, f"{sign} {verdict.target:g}", verdict.word, verdict.detail)
    return table


def document(report: Report) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "machine": dict(report.machine),
        "rounds": report.rounds,
        "scenarios": {board.name: _board_document(board) for board in report.boards},
        "absent": dict(report.absent),
        "verdicts": [
            {
                "promise": one.promise,
                "measured": one.measured,
                "target": one.target,
                "at_most": one.at_most,
                "kept": one.kept,
                "detail": one.detail,
            }
            for one in report.verdicts()
        ],
    }


def read_document(said: Mapping[str, Any]) -> Report:
    """The other way round: a report from its JSON."""
    boards = tuple(
        Board(
            name,
            board["title"],
            board["unit"],
            board["lower_is_better"],
            tuple(
                Summary(label, one["group"], tuple(one["values"]), one["extras"])
                for label, one in board["entries"].items()
            ),
        )
        for name, board in said["scenarios"].items()
    )
    return Report(said["machine"], said["rounds"], boards, said["absent"])


def write(report: Report, directory: Path, name: str = FULL_NAME) -> None:
    """The JSON and the picture."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(document(report), indent=2) + "\n")
    shown = [board for board in report.boards if board.summaries]
    (directory / f"{name}.svg").write_text(svg_of(shown, report.caption()))


def _board_document(board: Board) -> dict[str, Any]:
    return {
        "title": board.title,
        "unit": board.unit,
        "lower_is_better": board.lower_is_better,
        "entries": {one.label: _summary_document(one) for one in board.summaries},
    }


def _summary_document(one: Summary) -> dict[str, Any]:
    return {
        "group": one.group,
        "median": one.median,
        "low": one.low,
        "high": one.high,
        "values": list(one.values),
        "extras": dict(one.extras),
    }
