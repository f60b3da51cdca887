"""`spectral worker` as a real process: started with an app of the test's own, watched by its log lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar, Final, Self

import psycopg

from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publisher_for, publishing

SPECTRAL: Final = str(Path(sys.executable).with_name("spectral"))
PATIENCE: Final = 40.0
"""Seconds that a machine with more to do may take for anything."""

_PUBLISHING: Final = publishing(PublishSettings(generation=1))
_HEAD: Final = """
import asyncio
import time
from datetime import timedelta

from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, RetryPolicy, Transaction

platform = Consumer("platform")

@platform.on("worlds.scan.completed")
async def quick(event: EventEnvelope) -> None:
    pass

"""
_HASTY: Final = """
import os
import sys
from dataclasses import replace
from datetime import timedelta

from spectral.core.events import DatabaseSettings, WorkerSettings
from spectral_workers.process import Order, run_worker

soon = timedelta(milliseconds=300)
settings = WorkerSettings.from_environ(os.environ)
settings = replace(settings, times=replace(settings.times, grace=soon, reap=soon, unhandled_after=soon))
database = DatabaseSettings.from_environ(os.environ)
sys.exit(run_worker(Order(apps=tuple(sys.argv[1:]), settings=settings, database=database, environ=dict(os.environ))))
"""


class WorkerProcess:
    """Use it as a context manager: whatever the test leaves running is killed."""

    program: ClassVar[tuple[str, ...]] = (SPECTRAL,)
    command: ClassVar[tuple[str, ...]] = ("worker",)
    usual: ClassVar[tuple[str, ...]] = ("app:platform",)

    def __init__(self, directory: Path, *arguments: str, **variables: str) -> None:
        self._process = subprocess.Popen(
            [*self.program, *self.command, *(arguments or self.usual)],
            cwd=directory,
            env={"PATH": "/usr/bin:/bin", "SPECTRAL_GENERATION": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self.text = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        for line in stream:
            with self._news:
                self.text += line
                if line.startswith("{"):
                    self.lines.append(json.loads(line))
                self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def logged(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The log lines of this event with these fields, so far."""
        with self._news:
            return [line for line in self.lines if line["event"] == event and fields.items() <= line.items()]

    def wait_for(self, event: str, *, times: int = 1, **fields: object) -> dict[str, Any]:
        """Wait until this was logged so often; the last of the lines."""
        with self._news:
            seen = self._news.wait_for(lambda: len(self.logged(event, **fields)) >= times, timeout=PATIENCE)
        assert seen, f"no {times} x {event} {fields} in:\n{self.text}"
        return self.logged(event, **fields)[times - 1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Wait for the process and its log to end; the exit code."""
        code = self._process.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)
        return code


class RelayProcess(WorkerProcess):
    """The same of `spectral relay run`."""

    command = ("relay", "run")
    usual = ("--health-port", "0")


class HastyWorkerProcess(WorkerProcess):
    """`spectral worker` that looks for abandoned rows, and for those nobody handles, after moments."""

    program = (sys.executable, "-c", _HASTY)
    command = ()


def write_app(directory: Path, handlers: str = "") -> None:
    """An `app.py` with a consumer `platform`: a handler `quick`, and these."""
    (directory / "app.py").write_text(_HEAD + dedent(handlers))


def publish(dsn: str, event_type: str, count: int = 1, **envelope: Any) -> None:  # noqa: ANN401  fields of the envelope
    with psycopg.connect(dsn) as connection, connection.transaction():
        publisher_for(connection, _PUBLISHING).publish_many(
            EventEnvelope(event_type=event_type, source="worlds", target="platform", payload={"n": number}, **envelope)
            for number in range(count)
        )


@dataclass(frozen=True)
class Outbox:
    """What is in the table."""

    dsn: str

    def count(self) -> dict[tuple[str, int], int]:
        """Rows by status and attempts."""
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute("select status, attempts, count(*) from core.outbox group by 1, 2").fetchall()
        return {(status, attempts): count for status, attempts, count in found}


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait for what nobody signals."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in {PATIENCE:g} s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
