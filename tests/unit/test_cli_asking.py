"""The question before a change: Ctrl-C ends it from the moment it is shown, also within an event loop."""

from __future__ import annotations

import asyncio
import io
import os
import signal

import pytest
import typer

from spectral_ops.cli.asking import confirm


class Terminal(io.StringIO):
    """Somebody is there, who says nothing."""

    def isatty(self) -> bool:
        return True


def test_ctrl_c_counts_as_soon_as_the_question_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(typer, "echo", lambda *_args, **_options: os.kill(os.getpid(), signal.SIGINT))
    answered: list[bool] = []

    async def ask() -> None:
        try:
            confirm("replay 3 event(s)", yes=False)
        except KeyboardInterrupt:
            answered.append(False)

    asyncio.run(ask())
    assert answered == [False]
