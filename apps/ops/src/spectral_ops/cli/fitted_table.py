"""A table of names and numbers that keeps to a width: names give way, numbers never do.

A number that is cut reads as another, and a column that is left out reads as zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from spectral_ops.cli.output import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    Rows = Sequence[Sequence["str | Text | Name"]]

_Item = TypeVar("_Item")

_SHORTEST: Final = 8
_GAP: Final = 2
_FORMS: Final = ((False, _GAP), (True, _GAP), (True, 1))
"""Whether headings are folded, and the gap between two columns."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name, which may be shortened to make room, and what stands behind it, which may not."""

    text: str
    tail: str = ""

    def __str__(self) -> str:
        return self.text + self.tail

    def within(self, room: int) -> Name:
        """As much of it as there is room for. The middle goes: names of one house begin alike, or end alike."""
        room = max(room - cell_len(self.tail), _SHORTEST)
        shown, kept = self.text, len(self.text)
        while cell_len(shown) > room:
            kept -= 1
            shown = f"{self.text[: (kept + 1) // 2]}…{self.text[len(self.text) - kept // 2 :]}"
        return replace(self, text=shown)


def fitted(
    texts: Sequence[str], numbers: Sequence[str], rows: Rows, width: int, *, spare: str | None = None
) -> RenderableType:
    """The rows in the first form that fits: without the spare column, with shorter names, with folded headings.

    Names are shortened from the right, for the first is what a row is known by. Where all of this is not enough, there
    is a block for each row.
    """
    headings = (*texts, *numbers)
    if spare is not None and sum(_widths(headings, rows)) + _GAP * (len(headings) - 1) > width:
        at = texts.index(spare)
        return fitted(_without(texts, at), numbers, [_without(row, at) for row in rows], width)
    for folded, gap in _FORMS:
        shown = [each.replace(" ", "\n") for each in headings] if folded else headings
        room = width - gap * (len(headings) - 1)
        shorter = _shortened(shown, rows, room)
        if sum(_widths(shown, shorter)) <= room:
            return _table(shown, len(texts), shorter, gap)
    return Text(blocks(headings, [[str(cell) for cell in row] for row in rows], width))


def _without(items: Sequence[_Item], at: int) -> list[_Item]:
    return [*items[:at], *items[at + 1 :]]


def _widths(headings: Sequence[str], rows: Rows) -> list[int]:
    return [
        max(map(cell_len, [*heading.split("\n"), *(str(row[place]) for row in rows)]))
        for place, heading in enumerate(headings)
    ]


def _shortened(headings: Sequence[str], rows: Rows, room: int) -> Rows:
    for place in reversed(range(len(headings))):
        widths = _widths(headings, rows)
        left = widths[place] - (sum(widths) - room)
        if left >= widths[place]:
            break
        rows = [
            [cell.within(left) if isinstance(cell, Name) and at == place else cell for at, cell in enumerate(row)]
            for row in rows
        ]
    return rows


def _table(headings: Sequence[str], texts: int, rows: Rows, gap: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    return table
