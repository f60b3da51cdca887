"""Worker processes as a test holds them: what they said, and what can be done to them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.faults.plan import Plan

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 30.0
"""How long anything that is certain to happen may take on a busy machine."""

Note = dict[str, Any]


def eventually(holds: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Look until it holds; for what gives no signal."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


class WorkerProcess:
    """One worker process, alive or not."""

    def __init__(self, plan: Plan, channel: socket.socket) -> None:
        self.plan = plan
        self.pid = 0
        self.notes: list[Note] = []
        self.code: int | None = None
        self._channel = channel
        self._is_silent = False
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)

    def born(self, pid: int) -> None:
        """It runs under this number."""
        self.pid = pid
        self._reader.start()

    def ended(self, code: int) -> None:
        """It has ended; negative codes are signals."""
        with self._changed:
            self.code = code
            self._changed.notify_all()

    def said(self, name: str, **fields: object) -> list[Note]:
        """The notes of this name with these fields, in their order."""
        with self._changed:
            return [
                note
                for note in self.notes
                if note["note"] == name and all(note.get(key) == value for key, value in fields.items())
            ]

    def wait_for(self, name: str, *, count: int = 1, seconds: float = PATIENCE, **fields: object) -> Note:
        """Wait until it has said this, this often; answers the last of them."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.said(name, **fields)) >= count or self._is_silent, seconds)
            found = self.said(name, **fields)
            assert len(found) >= count, (
                f"{self.plan.name} said {name} {fields} {len(found)} times of {count} in {seconds:g} s: {self._told()}"
            )
            return found[count - 1]

    def wait_for_end(self, seconds: float = PATIENCE) -> int:
        """Wait until the process has ended; answers its code."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.code is not None, seconds), (
                f"{self.plan.name} still runs after {seconds:g} s: {self._told()}"
            )
            assert self.code is not None
            return self.code

    @property
    def is_alive(self) -> bool:
        """Whether the process exists."""
        return self.code is None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; none reaches a process that has ended."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel would, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.wait_for_end()

    def stop(self) -> int:
        """Have it end in good order, and wait for that."""
        self.signal(signal.SIGTERM)
        return self.wait_for_end()

    def go_on(self) -> None:
        """Let it go on from where it was told to hold."""
        with suppress(OSError):
            self._channel.sendall(b"go\n")

    def leave(self) -> None:
        """Close what leads to it, once it is gone."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._reader.join(10)
        self._channel.close()

    def _read(self) -> None:
        with suppress(OSError), self._channel.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    self.notes.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._is_silent = True  # it has ended: it will not say anything more
            self._changed.notify_all()

    def _told(self) -> list[Note]:
        return self.notes[-30:]


class Crew:
    """Starts worker processes from a nursery of its own, and leaves none behind."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._nursery = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.nursery", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                env=os.environ | {"PYTHONFAULTHANDLER": ""},
            )
        self._control = ours
        self._changed = threading.Condition()
        self._unborn: list[WorkerProcess] = []
        self._members: list[WorkerProcess] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        self._control.shutdown(socket.SHUT_RDWR)
        self._nursery.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._control.close()

    def start(self, plan: Plan) -> WorkerProcess:
        """Start a worker; returns when its process exists, which says nothing about how far it is."""
        ours, theirs = socket.socketpair()
        worker = WorkerProcess(plan, ours)
        with self._changed, theirs:
            self._unborn.append(worker)
            self._members.append(worker)
            socket.send_fds(self._control, [plan.dumps().encode()], [theirs.fileno()])
            assert self._changed.wait_for(lambda: worker.pid, PATIENCE), "the nursery does not answer"
        return worker

    def dismiss(self) -> None:
        """Kill whoever is left."""
        for worker in self._members:
            if worker.is_alive:
                worker.signal(signal.SIGKILL)
        for worker in self._members:
            worker.wait_for_end()
            worker.leave()
        self._members.clear()

    def _read(self) -> None:
        with suppress(OSError), self._control.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                with self._changed:
                    if "born" in message:
                        self._unborn.pop(0).born(message["born"])
                    else:
                        for worker in self._members:
                            if worker.pid == message["ended"] and worker.is_alive:
                                worker.ended(message["code"])
                    self._changed.notify_all()
