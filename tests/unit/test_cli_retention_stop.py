"""A sweeper that is told to stop by a signal, wherever it is at that moment."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any

import pytest

from spectral_ops.cli.retention import Stop, _told_to_stop


@pytest.mark.timeout(20)
def test_a_signal_in_the_midst_of_waiting_ends_it() -> None:
    """Raised at every line of `wait` and of what it calls, one after the other: no lock may be held at any of them."""
    line, is_over = 0, False
    while not is_over:
        line += 1
        with _told_to_stop() as stop:
            is_over = not _raised_at(line, stop)
            stop.wait(60)
            assert stop.is_set()


def _raised_at(number: int, stop: Stop) -> bool:
    """Wait for no time, with a signal at this line of it; false if there are not so many, and then it is set."""
    seen = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401  itself
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGTERM)
        return trace

    sys.settrace(trace)
    try:
        stop.wait(0)
    finally:
        sys.settrace(None)
    if not stop.is_set():
        stop.set()
        return False
    return True


def test_it_waits_as_long_as_it_is_told() -> None:
    stop = Stop()
    began = time.monotonic()
    stop.wait(0.05)
    assert time.monotonic() - began >= 0.05
    assert not stop.is_set()
    stop.set()
    stop.set()
    stop.wait(60)
    stop.close()
