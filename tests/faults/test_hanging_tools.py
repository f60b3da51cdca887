"""Whoever watches a worker may hang, refuse or raise: every event is delivered all the same, and the worker ends."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from spectral.core.events import DatabaseSettings, WorkerSettings
from spectral.core.events.bootstrap import worker
from spectral.core.events.infrastructure.observability.outlet import CAPACITY
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.probe import Act, Failure, Note, Stopped
from tests.faults.crew import PATIENCE, ROOT, eventually
from tests.faults.handlers import PLAIN, External, consumers
from tests.faults.plan import Plan
from tests.faults.stage import Stage

GRACE: Final = 10
SPECTRAL: Final = str(Path(sys.executable).with_name("spectral"))
APP: Final = """
import os
from tests.faults.handlers import External, consumers
from tests.faults.plan import Plan

dsn = os.environ["SPECTRAL_DATABASE_URL"]
(platform,) = consumers(Plan(dsn=dsn, name="worker", max_retries=2), External(dsn))
"""
OWN_LOG: Final = """
import sys
import structlog
from spectral.core.events import DeliveryContext, EventEnvelope

structlog.configure(
    processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(sys.stderr)
)

@platform.on("worlds.scan.logged")
async def logs(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("begun")
    try:
        raise ValueError(event.event_type)
    except ValueError:
        context.logger.exception("failed")
"""
PAGE: Final = 4096


@dataclass(frozen=True)
class Tools:
    """What a worker is watched by: variables, and where its log goes."""

    variables: dict[str, str]
    log: int


@contextmanager
def no_tools() -> Iterator[Tools]:
    """Nobody listens, and the log goes nowhere."""
    with Path(os.devnull).open("wb") as nowhere:
        yield Tools({}, nowhere.fileno())


@contextmanager
def hanging_tools() -> Iterator[Tools]:
    """A collector and a Sentry that take connections and never answer, and a log that nobody reads."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PAGE)
    os.write(writing, bytes(PAGE))  # full from the beginning: whoever writes waits for ever
    with socket.create_server(("127.0.0.1", 0)) as mute:
        try:
            yield Tools(exporting_to(mute.getsockname()[1]), writing)
        finally:
            os.close(reading)
            os.close(writing)


@contextmanager
def absent_tools() -> Iterator[Tools]:
    """Nobody takes the connections, and whoever writes to the log gets an error."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield Tools(exporting_to(free_port()), writing)
    finally:
        os.close(writing)


def exporting_to(port: int) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "SENTRY_DSN": f"http://key@127.0.0.1:{port}/1",
    }


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def working(
    stage: Stage, directory: Path, tools: Tools, *options: str, app: str = APP
) -> Iterator[subprocess.Popen[bytes]]:
    """A `spectral worker` on the handlers of the fault tests, told to stop in the end."""
    (directory / "app.py").write_text(app)
    process = subprocess.Popen(
        [SPECTRAL, "worker", "app:platform", "--grace", str(GRACE), *options],
        cwd=directory,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "SPECTRAL_GENERATION": "1",
            "SPECTRAL_DATABASE_URL": stage.dsn,
            **tools.variables,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=tools.log,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(GRACE + PATIENCE) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def scrapes_that_hang(port: int) -> Iterator[None]:
    """A Prometheus that asks and never reads, and one that never finishes asking."""
    with ExitStack() as open_ones:

        def connected() -> bool:
            try:
                first = socket.create_connection(("127.0.0.1", port))
            except ConnectionRefusedError:
                return False
            open_ones.enter_context(first).sendall(b"GET /metr")
            return True

        eventually(connected, "health is served")
        for request in (b"GET /metrics HTTP/1.1\r\n\r\n", b"GET /metrics HTT") * 10:
            open_ones.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(request)
        yield


def cannot_send(tool: str, port: int) -> bool:
    """Whether Prometheus is told that some of it failed."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        lines = answer.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f'spectral_probe_failed_total{{tool="{tool}"}} ')]
    return float(line.rsplit(" ", 1)[1]) > 0


@pytest.mark.parametrize("tools", [hanging_tools, absent_tools])
def test_a_worker_delivers_whatever_its_tools_do(
    stage: Stage, tmp_path: Path, tools: Callable[[], AbstractContextManager[Tools]]
) -> None:
    port = free_port()
    with tools() as watching, working(stage, tmp_path, watching, "--health-port", str(port)):
        with scrapes_that_hang(port):
            stage.publish(200)
            stage.publish(50, PLAIN)
            stage.publish(20, payload={"do": "fail", "times": 1})
            stage.publish(20, payload={"do": "refuse"})  # which Sentry is to be told of
            stage.assert_clean(delivered=270, dead_lettered=20)
        for tool in ("traces", "otel_metrics"):
            eventually(partial(cannot_send, tool, port), f"what {tool} cannot send is counted")
        stopped = time.monotonic()
    # Nothing runs any more, so all that could keep it are its tools; they get three seconds.
    assert time.monotonic() - stopped < GRACE


def test_a_project_s_own_log_that_nobody_reads_stops_neither_handlers_nor_health(stage: Stage, tmp_path: Path) -> None:
    port = free_port()
    options = ("--health-port", str(port))
    with hanging_tools() as watching, working(stage, tmp_path, watching, *options, app=APP + OWN_LOG):
        stage.publish(20, "worlds.scan.logged")
        stage.publish(20)
        eventually(lambda: stage.statuses() == {"delivered": 40}, "all are delivered")
        with urlopen(f"http://127.0.0.1:{port}/ready", timeout=PATIENCE) as answer:
            assert answer.status == HTTPStatus.OK
        stopped = time.monotonic()
    assert time.monotonic() - stopped < GRACE  # as above


def test_tools_that_hang_do_not_slow_a_worker_down(stage: Stage, tmp_path: Path) -> None:
    """A coarse look: who waits for a tool is many times slower. `make bench-observability` measures it."""
    busy: dict[str, float] = {}
    rounds = 3 * (("none", no_tools), ("hanging", hanging_tools))
    for name, tools in rounds:
        since = stage.one("select clock_timestamp()")
        stage.publish(1_000)
        with tools() as watching, working(stage, tmp_path, watching):
            eventually(lambda: "pending" not in stage.statuses(), "all are claimed")
            stage.settle()
        seconds = stage.one(
            "select extract(epoch from max(delivered_at) - min(delivered_at))::float8 from core.outbox"
            " where delivered_at > %s",
            since,
        )
        # The best of three, and four times: a machine that has more to do in one second than in another is no news.
        busy[name] = min(seconds, busy.get(name, seconds))
    stage.assert_clean(delivered=6_000)
    assert busy["hanging"] < 4 * busy["none"]


class Raises:
    """A tool that cannot do it; also a tracer."""

    def cares_for(self, kind: type[Note]) -> bool:
        return bool(kind)

    def tell(self, note: Note, at: float | None = None) -> None:
        raise RuntimeError(f"no {note} at {at}")

    def start(self, act: Act) -> None:
        raise RuntimeError(f"no span of {act} either")

    def send(self, spans: Sequence[object]) -> None:
        raise NotImplementedError(spans)  # there are no lean ones


class Blocks:
    """A tool that never comes back, until it is let go; also a tracer, whose spans never end."""

    traceparent = None
    context = None
    is_recording = True

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def cares_for(self, kind: type[Note]) -> bool:
        return bool(kind)

    def tell(self, note: Note, at: float | None = None) -> None:
        self.entered.set()
        assert self.let_go.wait(), f"{note} at {at}"

    def start(self, act: Act) -> Blocks:
        del act
        return self

    def send(self, spans: Sequence[object]) -> None:
        raise NotImplementedError(spans)  # there are no lean ones

    def leave(self) -> None:
        raise RuntimeError("not even that")

    def end(self, failure: Failure | None) -> None:
        assert self.let_go.wait(), failure


@pytest.fixture
def blocking() -> Iterator[Blocks]:
    """Its threads are not left behind."""
    tool = Blocks()
    yield tool
    tool.let_go.set()


async def drain(stage: Stage, watch: Watch) -> None:
    """A worker in this process, with this watch, until nothing is due."""
    plan = Plan(dsn=stage.dsn, name="watched")
    external = External(stage.dsn)
    settings = WorkerSettings(generation=1, name=plan.name)
    database = DatabaseSettings(dsn=stage.dsn)
    await worker(*consumers(plan, external), settings=settings, database=database, probe=watch).run("drained")
    await external.close()


async def test_what_tools_raise_is_counted_and_nothing_else(stage: Stage) -> None:
    await asyncio.to_thread(stage.publish, 30)
    await asyncio.to_thread(stage.publish, 10, PLAIN)
    watch = Watch({"slow": Raises()}, {"quick": Raises()}, Raises())
    await drain(stage, watch)
    watch.flush(PATIENCE)
    await asyncio.to_thread(stage.assert_clean, 40)
    troubles = watch.troubles()
    assert troubles["traces"] == (0, 40)  # a span for each run of a handler was refused
    assert troubles["slow"] == troubles["quick"]
    assert troubles["slow"][1] > 2 * 40  # a handler that ran and an event that is settled are two notes


async def test_what_a_tool_that_blocks_is_not_told_is_counted(stage: Stage, blocking: Blocks) -> None:
    await asyncio.to_thread(stage.publish, 30)
    await asyncio.to_thread(stage.publish, 10, PLAIN)
    watch = Watch({"slow": blocking}, tracer=blocking)
    await drain(stage, watch)
    await asyncio.to_thread(stage.assert_clean, 40)
    assert await asyncio.to_thread(blocking.entered.wait, PATIENCE)
    assert watch.troubles() == {"slow": (0, 0), "traces": (0, 40)}
    for _ in range(CAPACITY + 100):
        watch.tell(Stopped())
    # One is being told, and so many wait that there was no room for these, and for those of the drain.
    assert watch.troubles()["slow"][0] > 100
