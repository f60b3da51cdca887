"""The parts of the worker process, one by one: finding consumers, log lines, health answers, signals, arguments."""

from __future__ import annotations

import gc
import io
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer.main

from spectral.core.events import ConfigurationError
from spectral.core.events.delivery.health import Health, State
from spectral.core.events.infrastructure.observability import standard
from spectral.core.events.infrastructure.observability.log_writer import EventLogger, process_logger, say_later
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral.core.events.infrastructure.observability.standard import publishers_watch
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.probe import Note, Publish, Published, Stopped
from spectral.core.events.settings import Identity
from spectral_ops.cli.app import app as command_line
from spectral_ops.cli.worker import _arguments
from spectral_workers.health import Address, health_endpoint
from spectral_workers.locate import locate_consumers
from spectral_workers.logs import configure_logs
from spectral_workers.measured import troubles
from spectral_workers.process import _flush, spare_the_collector
from spectral_workers.stopping import signals_to_hear

IDLE = Health(
    state=State.IDLE,
    worker="me",
    generation=1,
    contexts=("platform",),
    listening=True,
    ear_down_seconds=0.0,
    seen_alive=True,
    held=0,
    running=0,
    loop_blocked_seconds=0.0,
)


def written(stream: io.StringIO) -> str:
    """What the log has written, once it has."""
    assert flush_all(10)
    return stream.getvalue()


WHO = Identity(generation=7, service="spectral-worker", environment="test")


# finding consumers


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory to start in, whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_consumers_are_found_in_the_current_directory_each_once(project: Path) -> None:
    (project / "located").mkdir()
    (project / "located" / "events.py").write_text(
        "from spectral.core.events import Consumer\n"
        "class Holder:\n    inside = Consumer('inside')\n"
        "one = Consumer('one')\ntwo = Consumer('two')\nboth = (two, one)\n"
    )
    found = locate_consumers(["located.events:one", "located.events:both", "located.events:Holder.inside"])
    assert [consumer.context for consumer in found] == ["one", "two", "inside"]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "located_a.b:one", r"no module 'located_a\.b'.*install its package$"),
        ("", "located_a:one", r"located_a has no 'one'; define one there: .* name it located_a:consumer$"),
        ("x = []", "located_a:x", r"located_a:x is not a Consumer.* type empty list"),
        ("x = [1]", "located_a:x", r"located_a:x is not a Consumer.* type list"),
        ("import not_installed", "located_a:x", r"cannot be imported: ModuleNotFoundError: .*not_installed"),
        ("x = (", "located_a:x", r"cannot be imported: SyntaxError"),
        ("", "located_a", r"names no consumer: write module, colon and variable"),
        ("", "located_a:", r"names no consumer"),
        ("", "../located_a:x", r"names no consumer"),
    ],
)
def test_a_name_that_leads_nowhere_says_what_to_write(project: Path, text: str, name: str, message: str) -> None:
    (project / "located_a.py").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        locate_consumers([name])


def test_a_handler_that_makes_no_sense_is_told_in_its_own_words(project: Path) -> None:
    (project / "located_b.py").write_text("from spectral.core.events import Consumer\nx = Consumer('Not A Name')")
    with pytest.raises(ConfigurationError, match=r"^'Not A Name' is no context"):
        locate_consumers(["located_b:x"])


