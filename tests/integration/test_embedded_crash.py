"""Every way to die: nothing is left running, nothing is left lying around, and the next start works."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest

from spectral.core.embedded import FAST_AND_UNSAFE, EmbeddedPostgres, EmbeddedPostgresError, ServerOptions
from spectral.core.embedded.account import Account

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

FAST = ServerOptions(settings=FAST_AND_UNSAFE)

LAUNCH = """
import json, os, signal, sys, time
from pathlib import Path
from spectral.core.embedded import FAST_AND_UNSAFE, EmbeddedPostgres, ServerOptions

directory = Path(sys.argv[1]) if len(sys.argv) > 1 else None
server = EmbeddedPostgres(options=ServerOptions(directory=directory, settings=FAST_AND_UNSAFE)).start()
facts = {"server": server.pid, "watchdog": server.watchdog_pid, "home": str(server.home), "dsn": server.dsn}

def tell(**more):
    print(json.dumps(facts | more), flush=True)
"""


class Launched(NamedTuple):
    process: subprocess.Popen[str]
    server: int
    watchdog: int
    home: Path
    dsn: str
    child: int

    def next_line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()


@contextlib.contextmanager
def launched(then: str, *arguments: str) -> Generator[Launched]:
    """Another Python that starts a server, tells about it, and goes on as `then` says."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCH + then, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            facts = json.loads(process.stdout.readline())
            yield Launched(
                process, facts["server"], facts["watchdog"], Path(facts["home"]), facts["dsn"], facts.get("child", 0)
            )
        finally:
            process.kill()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A place for a cluster that the server's user can reach when we are root, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory(prefix="spectral-open-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    """No such process, or one that has ended and whose parent has not looked yet."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def value_of(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def kept_in(directory: Path) -> ServerOptions:
    return ServerOptions(directory=directory, settings=FAST_AND_UNSAFE)


def test_a_launcher_that_is_killed_leaves_no_server_and_no_directory() -> None:
    with launched("tell(); sys.stdin.read()") as it:
        with psycopg.connect(it.dsn):  # an open session does not hold it up
            it.process.kill()
            assert eventually(lambda: is_gone(it.server))
        assert eventually(lambda: not it.home.exists())
        assert eventually(lambda: is_gone(it.watchdog))


def test_a_launcher_that_is_killed_while_initdb_works_leaves_nothing() -> None:
    script = """
import signal
from spectral.core.embedded import EmbeddedPostgres, leash

def tell_and_wait(self, seconds):
    print(order_log, flush=True)
    signal.pause()

def start(self, order, start=leash.Leash.start):
    global order_log
    order_log = order["log"]
    return start(self, order)

leash.Leash.start, leash.Leash.wait_for_exit = start, tell_and_wait
EmbeddedPostgres().start()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        home = Path(process.stdout.readline().strip()).parent
        assert home.name.startswith("spectral-pg-")
        process.kill()
        assert eventually(lambda: not home.exists())


def test_a_launcher_that_just_ends_stops_its_server() -> None:
    with launched("tell()") as it:
        assert it.process.wait(timeout=30) == 0
        assert is_gone(it.server)
        assert not it.home.exists()


def test_a_forked_child_neither_stops_the_server_nor_keeps_it() -> None:
    then = """
first = os.fork()
if first == 0:
    server.stop()
    sys.exit()  # runs what was registered for the exit, in the child
os.waitpid(first, 0)
second = os.fork()
if second == 0:
    signal.pause()
tell(child=second)
sys.stdin.read()
"""
    with launched(then) as it:
        assert value_of(it.dsn, "select 1") == 1
        it.process.kill()
        try:
            assert eventually(lambda: is_gone(it.server) and not it.home.exists())
            assert not is_gone(it.child)
        finally:
            os.kill(it.child, signal.SIGKILL)


def test_ctrl_c_is_answered_by_the_launcher_while_the_server_still_runs() -> None:
    then = """
try:
    tell()
    while True:
        time.sleep(0.1)  # not pause(): a signal that comes just before it would be slept through
