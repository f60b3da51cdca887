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
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable

CAPACITY: Final = 10_000
_GATHER: Final = 0.05
"""Seconds: the thread takes what has gathered at once, instead of contending with the worker for every single note.

Each time it wakes costs the worker as much as an event. A process that is killed loses what has not been taken yet.
"""

_START_AGAIN: Final = 1.0
"""Seconds: a process that has no room for another thread now may have it later."""

_LOOK_AGAIN: Final = 0.05  # seconds
_LAST_WORDS: Final = 1.0
_outlets: set[ref[Outlet]] = set()
"""Not a weak set: to go through one fails if another thread adds to it meanwhile, and so does to copy it."""

_threads: set[int] = set()


def is_in_outlet() -> bool:
    """Whether this runs behind an outlet, whose work must not make more of it."""
    return threading.get_ident() in _threads


class Outlet:
    """Runs what it is given, in order, in a thread of its own that starts with the first of it.

    gather: for so many seconds, instead of as long as everywhere.
    """

    def __init__(self, name: str, capacity: int = CAPACITY, *, gather: float | None = None) -> None:
        self.name = name
        self._capacity = capacity
        self._gather = gather
        self.start_anew()
        _outlets.add(ref(self, _outlets.discard))

    def start_anew(self) -> None:
        """Empty and without a thread; also in the child of a fork, where the thread is missing.

        What was lost before is the parent's to say.
        """
        self.dropped = 0
        self.failed = 0
        self._queue: deque[Callable[[], object]] = deque()
        # Not events: a signal's handler that logs may interrupt whoever puts, and would wait for him for ever.
        self._filled: SimpleQueue[None] = SimpleQueue()
        self._hurry: SimpleQueue[None] = SimpleQueue()
        self._is_called = False
        self._is_running = False
        self._start = threading.Lock()
        self._start_at = 0.0
        self._thread: threading.Thread | None = None

    def put(self, work: Callable[[], object]) -> None:
        """Have it run soon, or drop it if too much waits already."""
        if len(self._queue) >= self._capacity:
            self.dropped += 1
            return
        self._queue.append(work)
        if not self._is_called:
            self._is_called = True
            self._filled.put(None)
        if self._thread is None:
            self._start_thread()

    @property
    def has_thread(self) -> bool:
        """Whether there was room for one; if not, and something waits, `try_again`."""
        return self._thread is not None

    def try_again(self) -> None:
        """To start the thread, unless that was tried a moment ago."""
        self._start_thread()

    @property
    def is_idle(self) -> bool:
        """Whether everything so far has run."""
        # In this order: the thread says that it runs before it takes anything.
        return not self._queue and not self._is_running

    def flush(self, within: float = _LAST_WORDS) -> bool:
        """Wait until everything so far has run, but no longer than this; false if it has not."""
        if self.is_idle:
            return True
        if threading.current_thread() is self._thread:
            return False  # it would wait for itself
        reached = threading.Event()
        self._queue.append(reached.set)
        self._hurry.put(None)
        self._filled.put(None)
        deadline = time.monotonic() + within
        while self._thread is None:  # there was no room for one; there may be before the time is over
            self._start_thread()
            if reached.wait(min(_LOOK_AGAIN, max(0.0, deadline - time.monotonic()))):
                return True
            if time.monotonic() >= deadline:
                break
        return reached.wait(max(0.0, deadline - time.monotonic()))

    def _start_thread(self) -> None:
        """Start it, or try again later: what waits, waits."""
        if time.monotonic() < self._start_at or not self._start.acquire(blocking=False):
            return
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"spectral-{self.name}", daemon=True)
                thread.start()
                self._thread = thread
        except Exception:  # noqa: BLE001  no room for a thread is none of the flow's business
            self.failed += 1
            self._start_at = time.monotonic() + _START_AGAIN
        finally:
            self._start.release()

    def _run(self) -> None:
        _threads.add(threading.get_ident())
        while True:
            self._filled.get()
            with suppress(Empty):
                self._hurry.get(timeout=_GATHER if self._gather is None else self._gather)
            self._is_called = False  # first: what comes from now on calls again
            self._is_running = True
            # What is put meanwhile has called again, and gathers until the next time.
            for _ in range(len(self._queue)):
                work = self._queue.popleft()
                try:
                    work()
                except BaseException:  # noqa: BLE001  whoever watches must not end anything, not even this thread
                    self.failed += 1
                del work  # or it would be kept until the next one comes
            self._is_running = False


def _all() -> list[Outlet]:
    """Those that there are now."""
    # The copy is made in one step of the interpreter.
    return [outlet for known in list(_outlets) if (outlet := known()) is not None]


def _after_fork() -> None:
    _threads.clear()  # none of them is here
    for outlet in _all():
        outlet.start_anew()


def flush_all(within: float = _LAST_WORDS) -> bool:
    """Have what was told last written, unless whatever is behind it hangs; false if something does."""
    deadline = time.monotonic() + within
    while True:
        outlets = _all()
        flushed = [outlet.flush(max(0.0, deadline - time.monotonic())) for outlet in outlets]
        # Again, for what one outlet runs may put something into another, and that into a third.
        if not all(flushed) or all(outlet.is_idle for outlet in outlets):
            return all(flushed)


def flush_first() -> None:
    """At the end of the process, flush before anything is shut down that has registered itself for that by now.

    What is registered last runs first. A provider is mostly made after this module was imported, and what is told to
    it after its end is lost.
    """
    atexit.unregister(flush_all)
    atexit.register(flush_all)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush_all)