# log lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
def test_without_a_configured_log_the_process_keeps_stdout_for_its_data(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spectral")
    EventLogger("spectral.worker", dict).bind(worker="w").info("said aside", n=1)
    say_later(process_logger("spectral.worker", WHO), "error", "left by force", reason="none")
    assert flush_all(10)
    assert [record.getMessage().split(" ")[:2] for record in caplog.records] == [["said", "aside"], ["left", "by"]]
    assert capsys.readouterr().out == ""


def divide() -> None:
    hidden = f"canary {1 + 1}"  # a richer traceback would show its value
    raise ZeroDivisionError(len(hidden))


@pytest.mark.usefixtures("unconfigured")
def test_a_log_line_is_json_with_the_time_first(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(WHO, {})
    log = structlog.get_logger("x")
    log.debug("not shown")
    try:
        divide()
    except ZeroDivisionError:
        log.exception("failed", text="a\nb\x1b", value=object())
    (line,) = written(stream).splitlines()
    document = json.loads(line)
    assert list(document)[:5] == ["timestamp", "level", "event", "service", "environment"]
    assert (document["level"], document["generation"], document["text"]) == ("error", 7, "a\nb\x1b")
    assert "ZeroDivisionError: 8" in document["exception"]
    assert "canary 2" not in line


@pytest.mark.usefixtures("unconfigured")
def test_a_terminal_gets_readable_lines_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(WHO, {})
    log = structlog.get_logger("x")
    log.info("said\x9b", text="\x1b]0;title\x07", n=3)
    try:
        divide()
    except ZeroDivisionError:
        log.exception("failed")
    shown = written(stream)
    assert "said\\x9b" in shown
    assert "\\x1b]0;title\\x07" in shown
    assert "\x1b]0" not in shown
    assert "canary 2" not in shown
    assert not shown.startswith("{")


@pytest.mark.usefixtures("unconfigured")
def test_who_configured_structlog_before_is_left_alone() -> None:
    structlog.configure(processors=[])
    configure_logs(WHO, {})
    assert structlog.get_config()["processors"] == []


@pytest.mark.parametrize(("threshold", "kept"), [(700, 50_000), (60_000, 60_000), (0, 0)])
def test_garbage_is_looked_for_among_what_the_work_makes(threshold: int, kept: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(threshold, 7, 8)
        spare_the_collector()
        assert gc.get_threshold() == (kept, 7, 8)
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_whatever_watches_and_hangs_does_not_keep_the_process() -> None:
    told: list[Note] = []
    begun, released = threading.Event(), threading.Event()

    class Hanging:
        def cares_for(self, _kind: type[Note]) -> bool:
            return True

        def tell(self, _note: Note, _at: float | None = None) -> None:
            begun.set()
            released.wait()

    class Quick:
        def cares_for(self, _kind: type[Note]) -> bool:
            return True

        def tell(self, note: Note, _at: float | None = None) -> None:
            told.append(note)

    watch = Watch({"hanging": Hanging(), "worse": Hanging(), "logs": Quick()})
    watch.tell(Stopped())
    assert begun.wait(60)
    _flush(watch)
    assert not released.is_set()
    assert told == [Stopped()]
    released.set()
    watch.flush(60)


def test_what_handlers_have_published_is_told_before_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Note] = []

    class Told:
        def cares_for(self, kind: type[Note]) -> bool:
            return kind is Published

        def tell(self, note: Note, _at: float | None = None) -> None:
            told.append(note)

    identity = Identity(generation=1)
    monkeypatch.setattr(standard, "_of_publishers", {identity: Watch({"told": Told()})})
    publishers_watch(identity).tell(Published(Publish((), 1), 0.1, None, None))
    _flush(Watch({}))
    assert len(told) == 1


def test_the_troubles_of_a_process_are_those_of_its_publishers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def cares_for(self, _kind: type[Note]) -> bool:
            return True

        def tell(self, _note: Note, _at: float | None = None) -> None:
            raise OSError("no room")

    identity = Identity(generation=1)
    monkeypatch.setattr(standard, "_of_publishers", {identity: Watch({"broken": Broken()})})
    watch = Watch({"broken": Broken()})
    for each in (watch, publishers_watch(identity)):
        each.tell(Stopped())
        each.flush(60)
    assert troubles(watch)["broken"] == (0, 2)


# health answers


def fetch(address: Address, path: str, method: str = "GET") -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection(address.host, address.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


@pytest.mark.parametrize("state", State)
def test_each_state_has_its_answers(state: State) -> None:
    with health_endpoint(Address("127.0.0.1", 0), lambda: replace(IDLE, state=state)) as served:
        codes = {path: fetch(served, path)[0].status for path in ("/live", "/ready", "/health")}
        document = json.loads(fetch(served, "/health?verbose")[1])
    ready = 200 if state in {State.IDLE, State.BUSY, State.DEGRADED} else 503
    live = 503 if state is State.DEAD else 200
    assert codes == {"/live": live, "/ready": ready, "/health": live}
    assert document["state"] == state


def test_head_is_get_without_the_body_and_others_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with health_endpoint(Address("127.0.0.1", 0), lambda: IDLE) as served:
        head, body = fetch(served, "/live", "HEAD")
        assert (head.status, body) == (200, b"")
        assert head.headers["Server"] == "spectral"
        assert {fetch(served, path)[0].status for path in ("/", "/livez", "/live/", "/../etc/passwd")} == {404}
        assert fetch(served, "/live", "POST")[0].status == 501
    assert capfd.readouterr() == ("", "")


def test_a_client_that_says_nothing_keeps_nobody_waiting() -> None:
    with (
        health_endpoint(Address("127.0.0.1", 0), lambda: IDLE) as served,
        socket.create_connection(served),
        socket.create_connection(served) as rude,
    ):
        rude.sendall(b"\x00\xff\r\n\r\n")
        assert fetch(served, "/live")[0].status == 200


def test_an_address_that_is_not_ours_says_what_to_choose() -> None:
    with (
        pytest.raises(ConfigurationError, match=r"--health-port and --health-host$"),
        health_endpoint(Address("192.0.2.1", 0), lambda: IDLE),
    ):
        pass


# signals


def test_a_stop_that_nobody_can_obey_ends_with_the_patience() -> None:
    script = """
import logging, signal, sys, time
from spectral.core.events.settings import Identity
from spectral_workers.stopping import StopSignals
logging.basicConfig(stream=sys.stdout)
signals = StopSignals(0.2, Identity(generation=1))
signals.tell(lambda: print("told", file=sys.stderr))
signal.raise_signal(signal.SIGTERM)
time.sleep(3600)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "told\n")
    assert "left by force" in done.stdout


def test_an_event_loop_that_takes_the_place_of_the_signals_does_not_hide_them() -> None:
    script = """
import asyncio, os, signal, sys
from spectral.core.events.settings import Identity
from spectral_workers.stopping import StopSignals
signals = StopSignals(3600, Identity(generation=1))
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    told = asyncio.Event()
    signals.tell(lambda: loop.call_soon_threadsafe(told.set))
    os.kill(os.getpid(), signal.SIGTERM)
    await told.wait()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_is_heard_when_nobody_reads_the_log_any_more() -> None:
    script = """
import os, signal, sys, time
from spectral.core.events.settings import Identity
from spectral_workers.logs import configure_logs
from spectral_workers.stopping import StopSignals
reader, writer = os.pipe()
os.dup2(writer, 2)
os.close(reader)
os.close(writer)
configure_logs(Identity(generation=1), {})
signals = StopSignals(0.2, Identity(generation=1))
signals.tell(lambda: os.write(1, b"told "))
for _ in "12":
    signal.raise_signal(signal.SIGTERM)
time.sleep(3600)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "told told ")


def test_every_signal_is_heard_though_a_project_s_own_log_takes_no_line() -> None:
    script = """
import fcntl, os, signal, sys, time
import structlog
from spectral.core.events.settings import Identity
from spectral_workers import stopping
reader, writer = os.pipe()
os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)))
os.dup2(writer, 2)
structlog.configure(processors=[structlog.processors.JSONRenderer()],
                    logger_factory=structlog.PrintLoggerFactory(sys.stderr))
