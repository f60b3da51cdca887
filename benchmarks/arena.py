"""The arena: one server with fsync on, a database for each contestant, and the processes that run in it.

Everything a contestant does happens in processes of its own, started here and gone when their block ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from benchmarks.environments import ContestantError, Environments
from benchmarks.measure import Meter, Reading
from spectral.core.embedded import EmbeddedPostgres, ServerOptions, database_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.roster import Contestant, Line

SETTINGS: Final = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none"}
"""Statements are counted in a round of its own, so that counting them slows nobody down."""

_EFFECTS: Final = b"create table bench_effects (number bigint primary key, seen integer not null)"
_END_OTHERS: Final = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)
_CALLS: Final = (
    "select coalesce(sum(calls), 0) from pg_stat_statements"
    " where dbid = (select oid from pg_database where datname = %s)"
)
_TIME: Final = re.compile(r"(?P<number>\d+) (?P<clock>\d+)")
_LAST_WORDS: Final = 600
_PATIENCE: Final = 120.0


@dataclass(frozen=True, slots=True)
class Running:
    """A worker process, and the directory where each of its processes counts the calls of its handlers."""

    process: subprocess.Popen[bytes]
    ticks: Path
    errors: Path

    @property
    def calls(self) -> int:
        """How many handler calls there were."""
        return sum(int.from_bytes(each.read_bytes(), sys.byteorder) for each in self.ticks.iterdir())

    def wait_for_first(self, seconds: float) -> None:
        """Until the first handler is called.

        Raises:
            ContestantError: it is not within that time, or the process ended.
        """
        self._wait_beyond(0, seconds)

    def wait_for_more(self, seconds: float) -> None:
        """Until another handler is called; raises as above."""
        self._wait_beyond(self.calls, seconds)

    def has_said(self, text: str) -> bool:
        """Whether that is in its log, which has to be kept for it."""
        return text in self.errors.read_text(errors="replace")

    def wait_until_it_said(self, text: str, seconds: float) -> None:
        """Until that is in its log; raises as above."""
        deadline = time.monotonic() + seconds
        while not self.has_said(text):
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.errors.read_text(errors="replace").strip()[-_LAST_WORDS:]
                raise ContestantError(f"did not say {text!r} within {seconds:g} s, but {said!r}")
            time.sleep(0.01)

    def _wait_beyond(self, calls: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.calls <= calls:
            if self.process.poll() is not None or time.monotonic() > deadline:
                said = self.errors.read_text(errors="replace").strip()[-_LAST_WORDS:]
                command = " ".join(map(str, self.process.args)) if isinstance(self.process.args, list) else ""
                raise ContestantError(f"handled nothing within {seconds:g} s and said {said!r}; by hand: {command}")
            time.sleep(0.002)


class Arena:
    """One server for everybody; there is one between the beginning and the end of `open`."""

    def __init__(self, environments: Environments | None = None) -> None:
        self._environments = environments or Environments()
        self._server = EmbeddedPostgres(options=ServerOptions(settings=SETTINGS))
        self._databases: dict[tuple[str, str], str] = {}
        self._counted: dict[str, dict[str, float]] = {}

    @contextmanager
    def open(self) -> Iterator[Arena]:
        """Start the server, and stop it in the end."""
        with self._server, psycopg.connect(self._server.dsn, autocommit=True) as connection:
            connection.execute("create extension pg_stat_statements")
            self._connection = connection
            self._meter = Meter(self._server.pid, connection)
            yield self

    def server_version(self) -> str:
        """Such as 18.6."""
        row = self._connection.execute("show server_version").fetchone()
        return str(row[0]) if row else ""

    def database(self, contestant: Contestant, variant: str = "") -> str:
        """The contestant's own database, set up; one for each variant.

        Raises:
            ContestantError: it cannot be installed or set up.
        """
        key = contestant.name, variant
        if key not in self._databases:
            dsn = self.empty_database()
            self._run(contestant, "setup", dsn)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(_EFFECTS)
            self._databases[key] = dsn
        return self._databases[key]

    def empty_database(self) -> str:
        """Another database, with nothing in it."""
        return self._server.create_database()

    def fill(self, line: Line, kind: str, count: int, dsn: str) -> None:
        """Publish, then let everybody start from tables that are vacuumed and known, and a fresh checkpoint."""
        self._run(line.contestant, "fill", dsn, kind, line.settings, str(count))
        self.settle_down(dsn)

    def settle_down(self, dsn: str) -> None:
        """Vacuum, analyse, checkpoint."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("vacuum analyze")
            connection.execute("checkpoint")

    def clear(self, contestant: Contestant, dsn: str) -> None:
        """Take everything out of the tables."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_END_OTHERS)
            connection.execute(contestant.clear.encode())
            connection.execute("truncate bench_effects")

    def left(self, contestant: Contestant, connection: psycopg.Connection[Any]) -> int:
        """How many events are not settled yet, as the database sees it."""
        row = connection.execute(contestant.left.encode()).fetchone()
        return int(row[0]) if row else 0

    @contextmanager
    def working(self, line: Line, kind: str, dsn: str, output: Path | None = None) -> Iterator[Running]:
        """A worker, killed in the end; its output goes to a file if one is given, and nowhere otherwise."""
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            ticks, errors = Path(directory) / "ticks", Path(directory) / "errors"
            ticks.mkdir()
            with (output or Path(os.devnull)).open("wb") as out, self._log_of(line, errors).open("wb") as log:
                process = subprocess.Popen(  # noqa: S603  a contestant's program
                    [*self._command(line.contestant), "work", dsn, kind, line.settings],
                    stdout=out,
                    stderr=log,
                    env={**os.environ, **line.variables, "BENCH_TICKS": str(ticks)},  # noqa: TID251  the top of a program
                    start_new_session=True,
                )
            errors.touch()
            try:
                yield Running(process, ticks, errors)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def publish(self, line: Line, what: str, dsn: str, kind: str, *numbers: float) -> str:
        """Run one of the publishing commands to its end; answers what it printed.

        Raises:
            ContestantError: it failed.
        """
        return self._run(line.contestant, what, dsn, kind, line.settings, *(f"{number:g}" for number in numbers))

    def start_publishing(self, line: Line, dsn: str, kind: str, *numbers: float) -> subprocess.Popen[str]:
        """The same for `singles`, without waiting for it."""
        return subprocess.Popen(  # noqa: S603  a contestant's program
            [*self._command(line.contestant), "singles", dsn, kind, line.settings, *(f"{each:g}" for each in numbers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def read(self, client: subprocess.Popen[Any] | None = None, beside: Mapping[str, int] | None = None) -> Reading:
        """The counters now, also of processes beside the client if there are some that matter."""
        return self._meter.read(None if client is None else client.pid, beside)

    @contextmanager
    def counting_statements(self, dsn: str) -> Iterator[None]:
        """Sessions that begin in this block are counted."""
        name = sql.Identifier(database_of(dsn))
        change = sql.SQL("alter database {} set pg_stat_statements.track = 'top'").format(name)
        self._connection.execute(change)
        try:
            yield
        finally:
            self._connection.execute(sql.SQL("alter database {} reset pg_stat_statements.track").format(name))

    def once(self, what: str, count: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What does not change from round to round is counted in the first one."""
        if what not in self._counted:
            self._counted[what] = count()
        return self._counted[what]

    def statements(self, dsn: str) -> int:
        """How many statements have been counted in this database."""
        row = self._connection.execute(_CALLS, [database_of(dsn)]).fetchone()
        return int(row[0]) if row else 0

    def _command(self, contestant: Contestant) -> list[str]:
        return [self._environments.python_of(contestant), "-m", f"benchmarks.contestants.{contestant.module}"]

    def _log_of(self, line: Line, errors: Path) -> Path:
        """Ours logs a line for each event: to a device that keeps nothing, as everybody's logs go somewhere."""
        return Path(os.devnull) if line.group == "ours" and not line.keeps_log else errors

    def _run(self, contestant: Contestant, what: str, *arguments: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603  a contestant's program
                [*self._command(contestant), what, *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise ContestantError(f"{contestant.name} {what} took longer than {_PATIENCE:g} s") from None
        if done.returncode != 0:
            raise ContestantError(f"{contestant.name} {what} failed: {done.stderr.strip()[-_LAST_WORDS:]}")
        return done.stdout


def rate_in(printed: str) -> float:
    """Events per second, from what a publishing command printed."""
    for line in reversed(printed.splitlines()):
        if line.startswith('{"count"'):
            said = json.loads(line)
            return float(said["count"]) / float(said["seconds"])
    raise ContestantError("a publisher printed no result")


def times_in(text: str) -> dict[int, int]:
    """Event numbers and when they were seen, from lines of two numbers; other lines are none of ours."""
    found = (_TIME.fullmatch(line) for line in text.splitlines())
    return {int(each["number"]): int(each["clock"]) for each in found if each}
