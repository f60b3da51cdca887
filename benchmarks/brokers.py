"""A broker for one turn, and the relay beside it: processes of their own, gone when their block ends.

Both servers are started empty, on loopback and with a password, and keep what they are told as they do unless told
otherwise: NATS in files that are synced every two minutes, Redis in a log of its writes that is synced every second.
Neither is asked for more, because what they hold are references; the rows are in Postgres, which syncs each commit.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.environments import ContestantError
from spectral.core.embedded.server import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_HOST: Final = "127.0.0.1"
_PATIENCE: Final = 20.0
_LAST_WORDS: Final = 600
_PROGRAM: Final = "from spectral_ops.cli import main; main()"


@dataclass(frozen=True, slots=True)
class _Server:
    """How one kind of server is run, and what it says to somebody who has said `greeting`."""

    program: str
    option: tuple[str, ...]
    configuration: str
    scheme: str
    user: str
    greeting: bytes
    answers: bytes


_SERVERS: Final = {
    "nats": _Server(
        program="nats-server",
        option=("-c",),
        configuration=(
            "listen: {host}:{port}\n"
            'jetstream {{ store_dir: "{home}", max_file_store: 20GB }}\n'
            'authorization {{ user: "bench", password: "{password}" }}\n'
        ),
        scheme="nats",
        user="bench",
        greeting=b"",
        answers=b"INFO",
    ),
    "redis": _Server(
        program="redis-server",
        option=(),
        configuration=(
            "bind {host}\nport {port}\n"
            'requirepass "{password}"\ndir "{home}"\n'
            'appendonly yes\nsave ""\ndaemonize no\nlogfile ""\n'
        ),
        scheme="redis",
        user="default",
        greeting=b"PING\r\n",
        answers=b"-NOA",  # it answers, though not to somebody without a password
    ),
}
KINDS: Final = tuple(_SERVERS)


@dataclass(frozen=True, slots=True)
class Broker:
    """A server that runs."""

    kind: str
    url: str = field(repr=False)
    pid: int

    @property
    def variables(self) -> dict[str, str]:
        """What a relay and a worker have to be told."""
        return {"SPECTRAL_RELAY": self.kind, "SPECTRAL_BROKER_URL": self.url}


@contextmanager
def running(kind: str) -> Iterator[Broker]:
    """A server with nothing in it.

    Raises:
        ContestantError: there is none here, or it does not start.
    """
    server, port, password = _SERVERS[kind], free_port(), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        home, log = Path(directory), Path(directory) / "log"
        written = home / "configuration"
        written.write_text(server.configuration.format(host=_HOST, port=port, password=password, home=home))
        with _process([_program(server.program), *server.option, str(written)], log) as process:
            _wait_until_it_answers(server, port, process, log)
            url = f"{server.scheme}://{server.user}:{password}@{_HOST}:{port}"
            yield Broker(kind, url, process.pid)


@contextmanager
def relaying(dsn: str, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A relay at its defaults.

    Raises:
        ContestantError: what was measured failed because the relay had ended.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log = Path(directory) / "log"
        command = [sys.executable, "-c", _PROGRAM, "relay", "run"]
        with _process(command, log, {**variables, "SPECTRAL_DATABASE_URL": dsn}) as process:
            try:
                yield process
            except ContestantError as failed:
                if process.poll() is None:
                    raise
                raise ContestantError(f"the relay ended and said {_last_words(log)!r}") from failed


@contextmanager
def _process(
    command: list[str], log: Path, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  the programs above
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(variables or {})},  # noqa: TID251  the top of a program
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ContestantError(f"there is no {name} here; run: make setup")
    return found


def _wait_until_it_answers(server: _Server, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection((_HOST, port), timeout=1) as line:
            line.sendall(server.greeting)
            if line.recv(len(server.answers)) == server.answers:
                return
        time.sleep(0.01)
    raise ContestantError(f"{server.program} does not start: {_last_words(log)!r}")


def _last_words(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-_LAST_WORDS:]
