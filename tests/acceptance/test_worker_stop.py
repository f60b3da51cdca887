"""Telling `spectral worker` to stop: with real signals, under load, against handlers that do not want to."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of
from tests.acceptance.worker_process import Outbox, WorkerProcess, publish, write_app

NEVER_RETURNS = """
@platform.on("worlds.scan.started")
async def never(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("running")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            context.logger.info("ignored its cancellation")
"""
BLOCKS = """
@platform.on("worlds.scan.started")
async def blocks(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("running")
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_idle_worker_stops_at_once(database: str, tmp_path: Path, number: signal.Signals) -> None:
    write_app(tmp_path)
    with WorkerProcess(tmp_path, SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("listening")
        worker.stop(number)
        assert worker.end() == 0
    worker.wait_for("stopped")


def test_under_load_what_runs_is_finished_and_the_rest_given_back_uncharged(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def plain(event: EventEnvelope, context: DeliveryContext) -> None:
            context.logger.info("running")
            await asyncio.sleep(0.3)

        @platform.on("worlds.scan.failed")
        async def in_a_transaction(event: EventEnvelope, context: DeliveryContext, tx: Transaction) -> None:
            context.logger.info("running")
            await tx.execute("select pg_sleep(0.3)")
        """,
    )
    publish(database, "worlds.scan.started", 200)
    publish(database, "worlds.scan.failed", 200)
    arguments = ("app:platform", "--concurrency", "5", "--grace", "20")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("running", times=12)
        worker.stop()
        told_at = time.monotonic()
        assert worker.end() == 0
        assert time.monotonic() - told_at < 20
    counted = Outbox(database).count()
    assert counted.keys() == {("delivered", 1), ("pending", 0)}
    assert sum(counted.values()) == 400
    assert counted["delivered", 1] == len(worker.logged("running"))


def test_when_the_grace_is_over_what_still_runs_is_given_back(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def slow(event: EventEnvelope, context: DeliveryContext, tx: Transaction) -> None:
            context.logger.info("running")
            await asyncio.sleep(3600)
        """,
    )
    publish(database, "worlds.scan.started", 3)
    with WorkerProcess(tmp_path, "app:platform", "--grace", "0.2", SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("running")
        worker.stop()
        assert worker.end() == 0
    assert Outbox(database).count() == {("pending", 0): 3}


def test_a_second_signal_forces_a_handler_that_never_returns(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, NEVER_RETURNS)
    publish(database, "worlds.scan.started")
    arguments = ("app:platform", "--grace", "3600")
    with WorkerProcess(tmp_path, *arguments, SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("running")
        worker.stop()
        worker.wait_for("stopping")
        worker.stop()
        assert worker.end() == 0
    assert worker.logged("ignored its cancellation")
    assert Outbox(database).count() == {("pending", 0): 1}


def test_a_handler_that_left_a_thread_behind_does_not_keep_the_process(database: str, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        @platform.on("worlds.scan.started")
        async def threaded(event: EventEnvelope) -> None:
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
        """,
    )
    publish(database, "worlds.scan.started")
    with WorkerProcess(tmp_path, "app:platform", "--drain", SPECTRAL_DATABASE_URL=database) as worker:
        assert worker.end() == 0
    assert Outbox(database).count() == {("delivered", 1): 1}


def test_a_blocked_event_loop_cannot_keep_the_signals_out(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, BLOCKS)
    publish(database, "worlds.scan.started")
    with WorkerProcess(tmp_path, "app:platform", "--grace", "3600", SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("running")
        for times in (1, 2):
            worker.stop()
            worker.wait_for("told to stop", times=times)
        assert worker.end() == 0
    assert worker.logged("left by force", level="error")


def test_a_third_signal_ends_the_process_at_once(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, BLOCKS)
    publish(database, "worlds.scan.started")
    with WorkerProcess(tmp_path, "app:platform", "--grace", "3600", SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("running")
        for times in (1, 2):
            worker.stop()
            worker.wait_for("told to stop", times=times)
        worker.stop()
        assert worker.end() == 0
    assert not worker.logged("left by force")


def test_a_signal_while_the_handlers_are_imported_ends_the_process_at_once(tmp_path: Path) -> None:
    write_app(tmp_path, 'import sys\nprint(\'{"event": "importing"}\', file=sys.stderr)\ntime.sleep(3600)\n')
    with WorkerProcess(tmp_path, SPECTRAL_DATABASE_URL="postgresql://nowhere") as worker:
        worker.wait_for("importing")
        worker.stop()
        assert worker.end() == 0


def test_the_database_may_be_gone_when_the_worker_is_stopped(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    write_app(tmp_path, NEVER_RETURNS)
    publish(database, "worlds.scan.started")
    with WorkerProcess(tmp_path, "app:platform", "--grace", "0.5", SPECTRAL_DATABASE_URL=database) as worker:
        worker.wait_for("running")
        with closed_to_everybody(postgres.dsn, database_of(database)):
            worker.wait_for("ear lost")
            worker.stop()
            assert worker.end() == 0
    assert Outbox(database).count() == {("in_flight", 1): 1}  # nobody could be told; the reaper will find it


@contextmanager
def closed_to_everybody(maintenance_dsn: str, name: str) -> Iterator[None]:
    """For the worker the same as a server that is down."""
    with psycopg.connect(maintenance_dsn, autocommit=True) as connection:
        connection.execute(f'alter database "{name}" with allow_connections false'.encode())
        try:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()",
                [name],
            )
            yield
        finally:
            connection.execute(f'alter database "{name}" with allow_connections true'.encode())