stopping._INSISTED = 3600  # only the third signal ends it
def stop():
    os.write(1, b"told ")
    os.kill(os.getpid(), signal.SIGTERM)
stopping.StopSignals(3600, Identity(generation=1)).tell(stop)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(3600)
"""
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "told told ")


# the parent of several


def supervised(
    child: str, *, ends_by_itself: bool, directory: Path, has_worked_after: float = 30.0
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the log of a parent with one child."""
    script = f"""
import os, signal, sys
from spectral.core.events.settings import Identity
from spectral_workers.logs import configure_logs
from spectral_workers import supervise
from spectral_workers.supervise import Supervisor
supervise._HAS_WORKED_AFTER = {has_worked_after}
configure_logs(Identity(generation=1), {{}})
command = [sys.executable, "-c", {child!r}]
sys.exit(Supervisor([command], patience=0.1, ends_by_itself={ends_by_itself}).run())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False, cwd=directory
    )
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def test_a_child_that_does_not_stop_is_killed_in_the_end(tmp_path: Path) -> None:
    child = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(3600)
"""
    code, log = supervised(child, ends_by_itself=False, directory=tmp_path)
    assert code == 1
    assert [line["event"] for line in log] == [
        "worker process started",
        "worker process killed",
        "worker process ended",
    ]


