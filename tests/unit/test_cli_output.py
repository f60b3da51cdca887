"""Lists on a terminal and in a pipe: whatever the width, what the next command wants stands there whole."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest

from spectral_ops.cli.output import emit_table

COLUMNS = ("id", "type", "context", "error", "to", "failed")
IDS = [f"019a8c1e-7f30-7abc-8def-0123456789a{number}" for number in range(3)]
TYPE = "billing.invoice_reminder_of_a_customer.scheduled"
ERROR = "ValueError: this customer has no address to which a reminder could be sent"
ROWS = [(each, TYPE, "billing", ERROR, "", "2026-03-01 03:00:00Z") for each in IDS]
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self) -> bool:
        return True


def on_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, columns: tuple[str, ...], rows: Sequence[Sequence[str]]
) -> str:
    terminal = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": str(width), "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", terminal)
    emit_table(columns, rows)
    return COLOUR.sub("", terminal.getvalue())


@pytest.mark.parametrize("columns", [None, "40"])
def test_a_pipe_has_no_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str | None
) -> None:
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    wide = [(*row[:-1], "x" * 500) for row in ROWS]
    emit_table(COLUMNS, wide)
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split() == list(COLUMNS)
    assert [re.split(r"  +", line.rstrip()) for line in lines] == [[cell for cell in row if cell] for row in wide]


def test_what_fits_the_terminal_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(each, "worlds.card.sent") for each in IDS]
    needed = len(f"{IDS[0]}  worlds.card.sent")
    shown = on_terminal(monkeypatch, needed, ("id", "type"), rows)
    assert [line.split() for line in shown.splitlines()] == [["id", "type"], *map(list, rows)]
    assert on_terminal(monkeypatch, needed - 1, ("id", "type"), rows).startswith(f"id: {IDS[0]}\n  type: worlds.card")


def test_what_does_not_fit_is_a_block_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_terminal(monkeypatch, 80, COLUMNS, ROWS)
    assert shown.split("\n\n")[0].splitlines() == [
        f"id: {IDS[0]}",
        f"  type: {TYPE}",
        "  context: billing",
        "  error: ValueError: this customer has no address to which a reminder could be",
        "    sent",
        "  failed: 2026-03-01 03:00:00Z",
    ]
    assert re.findall("^id: (.*)$", shown, re.MULTILINE) == IDS


@pytest.mark.parametrize("width", [1, 20, 40, 80, 100, 200])
def test_no_word_is_broken_on_any_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    words = on_terminal(monkeypatch, width, COLUMNS, ROWS).split()
    assert [word for word in words if word in IDS] == IDS
    assert words.count(TYPE) == len(ROWS)
    assert not any("…" in word for word in words)


def test_a_column_without_a_heading_is_its_value_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_terminal(
        monkeypatch, 30, ("partition", ""), [("outbox_2026_03", "over, but too busy to be dropped now")]
    )
    assert shown == "partition: outbox_2026_03\n  over, but too busy to be\n    dropped now\n"


def test_what_others_wrote_gives_no_orders_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = on_terminal(monkeypatch, 20, ("id", "error"), [(IDS[0], "no\x1b[2J\nid: forged")])
    assert shown == f"id:\n    {IDS[0]}\n  error: no�[2J�id:\n    forged\n"


def test_no_rows_are_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    emit_table(COLUMNS, [])
    assert capsys.readouterr().out == ""
