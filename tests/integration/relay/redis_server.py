"""A real Redis on loopback, with a password and a log of its writes: one for each test process.

The server comes with a wheel (6.2, the oldest that will do) where there is one, or from the system.
`SPECTRAL_TEST_REDIS` names another binary. It dies with the test process, however that ends.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from spectral.core.embedded.server import free_port
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings

_PATIENCE: Final = 20.0

# A shell has no word for it, and a function between fork and exec is not safe beside threads.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


def redis_binary() -> str:
    """Where the server is.

    Raises:
        RuntimeError: there is none; the message says how to get one.
    """
    named = os.environ.get("SPECTRAL_TEST_REDIS")
    beside = Path(sys.executable).with_name("redis-server")
    found = named or (str(beside) if beside.exists() else shutil.which("redis-server"))
    if found is None or not os.access(found, os.X_OK):
        raise RuntimeError(
            f"no Redis server{f' at {named}' if named else ''}: run `make setup`; where its wheel does not fit "
            "(other than x86-64 Linux with Python 3.11 or 3.12), install the system's: apt-get install redis-server"
        )
    return found


class RedisServer:
    """A server that can be stopped, killed, paused and emptied."""

    def __init__(self) -> None:
        self.port = free_port()
        self.password = secrets.token_urlsafe(24)
        self._home = Path(tempfile.mkdtemp(prefix="spectral-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """With the password of the user who may do everything."""
        return self.url_of("default", self.password)

    def url_of(self, user: str, password: str) -> str:
        """The same server, for somebody else."""
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"

    def settings(self, **others: object) -> BrokerSettings:
        """What an adapter is given; `others` replace what they name."""
        given = {"kind": BrokerKind.REDIS, "url": self.url} | others
        return BrokerSettings(**given)  # type: ignore[arg-type]  # each test knows what it names

    def start(self, *, empty: bool = False) -> None:
        """Start it, with what it has written or with nothing; it answers when this returns."""
        if self._process is not None:
            self.kill()
        if empty:
            shutil.rmtree(self._home)
            self._home.mkdir(mode=0o700)
        configuration = (
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {self.password}\ndir {self._home}\n"
            'appendonly yes\nappendfsync always\nsave ""\ndaemonize no\nlogfile ""\n'
        )
        with (self._home / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), redis_binary(), "-"],
                stdin=subprocess.PIPE,  # the password is nothing for the list of processes
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                start_new_session=True,  # a Ctrl-C in the terminal is not the server's to answer
            )
        assert self._process.stdin is not None
        self._process.stdin.write(configuration.encode())
        self._process.stdin.close()
        self._wait_until_it_answers(self._process)

    def stop(self) -> None:
        """As an operator would."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """It accepts connections, for the kernel does, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on where it was paused."""
        self._signal(signal.SIGCONT)

    def restore(self) -> None:
        """Whatever a test has done to it: it runs afterwards."""
        if self._process is None or self._process.poll() is not None:
            self.start()
        else:
            self.resume()

    def remove(self) -> None:
        """Leave nothing behind."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def command(self, *words: str) -> bytes:
        """Ask it something beside the adapters; answers the first line or value."""
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE) as line,
            line.makefile("rb") as answers,
        ):
            answer = b""
            for each in (("AUTH", self.password), words):
                line.sendall(b"*%d\r\n" % len(each) + b"".join(_bulk(word.encode()) for word in each))
                answer = answers.readline().strip()
                if answer.startswith(b"$") and answer != b"$-1":
                    answer = answers.read(int(answer[1:]))
            return answer

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            if process.poll() is not None:
                break
            with suppress(OSError):
                if self.command("PING") == b"+PONG":
                    return
            time.sleep(0.005)  # a server that starts tells nobody when it is done
        log = (self._home / "server.log").read_text(errors="replace")
        raise RuntimeError(f"Redis did not start:\n{log[-2000:]}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(timeout=_PATIENCE)


def _bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


@cache
def running_redis() -> RedisServer:
    """The server of this test process."""
    server = RedisServer()
    atexit.register(server.remove)
    server.start()
    return server
