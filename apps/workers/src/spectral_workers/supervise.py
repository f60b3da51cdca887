"""Several worker processes under one parent, which only watches: it opens no connection and imports no handler.

a child dies             it is started again, after 1, 2, 4 ... 30 seconds; a minute of life forgets its past
a child cannot start     (exit code 2) so cannot the others: all are stopped, and the parent ends with 2; if one of them
                         has worked for half a minute before, it has died instead: what was right may be so again
a child finds no         (exit code 75) only one that ends by itself gives up; it is not started again, and the parent
database                 ends with 75, unless another child ended worse
SIGTERM, SIGINT          passed on, the second too; the parent ends after its children, with 0 if all ended with 0
the parent is killed     the kernel sends every child SIGTERM
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.infrastructure.observability.log_writer import EventLogger
from spectral_workers.stopping import SIGNALS, signals_to_hear

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_CANNOT_START: Final = 2
_NO_DATABASE: Final = 75
_FIRST_PAUSE: Final = timedelta(seconds=1)
_LONGEST_PAUSE: Final = timedelta(seconds=30)
_FORGIVEN_AFTER: Final = 60.0
_HAS_WORKED_AFTER: Final = 30.0
_MARGIN: Final = 5.0


@dataclass(slots=True)
class _Child:
    """Runs (`process`), waits to be started again (`start_at`), or is over (`code`)."""

    number: int
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    start_at: float | None = 0.0
    started_at: float = 0.0
    code: int | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_PAUSE, _LONGEST_PAUSE))


class Supervisor:
    """Watches one child for each command; make and run it in the main thread, once in a process.

    `patience` is how long a child may take to stop; `ends_by_itself` says that exit code 0 means done, not died, and
    that a child which found no database leaves it at that.
    """

    def __init__(self, commands: Sequence[Sequence[str]], *, patience: float, ends_by_itself: bool) -> None:
        self._children = [_Child(number, command) for number, command in enumerate(commands)]
        self._patience = patience
        self._ends_by_itself = ends_by_itself
        self._deadline: float | None = None
        self._refused = False
        self._has_worked = False
        self._prctl = ctypes.CDLL(None).prctl
        self._wakeup, writer = os.pipe()
        for descriptor in (self._wakeup, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (*signals_to_hear(), signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)  # the byte in the pipe is the message

    def run(self) -> int:
        """Until every child is over; the exit code is the answer."""
        while any(child.code is None for child in self._children):
            self._start_those_due()
            for number in self._wait():
                if number in SIGNALS:
                    self._stop_all()
            for child in self._children:
                if child.process is not None and child.process.poll() is not None:
                    self._ended(child, child.process.returncode)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._kill_all()
        if self._refused:
            return _CANNOT_START
        codes = {child.code for child in self._children}
        if codes <= {0, _NO_DATABASE}:
            return _NO_DATABASE if _NO_DATABASE in codes else 0
        return 1

    def _start_those_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.start_at is not None and child.start_at <= now:
                child.start_at, child.started_at = None, now
                try:
                    child.process = self._start(child.command)
                except (OSError, subprocess.SubprocessError) as error:
                    self._try_again(child, error=type(error).__name__)
                else:
                    self._say("info", "worker process started", process=child.number, pid=child.process.pid)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        return subprocess.Popen(  # noqa: S603  this program's own command
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,  # a Ctrl-C in the terminal is the parent's to pass on; twice would mean force
            preexec_fn=lambda: self._die_with_parent(parent),  # noqa: PLW1509  this process has one thread
        )

    def _die_with_parent(self, parent: int) -> None:
        """In the child, before it becomes the worker: have the kernel send it SIGTERM when the parent dies."""
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it has died already
            os._exit(0)

    def _wait(self) -> bytes:
        """Until a signal comes or something is due."""
        due = [child.start_at for child in self._children if child.start_at is not None]
        if self._deadline is not None:
            due.append(self._deadline)
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        ready, _, _ = select.select([self._wakeup], [], [], timeout)
        return os.read(self._wakeup, 4096) if ready else b""

    def _ended(self, child: _Child, code: int) -> None:
        running = [each.started_at for each in self._children if each.process is not None]
        self._has_worked = self._has_worked or time.monotonic() - min(running) >= _HAS_WORKED_AFTER
        child.process = None
        if self._deadline is not None or (self._ends_by_itself and code in {0, _NO_DATABASE}):
            # Ended by the signal itself: it was so young that it had not begun anything.
            child.code = 0 if code == -signal.SIGTERM else code
            self._say("info", "worker process ended", process=child.number, code=code)
            return
        if code == _CANNOT_START and not self._has_worked:
            child.code = code
            self._refused = True
            self._say("critical", "worker process cannot start", process=child.number, code=code)
            self._stop_all()
            return
        self._try_again(child, code=code)

    def _try_again(self, child: _Child, **what: object) -> None:
        now = time.monotonic()
        if now - child.started_at >= _FORGIVEN_AFTER:
            child.backoff.reset()
        pause = child.backoff.next().total_seconds()
        child.start_at = now + pause
        self._say("error", "worker process died", process=child.number, restart_seconds=pause, **what)

    def _stop_all(self) -> None:
        self._deadline = time.monotonic() + self._patience + _MARGIN
        for child in self._children:
            if child.process is not None:
                child.process.send_signal(signal.SIGTERM)
            elif child.code is None:
                child.start_at, child.code = None, 0

    def _kill_all(self) -> None:
        """They had their time, and leave by themselves when they can: these cannot."""
        self._deadline = time.monotonic() + _MARGIN
        for child in self._children:
            if child.process is not None:
                self._say("error", "worker process killed", process=child.number, pid=child.process.pid)
                child.process.kill()

    def _say(self, level: str, event: str, **fields: object) -> None:
        """Log, if that can be done: children have to be watched even if nobody reads what is said of them."""
        with suppress(Exception):
            getattr(EventLogger("spectral.worker", dict, patient=False), level)(event, **fields)
