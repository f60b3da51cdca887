"""How commands speak: data on stdout as a table or as JSON, everything else on stderr.

Names, reasons and errors were written by others: nothing here gives a terminal an order that stands in them.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import typer

from spectral_ops.cli.events_options import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A pipe has no width; wide enough that no file name is folded in a log.
_PIPE_WIDTH = 200


def emit_json(document: Mapping[str, object]) -> None:
    """One JSON document on stdout. JSON escapes the control characters of ASCII; terminals obey others too."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    typer.echo("".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text))


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; nothing at all when it has no rows."""
    if not rows:
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and --help does not need it
    from rich.table import Table  # noqa: PLC0415  as above

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(plain, row))
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, markup=False, highlight=False, emoji=False).print(table)


def note(text: str) -> None:
    """One line for the person at the terminal, on stderr; or a few."""
    typer.echo(plain_lines(text), err=True)
