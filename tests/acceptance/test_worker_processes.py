"""`spectral worker --processes`: several under one parent, which dies with them and not before."""

from __future__ import annotations

import os
import signal
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.acceptance.worker_process import Outbox, WorkerProcess, eventually, is_running, publish, write_app

COUNTS = """
import os

@platform.on("worlds.scan.started")
async def slow(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("running", in_process=os.getpid())
    await asyncio.sleep(0.05)
"""


def children_of(worker: WorkerProcess, count: int) -> list[int]:
    worker.wait_for("listening", times=count)
    return [line["pid"] for line in worker.logged("worker process started")]


def test_two_processes_share_the_work_and_stop_together(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, COUNTS)
    arguments = ("app:platform", "--processes", "2", "--concurrency", "2")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        children = children_of(worker, 2)
        publish(database, "worlds.scan.started", 60)
        for pid in children:
            worker.wait_for("running", in_process=pid)
        worker.stop()
        assert worker.end() == 0
    assert len(worker.logged("stopped")) == 2
    assert not any(is_running(pid) for pid in children)
    assert Outbox(database).count().keys() <= {("delivered", 1), ("pending", 0)}


def test_two_processes_drain_and_end(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, COUNTS)
    publish(database, "worlds.scan.started", 60)
    arguments = ("app:platform", "--processes", "2", "--drain")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    assert Outbox(database).count() == {("delivered", 1): 60}


def test_a_child_that_is_killed_is_started_again(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    with WorkerProcess(tmp_path, "app:platform", "--processes", "2", SPECTRAL_DATABASE_URL=database) as worker:
        first, _ = children_of(worker, 2)
        os.kill(first, signal.SIGKILL)
        died = worker.wait_for("worker process died")
        assert (died["level"], died["code"], died["restart_seconds"]) == ("error", -signal.SIGKILL, 1.0)
        *_, reborn = children_of(worker, 3)
        assert reborn != first
        worker.stop()
        assert worker.end() == 0


def test_children_do_not_outlive_a_parent_that_was_killed(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    with WorkerProcess(tmp_path, "app:platform", "--processes", "2", SPECTRAL_DATABASE_URL=database) as worker:
        children = children_of(worker, 2)
        worker.stop(signal.SIGKILL)
        eventually(lambda: not any(is_running(pid) for pid in children), "the children are gone")
    worker.wait_for("stopped", times=2)


def test_a_second_signal_is_passed_on(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def waits(event: EventEnvelope, context: DeliveryContext) -> None:
            context.logger.info("running")
            await asyncio.sleep(3600)
        """,
    )
    arguments = ("app:platform", "--processes", "2", "--grace", "3600")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        children_of(worker, 2)
        publish(database, "worlds.scan.started")
        worker.wait_for("running")
        worker.stop()
        worker.wait_for("stopping", times=2)
        worker.stop(signal.SIGINT)
        assert worker.end() == 0
    assert Outbox(database).count() == {("pending", 0): 1}


@pytest.mark.parametrize("app", ["app:nothing", "nowhere:platform"])
def test_what_cannot_start_once_is_not_tried_for_ever(database: str, tmp_path: Path, app: str) -> None:
    write_app(tmp_path)
    with WorkerProcess(tmp_path, app, "--processes", "2", SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 2
    assert worker.logged("worker process cannot start", level="critical")
    assert not worker.logged("worker process died")


def test_every_process_serves_its_health_on_a_port_of_its_own(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    arguments = ("app:platform", "--processes", "2", "--health-port", "0")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("health is served", times=2)
        ports = {line["port"] for line in worker.logged("health is served")}
        assert len(ports) == 2
        for port in ports:
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/live")
            assert connection.getresponse().status == 200
            connection.close()
        worker.stop()
        assert worker.end() == 0
