"""How the demo tells what it does: lines, and on a terminal bars below them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import closing

import pytest

from spectral_ops.demo.outbox import Standing
from spectral_ops.demo.telling import telling

TOUR = """
import sys
from spectral_ops.demo.outbox import Standing
from spectral_ops.demo.telling import telling

with telling(lambda line: print("plain", line)) as teller:
    teller.say("first step")
    teller.show([Standing(1, 2000, 1500, 30, 10), Standing(2, 200, 0, 0, 0)])
    teller.say("a step that is longer than the terminal is wide, so that it has to go on in a second line below it")
"""


def test_where_nothing_can_be_redrawn_there_are_lines_only(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with telling(lines.append) as teller:
        teller.say("first step")
        teller.show([Standing(1, 2000, 1500, 30, 10)])
    (line,) = lines
    assert re.fullmatch(r"  \d\.\d s  first step", line)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_a_bar_for_each_generation_below_the_steps() -> None:
    shown = on_a_terminal(TOUR)
    assert "plain" not in shown
    assert shown.index("first step") < shown.index("generation 1")
    assert "1,500 of 2,000, 30 in flight, 10 in DLQ" in shown
    assert "0 of 200, 0 in flight" in shown
    assert re.search(r"a step that .*\r\n {9}\w", shown), "it does not go on where it began"


def on_a_terminal(program: str) -> str:
    """What the program writes to a terminal of 80 columns, without its colours and movements."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    written = b""
    with closing(os.fdopen(ours, "rb", buffering=0)) as terminal:
        try:
            while chunk := terminal.read(4096):
                written += chunk
        except OSError:  # how a terminal says that nobody writes any more
            pass
    assert process.wait() == 0, written
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())
