"""Writes the generated reference pages: `make docs`. A test fails when a committed page differs.

sql-functions.md   from the migrations: each function's signature and the comment above it
cli.md             from the command line's own help
metrics.md         from the catalogue of metrics
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer.main
from typer.testing import CliRunner

from spectral.core.events.metrics import METRICS, prometheus_labels, prometheus_name
from spectral.core.migrations import discover
from spectral_ops.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE: Final = Path(__file__).parent / "reference"
_NOTE: Final = "<!-- Written by `make docs`; change the source and run it again. -->\n"

# A run of comment lines, then the head of a function up to its language.
_FUNCTION: Final = re.compile(
    r"(?P<comment>(?:^--[^\n]*\n)+)create (?:or replace )?function core\.(?P<name>\w+)\s*\((?P<arguments>.*?)\)\s*"
    r"returns (?P<returns>.*?)\n\s+language (?P<flags>[^\n]*)",
    re.MULTILINE | re.DOTALL,
)


def sql_functions() -> str:
    """Every documented function of the schema, in the order in which an event travels."""
    parts = [_NOTE, "# SQL functions\n"]
    parts.append(
        "Status is changed by these functions only. All of them pin their search path, are owned by `spectral_owner`,\n"
        "and may be executed by the [groups](roles.md) that need them, not by PUBLIC. Those that take arrays answer\n"
        "for many rows at once.\n"
    )
    # A function that a later migration replaces keeps its place and takes the later words.
    found = {each["name"]: each for migration in discover() for each in _FUNCTION.finditer(migration.sql)}
    parts.extend(_function_section(each) for each in found.values() if each["returns"].strip() != "trigger")
    return "\n".join(parts)


def _function_section(found: re.Match[str]) -> str:
    lines = [line.removeprefix("--").removeprefix(" ") for line in found["comment"].splitlines()]
    signature = f"core.{found['name']}({' '.join(found['arguments'].split())})"
    returns = " ".join(found["returns"].split())
    rights = "Runs with the owner's rights." if "security definer" in found["flags"] else "Runs as the caller."
    prose = "\n".join(lines).strip()
    return f"## core.{found['name']}\n\n{prose}\n\n{rights}\n\n    {signature}\n    returns {returns}\n"


def command_line() -> str:
    """The help of every command."""
    parts = [_NOTE, "# Command line\n"]
    for path in _commands(typer.main.get_command(app), ()):
        shown = CliRunner().invoke(app, [*path, "--help"], prog_name="spectral", env={"COLUMNS": "100"}).stdout
        parts.append(f"## {' '.join(('spectral', *path))}\n\n```text\n{shown.strip()}\n```\n")
    return "\n".join(parts)


def _commands(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    inner: dict[str, object] = getattr(command, "commands", {})
    for name, each in sorted(inner.items()):
        yield from _commands(each, (*path, name))


def metrics() -> str:
    """Every metric, under both of its names."""
    parts = [_NOTE, "# Metrics\n"]
    parts.append(
        "What a worker or a relay counts, how it is, and, from the one worker that is elected to measure it, how the\n"
        "database is: [how to get at them](../how-to/observe.md#metrics). Labels are from bounded sets: after 200\n"
        "values of a label the others are counted as `_other`. The context `*` stands for broadcasts that are not\n"
        "split yet, and where a brake is meant, for all contexts. Counts of rows in the database end at 10,000.\n"
    )
    head = "| Prometheus | OpenTelemetry | kind | unit | labels | |\n|---|---|---|---|---|---|"
    rows = (
        f"| `{prometheus_name(each)}` | `{each.name}` | {each.kind} | {each.unit.replace('{', '').replace('}', '')}"
        f" | {', '.join(f'`{label}`' for label in prometheus_labels(each))} | {each.help} |"
        for each in METRICS
    )
    parts.append("\n".join((head, *rows)) + "\n")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """What the generated pages should hold now."""
    made = {"sql-functions.md": sql_functions(), "cli.md": command_line(), "metrics.md": metrics()}
    return {REFERENCE / name: text for name, text in made.items()}


def main() -> None:
    """Write every page that differs, and name it."""
    for path, text in pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stderr.write(f"wrote {path.relative_to(Path.cwd())}\n")


if __name__ == "__main__":
    main()
