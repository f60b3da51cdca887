"""What got lost on its way to a collector, in this process: for `spectral_probe_dropped` and `spectral_probe_failed`.

The SDK of OpenTelemetry says so in its log, and counts it nowhere that we can read.
"""

from __future__ import annotations

import os
import threading
from typing import Final


class Losses:
    """Of one kind of telemetry: for how much there was no room, and how much was refused or not answered."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """What the parent has lost, in the child of a fork; there, whoever held the lock may be missing."""
        # One that whoever has it may take again: the handler of a signal may end a span too.
        self._lock = threading.RLock()
        self._dropped = self._failed = 0

    def count(self, dropped: int = 0, failed: int = 0) -> None:
        """Some more."""
        with self._lock:
            self._dropped += dropped
            self._failed += failed

    def counted(self) -> tuple[int, int]:
        """Dropped, and failed."""
        return self._dropped, self._failed


SPANS: Final = Losses()
METRICS: Final = Losses()
"""Requests, each with all metrics as they were."""


def _after_fork() -> None:
    for losses in (SPANS, METRICS):
        losses.forget()


os.register_at_fork(after_in_child=_after_fork)
