"""The watchdog: a process that outlives its launcher just long enough to leave nothing behind.

Run as a script (`python -I -S watchdog.py <directory to remove>...`), standard library only, so that it starts in a
few milliseconds and does not depend on the launcher's environment. Invariants:

- Everything the launcher starts is a child of this process, one at a time, and ends before this process does.
- It ends when its standard input does. The launcher holds the other end of that pipe: letting go on purpose and being
  killed look the same from here, so the way a crash is cleaned up is the way that every stop is.
- It holds the cluster's lock (an inherited file descriptor) until the server is gone.
- Should this process itself be killed, the kernel sends the child its stop signal.

    launcher ── order (a JSON line) ──▶ watchdog ──▶ initdb, then postgres
             ◀── started | refused | exited ──
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypedDict, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_STANDARD_INPUT = 0
_STANDARD_OUTPUT = 1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# After the child's own stop signal. Postgres answers SIGQUIT by stopping without a checkpoint; data stays safe.
_PATIENCE_SECONDS = 30.0
_HARDER_SIGNALS = ((signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
_REMOVE_ATTEMPTS = 20


class Order(TypedDict):
    """What the launcher asks to be run: as whom (None: as the launcher), writing where, and how it is stopped."""

    command: list[str]
    environment: dict[str, str]
    user: int | None
    group: int | None
    log: str
    stop_signal: int


class Report(TypedDict, total=False):
    """What became of it: exactly one of these."""

    started: int
    refused: str
    exited: int


class Watchdog:
    """The child, if any, and the signals and orders that are waited for."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_signal: int = signal.SIGTERM
        self._unread = b""
        self._prctl = _load_prctl()
        self._wakeup, wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup_writer, False)
        signal.set_wakeup_fd(wakeup_writer, warn_on_full_buffer=False)
        # The byte in the wakeup pipe is the message. Not SIG_IGN for those that mean nothing here: the child would
        # inherit that, and a server that was told to stop in its first moments would not hear it.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)

    def watch(self) -> None:
        """Carry out orders until the launcher lets go or this process is told to end."""
        while True:
            ready, _, _ = select.select([_STANDARD_INPUT, self._wakeup], [], [])
            if self._wakeup in ready:
                if signal.SIGTERM in os.read(self._wakeup, 4096):
                    return
                self._report_exit()
            if _STANDARD_INPUT in ready:
                received = os.read(_STANDARD_INPUT, 65536)
                if not received:
                    return
                *orders, self._unread = (self._unread + received).split(b"\n")
                for order in orders:
                    self._start(cast("Order", json.loads(order)))

    def stop_child(self) -> None:
        """End the child, more insistently as time passes."""
        if self._child is None:
            return
        for number, patience in ((self._stop_signal, _PATIENCE_SECONDS), *_HARDER_SIGNALS):
            self._child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout=patience)
                return

    def _start(self, order: Order) -> None:
        self._stop_signal = order["stop_signal"]
        try:
            with open(order["log"], "ab") as log:  # noqa: PTH123  pathlib would double the start time
                self._child = subprocess.Popen(  # noqa: S603  the launcher's own order, over a private pipe
                    order["command"],
                    env=order["environment"],
                    user=order["user"],
                    group=order["group"],
                    extra_groups=None if order["user"] is None else [],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    start_new_session=True,  # a Ctrl-C in the terminal is the launcher's to answer
                    preexec_fn=self._die_with_watchdog,  # noqa: PLW1509  this process has one thread
                )
        except (OSError, subprocess.SubprocessError) as error:
            _report({"refused": str(error)})
        else:
            _report({"started": self._child.pid})

    def _die_with_watchdog(self) -> None:
        """In the child, after it became the other user (which would clear this) and before it becomes Postgres."""
        if self._prctl is not None:
            self._prctl(_PR_SET_PDEATHSIG, self._stop_signal)

    def _report_exit(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            _report({"exited": self._child.returncode})
            self._child = None


def _load_prctl() -> Callable[[int, int], int] | None:
    """The system call, or None for a Python that was built without libffi: a second safety net, not the first."""
    try:
        import ctypes  # noqa: PLC0415  optional, as said
    except ImportError:
        return None
    return cast("Callable[[int, int], int]", ctypes.CDLL(None).prctl)


def _report(report: Report) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the end of standard input comes next
        os.write(_STANDARD_OUTPUT, json.dumps(report).encode() + b"\n")


def _remove(directory: str) -> None:
    import shutil  # noqa: PLC0415  slow to import, and needed at the very end only

    for _ in range(_REMOVE_ATTEMPTS):  # a backend that was killed may still be writing for a moment
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
        time.sleep(0.05)


def main() -> None:
    """Watch, stop, remove: in this order, whatever happens."""
    watchdog = Watchdog()
    try:
        watchdog.watch()
    finally:
        watchdog.stop_child()
        for directory in sys.argv[1:]:
            _remove(directory)


if __name__ == "__main__":
    main()
