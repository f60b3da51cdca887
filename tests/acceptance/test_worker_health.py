"""What probes see of a worker, over HTTP, from its start to its end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg

from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope, WorkerSettings, WorkerTimes
from spectral.core.events.bootstrap import worker
from spectral_workers.health import Address, health_endpoint
from tests.acceptance.worker_process import WorkerProcess, eventually, publish, write_app


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def state(port: int) -> str:
    status, document = ask(port, "/health")
    found: str = document["state"]
    assert status == 200
    return found


def served_port(process: WorkerProcess) -> int:
    port: int = process.wait_for("health is served")["port"]
    return port


def test_starting_while_the_database_is_not_there(tmp_path: Path) -> None:
    write_app(tmp_path)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dsn = f"postgresql://127.0.0.1:{closed.getsockname()[1]}/app"
        with WorkerProcess(tmp_path, "app:platform", "--health-port", "0", SPECTRAL_DATABASE_URL=dsn) as process:
            port = served_port(process)
            process.wait_for("database lost")
            assert state(port) == "starting"
            assert ask(port, "/ready") == (503, {"state": "starting"})
            assert ask(port, "/live") == (200, {"state": "starting"})


def test_the_metrics_of_a_worker_are_on_the_same_port(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    publish(database, "worlds.scan.completed", 3)
    with WorkerProcess(tmp_path, "app:platform", "--health-port", "0", SPECTRAL_DATABASE_URL=database) as process:
        port = served_port(process)
        process.wait_for("handled", times=3)
        connection = HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        scraped = connection.getresponse().read().decode()
        connection.close()
        process.stop()
        assert process.end() == 0
    assert 'spectral_outcomes_total{context="platform",outcome="delivered"} 3.0' in scraped
    assert 'spectral_worker_state{state="idle"} 1.0' in scraped
    assert 'spectral_probe_failed_total{tool="logs"} 0.0' in scraped


def test_idle_then_busy_then_draining(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def waits(event: EventEnvelope, context: DeliveryContext) -> None:
            context.logger.info("running")
            await asyncio.sleep(3600)
        """,
    )
    with WorkerProcess(tmp_path, "app:platform", "--health-port", "0", SPECTRAL_DATABASE_URL=database) as process:
        port = served_port(process)
        process.wait_for("listening")
        eventually(lambda: state(port) == "idle", "idle")
        assert ask(port, "/ready")[0] == ask(port, "/live")[0] == 200

        publish(database, "worlds.scan.started")
        process.wait_for("running")
        status, document = ask(port, "/health")
        assert (status, document["state"], document["held"], document["running"]) == (200, "busy", 1, 1)
        assert (document["generation"], document["contexts"]) == (1, ["platform"])
        assert ask(port, "/ready")[0] == 200

        process.stop()
        process.wait_for("stopping")
        assert ask(port, "/ready") == (503, {"state": "draining"})
        assert ask(port, "/live") == (200, {"state": "draining"})
        process.stop()
        assert process.end() == 0


def test_health_is_answered_while_a_handler_blocks_the_event_loop(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def blocks(event: EventEnvelope, context: DeliveryContext) -> None:
            context.logger.info("running")
            time.sleep(3600)
        """,
    )
    publish(database, "worlds.scan.started")
    with WorkerProcess(tmp_path, "app:platform", "--health-port", "0", SPECTRAL_DATABASE_URL=database) as process:
        port = served_port(process)
        process.wait_for("running")
        eventually(lambda: ask(port, "/health")[1]["loop_blocked_seconds"] > 1, "the loop is seen to be blocked")
        assert state(port) == "busy"
        assert ask(port, "/live")[0] == 200


def test_a_port_that_is_taken_is_2_and_says_which(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ("app:platform", "--health-port", port)
        with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as process:
            assert process.end() == 2
    assert f"port {port} (Address already in use); choose others with --health-port" in process.text


async def test_degraded_while_the_ear_is_lost_again_and_again(database: str) -> None:
    """The whole worker, with short times, in this process; its ear may come, but never stay."""
    consumer = Consumer("platform")
    handled = asyncio.Event()

    @consumer.on("worlds.scan.completed")
    async def quick(_event: EventEnvelope) -> None:
        handled.set()

    times = WorkerTimes(
        heartbeat=timedelta(milliseconds=50),
        reconnect=timedelta(seconds=1),
        reconnect_cap=timedelta(seconds=1),
        degraded_after=timedelta(milliseconds=100),
        poll_deaf=timedelta(milliseconds=100),
    )
    settings = WorkerSettings(generation=1, times=times)
    listener = worker(consumer, settings=settings, database=DatabaseSettings(dsn=database))
    async with listener:
        with health_endpoint(Address("127.0.0.1", 0), listener.health) as served:
            await listener.started()
            await asyncio.to_thread(eventually, lambda: state(served.port) == "idle", "idle")
            with ears_torn_off(database):
                await asyncio.to_thread(eventually, lambda: state(served.port) == "degraded", "degraded")
                assert (await asyncio.to_thread(ask, served.port, "/ready"))[0] == 200
                await asyncio.to_thread(publish, database, "worlds.scan.completed")
                async with asyncio.timeout(30):
                    await handled.wait()
            await asyncio.to_thread(eventually, lambda: state(served.port) == "idle", "idle again")
    assert listener.health().state == "stopped"


@contextmanager
def ears_torn_off(dsn: str) -> Iterator[None]:
    """Terminates every connection that listens as soon as it shows up."""
    done = threading.Event()

    def tear() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not done.wait(0.02):
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name like 'spectral ear%' and datname = current_database()"
                )

    thread = threading.Thread(target=tear)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
