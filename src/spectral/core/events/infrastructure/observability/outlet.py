"""An outlet: a bounded queue and a thread between the flow and something that writes, sends or may hang.

Whatever happens behind it, the flow only ever appends to a queue. What cannot be told in time is dropped and counted;
what fails is counted; nothing is retried and nothing waits.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY: Final = 10_000
_GATHER: Final = 0.02
"""Seconds: the thread takes what has gathered at once, instead of contending with the worker for every single note."""

_LAST_WORDS: Final = 1.0
_outlets: WeakSet[Outlet] = WeakSet()


class Outlet:
    """Runs what it is given, in order, in a thread of its own that starts with the first of it."""

    def __init__(self, name: str, capacity: int = CAPACITY) -> None:
        self.name = name
        self.dropped = 0
        self.failed = 0
        self._capacity = capacity
        self.start_anew()
        _outlets.add(self)

    def start_anew(self) -> None:
        """Empty and without a thread; also in the child of a fork, where the thread is missing."""
        self._queue: deque[Callable[[], object]] = deque()
        self._filled = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, work: Callable[[], object]) -> None:
        """Have it run soon, or drop it if too much waits already."""
        if len(self._queue) >= self._capacity:
            self.dropped += 1
            return
        self._queue.append(work)
        if not self._filled.is_set():
            self._idle.clear()
            self._filled.set()
            if self._thread is None:
                self._start_thread()

    def flush(self, within: float = _LAST_WORDS) -> bool:
        """Wait until everything so far has run, but no longer than this; false if it has not."""
        return self._idle.wait(within)

    def _start_thread(self) -> None:
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"spectral-{self.name}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._filled.wait()
            time.sleep(_GATHER)
            self._filled.clear()
            while self._queue:
                work = self._queue.popleft()
                try:
                    work()
                except Exception:  # noqa: BLE001  whoever watches must not end anything
                    self.failed += 1
            self._idle.set()
            if self._filled.is_set():  # something came between the last look and now
                self._idle.clear()


def _after_fork() -> None:
    for outlet in list(_outlets):
        outlet.start_anew()


def flush_all(within: float = _LAST_WORDS) -> bool:
    """Have what was told last written, unless whatever is behind it hangs; false if something does."""
    deadline = time.monotonic() + within
    # Twice: what one outlet runs may put something into another.
    flushed = [outlet.flush(max(0.0, deadline - time.monotonic())) for _ in range(2) for outlet in list(_outlets)]
    return all(flushed)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush_all)
