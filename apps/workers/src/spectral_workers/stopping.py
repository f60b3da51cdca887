"""Being told to stop, and leaving. A signal is heard whatever the event loop does: a thread of its own reads it.

    first signal    the worker drains: it finishes what runs, gives back the rest
    second signal   it gives back everything at once
    third signal    it leaves at once; its claims are taken back by the other workers

Should it be unable to obey (a handler blocks the event loop, or ignores its cancellation), it leaves a little after the
time that obeying takes at most. Every one of these ways ends with exit code 0: whoever stopped it got what they wanted.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

from spectral.core.events.infrastructure.observability.log_writer import process_logger, say_later
from spectral.core.events.infrastructure.observability.outlet import flush_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.events.settings import Identity

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The last is what a terminal that is closed takes its programs along with."""

_LAST_WORDS: Final = 1.0
_INSISTED: Final = 5.0
"""Seconds after the second signal: enough to cancel and to write that everything is given back."""


def signals_to_hear() -> list[signal.Signals]:
    """Those that stop a worker; SIGHUP unless it is ignored already, as by `nohup`."""
    return [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]


class StopSignals:
    """Hears what tells it to stop from the moment it is made; make it in the main thread, once in a process.

    identity: who says that it was told to.
    """

    def __init__(self, patience: float, identity: Identity) -> None:
        self._patience = patience
        self._log = process_logger("spectral.worker", identity)
        self._stop: Callable[[], object] | None = None
        self._reader, self._writer = socket.socketpair()
        os.set_blocking(self._writer.fileno(), False)
        # The C level writes the signal's number here at once, even while the main thread is inside a C call.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in signals_to_hear():
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._hear, name="spectral-signals", daemon=True).start()

    def tell(self, stop: Callable[[], object]) -> None:
        """Whom to tell, once for every signal, from another thread. Until then a signal just ends the process."""
        self._stop = stop

    def _on_signal(self, number: int, _frame: object) -> None:
        """Runs in the main thread when it gets round to it. Usually the thread has heard of it long before."""
        ours = self._writer.fileno()
        theirs = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if theirs != ours:  # an event loop has taken the place, so nobody told the thread
            signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
            self._writer.send(bytes([number]))

    def _hear(self) -> None:
        deadline: float | None = None
        heard = 0
        while True:
            self._reader.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
            try:
                received = self._reader.recv(64)
            except TimeoutError:
                say_later(self._log, "error", "left by force", reason="handlers did not let it end in time")
                leave(0)
            for number in received:
                if number in SIGNALS:
                    heard += 1
                    deadline = time.monotonic() + (self._patience if heard == 1 else _INSISTED)
                    self._pass_on(heard)
                    name = signal.Signals(number).name
                    say_later(self._log, "info", "told to stop", signal=name, times=heard)

    def _pass_on(self, heard: int) -> None:
        if self._stop is None or heard > len(("drain", "force")):
            leave(0)
        with suppress(RuntimeError):  # the event loop has ended already
            self._stop()


def leave(code: int) -> NoReturn:
    """End the process now, whatever still runs in it; what was logged is written, unless nobody reads it."""
    writing = threading.Thread(target=_write_the_rest, name="spectral-rest", daemon=True)
    writing.start()
    writing.join(_LAST_WORDS)
    os._exit(code)


def _write_the_rest() -> None:
    flush_all(_LAST_WORDS)
    with suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