except KeyboardInterrupt:
    import psycopg
    with psycopg.connect(server.dsn) as connection:
        print(connection.execute("select 'still here'").fetchone()[0], flush=True)
"""
    with launched(then) as it:
        os.killpg(it.process.pid, signal.SIGINT)  # what a terminal does
        assert it.next_line() == "still here"
        assert it.process.wait(timeout=30) == 0
        assert is_gone(it.server)
        assert not it.home.exists()


def test_kept_data_can_be_opened_right_after_its_launcher_was_killed(directory: Path) -> None:
    with launched("tell(); sys.stdin.read()", str(directory)) as it:
        with pytest.raises(EmbeddedPostgresError, match=f"in use by process {it.process.pid};"):
            EmbeddedPostgres(options=kept_in(directory)).start()
        execute(it.dsn, "create table kept as select 42 as answer")
        it.process.kill()
        it.process.wait()
        with EmbeddedPostgres(options=kept_in(directory)) as successor:  # waits for the watchdog, not for us
            assert is_gone(it.server)
            assert value_of(successor.dsn, "select answer from kept") == 42


def test_a_killed_server_recovers_at_the_next_start(directory: Path) -> None:
    launcher = EmbeddedPostgres(options=kept_in(directory)).start()
    execute(launcher.dsn, "create table kept as select 42 as answer")
    execute(launcher.dsn, "checkpoint")  # commits are asynchronous here
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.stop()
    assert (directory / "data" / "postmaster.pid").exists()
    with launcher:
        assert value_of(launcher.dsn, "select answer from kept") == 42


@pytest.fixture
def unrelated() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's user that has nothing to do with Postgres."""
    account = Account.for_server()
    with subprocess.Popen(["sleep", "300"], cwd="/", user=account.uid if account.switched else None) as process:
        yield process
        process.kill()


def test_after_a_power_cut_a_reused_process_number_is_no_obstacle(
    directory: Path, unrelated: subprocess.Popen[bytes]
) -> None:
    launcher = EmbeddedPostgres(options=kept_in(directory)).start()
    for pid in (launcher.pid, launcher.watchdog_pid):
        os.kill(pid, signal.SIGKILL)
    launcher.stop()
    pid_file = directory / "data" / "postmaster.pid"
    _, *rest = pid_file.read_text().splitlines(keepends=True)
    pid_file.write_text("".join([f"{unrelated.pid}\n", *rest]))
    assert list((directory / "run").iterdir()), "the socket's own lock file is stale as well"
    with launcher:
        assert value_of(launcher.dsn, "select 1") == 1
    assert unrelated.poll() is None


def test_a_killed_watchdog_takes_the_server_with_it() -> None:
    launcher = EmbeddedPostgres(options=FAST).start()
    home, pid = launcher.home, launcher.pid
    os.kill(launcher.watchdog_pid, signal.SIGKILL)
    assert eventually(lambda: is_gone(pid))
    launcher.stop()
    assert not home.exists()


def test_a_terminated_watchdog_stops_the_server_first(directory: Path) -> None:
    launcher = EmbeddedPostgres(options=kept_in(directory)).start()
    os.kill(launcher.watchdog_pid, signal.SIGTERM)
    launcher.stop()
    assert not (directory / "data" / "postmaster.pid").exists()


def test_an_interrupt_in_the_middle_of_a_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    homes: list[Path] = []

    def interrupt(_self: object, home: object, *_: object) -> bool:
        homes.append(getattr(home, "path", Path()))
        raise KeyboardInterrupt

    monkeypatch.setattr(EmbeddedPostgres, "_becomes_ready", interrupt)
    launcher = EmbeddedPostgres(options=FAST)
    with pytest.raises(KeyboardInterrupt):
        launcher.start()
    assert len(homes) == 1
    assert not homes[0].exists()
    assert "not running" in repr(launcher)


def test_a_server_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> bool:
        return False

    monkeypatch.setattr("spectral.core.embedded.server.is_ready", never)
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)not ready within 0.2 s.*start_timeout.*log ends with"):
        EmbeddedPostgres(options=ServerOptions(settings=FAST_AND_UNSAFE, start_timeout=0.2)).start()
