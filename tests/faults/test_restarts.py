"""Postgres goes down, or takes no writes, while everybody works: what was acknowledged survives and is delivered."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from spectral.core.embedded import EmbeddedPostgres, database_of
from spectral.core.migrations import up
from tests.faults.crew import Crew, eventually
from tests.faults.durable import durable_server, restart_at_once
from tests.faults.handlers import PLAIN
from tests.faults.plan import SHORT_TIMES
from tests.faults.publishers import Publisher, publishing_on
from tests.faults.stage import Stage

RESTARTS = 6


@pytest.fixture
def durable() -> Iterator[EmbeddedPostgres]:
    with durable_server() as server:
        yield server


@pytest.mark.timeout(180)
def test_acknowledged_events_survive_immediate_restarts(durable: EmbeddedPostgres, crew: Crew) -> None:
    up(durable.tcp_dsn)
    stage = Stage(durable.tcp_dsn, crew)
    # An outage is nobody's failure, but plain handlers here keep their effects in the same server.
    workers = [stage.start(max_retries=100) for _ in range(2)]
    publishers = [Publisher(stage, seed, pause=0.02) for seed in (1, 2)]

    def committed() -> int:
        return sum(each.committed for each in publishers)

    def finished() -> int:
        return sum(len(worker.said("Finished")) for worker in workers)

    with publishing_on(*publishers):
        for _ in range(RESTARTS):
            wanted = 40 + max(committed(), finished())
            eventually(lambda: committed() > wanted, "publishers go on")  # noqa: B023  in this round
            eventually(lambda: finished() > wanted, "workers go on")  # noqa: B023  in this round
            restart_at_once(durable)
    verdict = stage.settle()
    verdict.assert_clean(at_least=40 * RESTARTS)
    assert verdict.dead_lettered == 0
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.timeout(180)
def test_a_worker_that_is_stopped_while_the_server_is_down_ends_in_good_order(
    durable: EmbeddedPostgres, crew: Crew
) -> None:
    up(durable.tcp_dsn)
    stage = Stage(durable.tcp_dsn, crew)
    stage.publish(4, payload={"do": "sleep", "seconds": 1.0, "times": 1})
    stage.publish(4, PLAIN, payload={"do": "sleep", "seconds": 1.0, "times": 1})
    worker = stage.start()
    eventually(lambda: stage.statuses().get("in_flight") == 8, "the worker holds everything")
    durable.stop()
    worker.signal(signal.SIGTERM)
    # The grace for what runs, and the time of an answer that does not come.
    assert worker.wait_for_end(SHORT_TIMES["stop"] + SHORT_TIMES["answer"] + 10) == 0
    durable.start()
    stage.start("next")
    stage.assert_clean(delivered=8)


@pytest.mark.timeout(180)
def test_a_server_that_takes_no_writes_for_a_while_is_waited_for(stage: Stage) -> None:
    worker = stage.start()
    worker.wait_for("EarOpened")
    stage.publish(20, payload={"do": "sleep", "seconds": 0.05})
    stage.publish(20, PLAIN, payload={"do": "sleep", "seconds": 0.05})
    worker.wait_for("Finished")
    name = sql.Identifier(database_of(stage.dsn))
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("alter database {} set default_transaction_read_only = on").format(name))
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ 'spectral'")
        worker.wait_for("SubstrateLost", count=3)
        connection.execute(sql.SQL("alter database {} reset default_transaction_read_only").format(name))
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ 'spectral'")
    stage.assert_clean(delivered=40)
    assert worker.stop() == 0