def test_a_child_that_ends_by_itself_is_started_again_until_it_ends_well(tmp_path: Path) -> None:
    child = """
import os, sys
os.mkdir("second" if os.path.exists("first") else "first")
sys.exit(0 if os.path.exists("second") else 1)
"""
    code, log = supervised(child, ends_by_itself=True, directory=tmp_path)
    assert code == 0
    assert [line["event"] for line in log] == [
        "worker process started",
        "worker process died",
        "worker process started",
        "worker process ended",
    ]


def test_a_worker_that_was_to_run_for_ever_is_started_again_however_it_ended(tmp_path: Path) -> None:
    child = """
import os, signal, sys, time
if os.path.exists("first"):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(3600)
os.mkdir("first")
"""
    code, log = supervised(child, ends_by_itself=False, directory=tmp_path)
    assert code == 0  # the second ended as it was told to, if by default
    assert [line["code"] for line in log if "code" in line] == [0, -signal.SIGTERM]


def test_a_child_that_cannot_start_any_more_is_tried_again_if_it_has_worked(tmp_path: Path) -> None:
    child = """
import os, signal, sys, time
if not os.path.exists("first"):
    os.mkdir("first")
    time.sleep(0.5)
    sys.exit(1)
if not os.path.exists("second"):
    os.mkdir("second")
    sys.exit(2)
os.kill(os.getppid(), signal.SIGTERM)
time.sleep(3600)
"""
    code, log = supervised(child, ends_by_itself=False, directory=tmp_path, has_worked_after=0.5)
    assert code == 0
    assert [(line["event"], line["code"]) for line in log if "code" in line] == [
        ("worker process died", 1),
        ("worker process died", 2),
        ("worker process ended", -signal.SIGTERM),
    ]


# the command of a child


def parsed(arguments: list[str]) -> typer.Context:
    group: Any = typer.main.get_command(command_line)
    context: typer.Context = group.commands["worker"].make_context("worker", list(arguments))
    return context


def test_a_child_gets_the_same_arguments_but_for_its_number() -> None:
    given = ["--lanes", "3", "--class", "hot", "--class", "cold", "--grace", "1.5", "--drain", "--processes", "4"]
    parent = parsed([*given, "--health-port", "0", "a:b", "c:d"])
    child = parsed(_arguments(parent, ("a:b", "c:d"), {"processes": 1, "health_port": 0}))
    assert {**child.params, "processes": 4} == parent.params
    assert child.params["processes"] == 1


def test_help_is_shown_without_loading_what_runs() -> None:
    script = """
import sys
from spectral_ops.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, sorted({"psycopg", "structlog", "asyncio", "rich"} & sys.modules.keys()))
"""
    arguments = [sys.executable, "-c", script, "worker", "--help"]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, env={}).stdout
    assert "Example: spectral worker" in shown
    assert shown.splitlines()[-1] == "0 []"


def test_a_worker_under_nohup_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert signal.SIGHUP in signals_to_hear()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signals_to_hear() == [signal.SIGTERM, signal.SIGINT]
    finally:
        signal.signal(signal.SIGHUP, before)
