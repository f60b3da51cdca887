"""A real nats-server on loopback, with a password and JetStream, that tests may stop, kill, empty and freeze."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

USER = "relay"
GUEST = "guest"
"""Who may connect and listen, and do nothing else."""

PASSWORD = "s3cret/with@signs"
URL_PASSWORD = "s3cret%2Fwith%40signs"

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_START_SECONDS = 30.0


class NatsServer:
    """One server process at a time, always on the same port and, unless it is emptied, with the same data."""

    def __init__(self, directory: Path, store: str = "20TB") -> None:
        # Every test has streams of its own, and each sets aside what it may grow to: 80 of them would fill 20 GB.
        self._store = store
        self._directory = directory
        self._prctl = ctypes.CDLL(None).prctl
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self.port = _free_port()

    @property
    def url(self) -> str:
        """With the right credentials."""
        return self.url_of(f"{USER}:{URL_PASSWORD}")

    def url_of(self, credentials: str) -> str:
        """With others."""
        return f"nats://{credentials}@127.0.0.1:{self.port}"

    def start(self, *, empty: bool = False) -> None:
        """Start, and wait until it answers; without its data if that is asked for."""
        if empty:
            shutil.rmtree(self._directory / "store", ignore_errors=True)
        written = self._directory / "nats.conf"
        written.write_text(
            f"listen: 127.0.0.1:{self.port}\n"
            f"jetstream {{ store_dir: {str(self._directory / 'store')!r}, max_file_store: {self._store} }}\n"
            "authorization { users: [\n"
            f"  {{ user: {USER!r}, password: {PASSWORD!r} }}\n"
            f"  {{ user: {GUEST!r}, password: {PASSWORD!r}, permissions: {{ publish: nothing, subscribe: '>' }} }}\n"
            "] }\n"
        )
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("nats-server")), "-c", str(written)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=self._die_with_tests,  # noqa: PLW1509  it makes one system call
            )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power failure would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self._paused = True
        tasks = Path(f"/proc/{self._process.pid}/task")
        while any(_state(task / "stat") != "T" for task in tasks.iterdir()):  # each thread stops in its own time
            time.sleep(0.001)

    def resume(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        self._paused = False

    def restore(self) -> None:
        """As a test expects to find it, whatever the one before did."""
        if self._paused:
            self.resume()
        if self._process is None or self._process.poll() is not None:
            self.start(empty=True)

    def start_somewhere(self) -> None:
        """Start for the first time, on a port that nobody took meanwhile."""
        for _ in range(5):
            try:
                self.start()
            except RuntimeError:
                self.port = _free_port()
            else:
                return
        self.start()

    def remove(self) -> None:
        """End it, and leave nothing behind."""
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=_START_SECONDS)
            self._process, self._paused = None, False

    def _die_with_tests(self) -> None:
        """In the child: the kernel kills it when the process that runs the tests is gone, however that went."""
        self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def _wait_until_it_answers(self) -> None:
        given_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < given_up:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as asked:
                if asked.recv(4) == b"INFO":
                    return
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"nats-server does not start: {(self._directory / 'log').read_text()[-2000:]}")


def _state(stat: Path) -> str:
    """Of a thread, in the kernel's letter."""
    return stat.read_text().rpartition(")")[2].split()[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@cache
def _one_for_this_process() -> NatsServer:
    """Fixtures are per module where they are imported; the server is not."""
    server = NatsServer(Path(tempfile.mkdtemp(prefix="spectral-nats-")))
    atexit.register(server.remove)
    server.start_somewhere()
    return server


@pytest.fixture
def nats_server() -> Iterator[NatsServer]:
    """A server that runs, empty unless a test before left something in streams of its own."""
    assert threading.current_thread() is threading.main_thread(), "the server dies with the thread that starts it"
    server = _one_for_this_process()
    server.restore()
    yield server
    server.restore()
