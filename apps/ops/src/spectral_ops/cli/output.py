"""How commands speak: data on stdout as a table or as JSON, everything else on stderr.

Names, reasons and errors were written by others: nothing here gives a terminal an order that stands in them.
"""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

import typer

from spectral_ops.cli.events_options import plain, plain_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def emit_json(document: Mapping[str, object]) -> None:
    """One JSON document on stdout. JSON escapes the control characters of ASCII; terminals obey others too."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    typer.echo("".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text))


def emit_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; nothing at all when it has no rows.

    Nothing is cut, for the next command wants the whole of an id or a name: a table that is wider than the terminal
    becomes a block for each row. A pipe has no width.
    """
    if not rows:
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and --help does not need it
    from rich.table import Table  # noqa: PLC0415  as above

    cells = [[plain(cell) for cell in row] for row in rows]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in cells:
        table.add_row(*row)
    console = Console(markup=False, highlight=False, emoji=False)
    needed = console.measure(table, options=console.options.update(width=sys.maxsize)).maximum
    if sys.stdout.isatty() and needed > console.width:
        typer.echo(blocks(columns, cells, console.width))
    else:
        console.width = needed
        console.print(table)


def blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """The rows below each other, each value on a line of its own; no word is broken, so that it can be copied."""
    return "\n\n".join("\n".join(_block(columns, row, width)) for row in rows)


def _block(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    for place, (name, value) in enumerate(zip(columns, row, strict=True)):
        if value:
            yield from textwrap.wrap(
                f"{name}: {value}" if name else value,
                width,
                initial_indent="  " if place else "",
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )


def note(text: str) -> None:
    """One line for the person at the terminal, on stderr; or a few."""
    typer.echo(plain_lines(text), err=True)
