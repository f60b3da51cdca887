"""The launcher's end of the watchdog (see `watchdog`): the pipe that is let go on purpose, or by dying.

Invariant: the writing end of the pipe exists once, in the process that launched. Programs started from here do not
inherit it (descriptors close on exec), and a forked child closes its copy at once: a worker that outlives its parent
neither keeps the server alive nor stops it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, cast

from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from spectral.core.embedded.watchdog import Order, Report

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_ANSWER_SECONDS = 30.0

_held: weakref.WeakSet[Leash] = weakref.WeakSet()


class Leash:
    """A running watchdog. It removes the given directories after everything it started has ended."""

    def __init__(self, *, lock: int, log: Path, remove: Sequence[Path]) -> None:
        if not sys.executable:
            raise EmbeddedPostgresError("this Python does not know its own path; start it by its full path")
        _close_after_fork()
        self._log = log
        with log.open("ab") as diagnostics:
            self._process = subprocess.Popen(  # noqa: S603  this interpreter and a file of this package
                [sys.executable, "-I", "-S", str(_WATCHDOG), *map(str, remove)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=diagnostics,
                bufsize=0,
                cwd="/",
                pass_fds=(lock,),
                start_new_session=True,  # a Ctrl-C in the terminal is the launcher's to answer
            )
        self._orders = _pipe(self._process.stdin)
        self._reports = _pipe(self._process.stdout)
        self._unread = b""
        _held.add(self)

    @property
    def pid(self) -> int:
        """The watchdog's process id."""
        return self._process.pid

    def start(self, order: Order) -> int:
        """Have a program started and return its process id.

        Raises:
            EmbeddedPostgresError: it could not be started at all.
        """
        try:
            self._orders.write(json.dumps(order).encode() + b"\n")
            report = self.next_report(_ANSWER_SECONDS)
        except (BrokenPipeError, EOFError) as error:
            raise self._lost() from error
        if report is None or "started" not in report:
            reason = (report or {}).get("refused", "no answer")
            raise EmbeddedPostgresError(
                f"{order['command'][0]} could not be started ({reason}); check that the user that runs the server "
                "(nobody, when this is root) may execute it and that this process may switch to that user"
            )
        return report["started"]

    def wait_for_exit(self, seconds: float) -> int | None:
        """The exit code of the program, or None when it is still running after that time.

        Raises:
            EmbeddedPostgresError: the watchdog died, and its child with it.
        """
        try:
            report = self.next_report(seconds)
        except EOFError as error:
            raise self._lost() from error
        return None if report is None else report.get("exited")

    def next_report(self, seconds: float) -> Report | None:
        """The next line from the watchdog, None when the time is over; EOFError when there will be none."""
        deadline = time.monotonic() + seconds
        poller = select.poll()  # select() would fail in a process with more than a thousand open files
        poller.register(self._reports, select.POLLIN)
        while b"\n" not in self._unread:
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            received = os.read(self._reports.fileno(), 4096)
            if not received:
                raise EOFError
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return cast("Report", json.loads(line))

    def _lost(self) -> EmbeddedPostgresError:
        last_words = self._log.read_text(errors="replace")[-500:] if self._log.exists() else ""
        return EmbeddedPostgresError(
            f"the watchdog of the embedded Postgres (process {self.pid}) is gone; start the server again. "
            f"Its log ends with:\n{last_words}"
        )

    def let_go(self) -> bool:
        """End the program, remove the directories and wait for that; False when the watchdog did not end well."""
        _held.discard(self)
        with contextlib.suppress(BrokenPipeError):
            self._orders.close()
        code = self._process.wait()
        self._reports.close()
        return code == 0

    def forget(self) -> None:
        """In a forked child: this is the parent's server, not ours. Close the copies and never touch it."""
        self._orders.close()
        self._reports.close()
        self._process.returncode = 0  # nobody's child here: there is nothing to wait for or to warn about


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:  # pragma: no cover  Popen was asked for pipes
        raise AssertionError
    return stream


def _forget_all() -> None:
    for leash in tuple(_held):
        leash.forget()
    _held.clear()


@functools.cache
def _close_after_fork() -> None:
    """Register once, at the first server rather than at import."""
    os.register_at_fork(after_in_child=_forget_all)
