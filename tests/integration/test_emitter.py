"""The emitter on a real database: who is elected, who follows, what it says, and what a database that is away costs."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from structlog.testing import capture_logs

from spectral.core.events import DatabaseSettings, metrics
from spectral.core.events.infrastructure.observability.log_writer import process_logger
from spectral.core.events.metrics import Metric, Sample
from spectral.core.operations.verdict import Limits
from spectral_workers.emitter import Emitter
from tests.acceptance.test_cli_status import spectral
from tests.faults.wire import Wire
from tests.integration.delivery.platform_worker import until
from tests.integration.test_doctor_pooler import pooled
from tests.integration.test_insights import failed, in_flight, publish, sign_in
from tests.migrations.schema import role
from tests.unit.log_notes import WHO, unconfigured_structlog

Connection = psycopg.Connection[Any]
Log = list[Any]

OFTEN = timedelta(seconds=0.1)
SELDOM = timedelta(seconds=5)  # it first asks within half a second, and then not for four
NAME = "spectral emitter"
LOG = process_logger("spectral.worker", WHO).bind(worker="worker-1")


@pytest.fixture
def login(database: str) -> Iterator[str]:
    """The DSN of a login that may do what a worker does, and nothing else."""
    with role(database, groups=("spectral_worker",)) as dsn:
        yield dsn


@pytest.fixture
def wire(login: str) -> Iterator[Wire]:
    opened = Wire(login)
    yield opened
    opened.close()


@pytest.fixture
def log() -> Iterator[Log]:
    with unconfigured_structlog(), capture_logs() as lines:  # which leaves structlog configured, with its own defaults
        yield lines


def emitter(dsn: str, every: timedelta = OFTEN, **options: Any) -> Emitter:  # noqa: ANN401  passed on
    return Emitter(DatabaseSettings(dsn=dsn), LOG, every, **options)


async def taken(emitter: Emitter, after: float = 0.0) -> list[Sample]:
    """What it says as soon as it says something new."""
    found: list[Sample] = []

    def is_new() -> bool:
        found[:] = emitter.samples()
        return (value(found, metrics.EMITTER_TIMESTAMP) or 0.0) > after

    await until(is_new)
    return found


def values(samples: list[Sample], metric: Metric) -> dict[tuple[str, ...], float]:
    return {sample.labels: sample.value for sample in samples if sample.metric is metric}


def value(samples: list[Sample], metric: Metric) -> float | None:
    return values(samples, metric).get(())


def emitters(connection: Connection) -> int:
    """Sessions that hold the lock."""
    row = connection.execute(
        "select count(*) from pg_locks as lock join pg_stat_activity as activity using (pid)"
        " where lock.locktype = 'advisory' and activity.application_name = %s and activity.datname = current_database()"
        "  and ((lock.classid::bigint << 32) | lock.objid::bigint) = core.emitter_lock_key()",
        [NAME],
    ).fetchone()
    assert row is not None
    return int(row[0])


# the election


async def test_of_two_emitters_one_measures_and_the_other_follows_when_it_is_closed(
    login: str, connection: Connection, log: Log
) -> None:
    with ExitStack() as until_closed:
        first = until_closed.enter_context(emitter(login))
        await until(first.samples)
        with emitter(login) as second:
            await until(lambda: "another worker measures the database" in [line["event"] for line in log])
            assert await taken(first)
            assert second.samples() == []
            assert emitters(connection) == 1
            until_closed.close()
            assert first.samples() == []
            assert value(await taken(second), metrics.EMITTER_UP) == 1
            assert emitters(connection) == 1
    await until(lambda: emitters(connection) == 0)


async def test_another_one_takes_over_when_the_winners_backend_is_gone(login: str, connection: Connection) -> None:
    with emitter(login, SELDOM) as first:
        await until(first.samples)
        with emitter(login) as second:
            terminated = connection.execute(
                "select pg_terminate_backend(lock.pid) from pg_locks as lock where lock.locktype = 'advisory'"
                " and ((lock.classid::bigint << 32) | lock.objid::bigint) = core.emitter_lock_key()"
            ).fetchall()
            assert terminated == [(True,)]
            await until(second.samples)
            assert emitters(connection) == 1


async def test_the_numbers_are_measured_again_and_again(login: str, connection: Connection) -> None:
    with emitter(login) as one:
        before = await taken(one)
        publish(connection, 3)
        await until(lambda: values(one.samples(), metrics.BACKLOG).get(("platform", "1")) == 3)
        assert values(before, metrics.BACKLOG) == {}


# behind a pooler


def locks(connection: Connection) -> int:
    """Sessions that hold the lock, whoever they belong to."""
    row = connection.execute(
        "select count(*) from pg_locks where locktype = 'advisory'"
        " and ((classid::bigint << 32) | objid::bigint) = core.emitter_lock_key()"
    ).fetchone()
    assert row is not None
    return int(row[0])


async def sources(way: str, sessions: int) -> list[str]:
    """Where the settings of so many sessions of a pooler come from; they are in use at the same time, so there are."""
    async with AsyncExitStack() as until_asked:
        connecting = [psycopg.AsyncConnection.connect(way) for _ in range(sessions)]
        connections = [await until_asked.enter_async_context(await each) for each in connecting]
        query = "select source from pg_settings where name = 'tcp_keepalives_idle'"
        return [row[0] for each in connections for row in await (await each.execute(query)).fetchall()]


@pytest.mark.parametrize("is_said_to_be_direct", [False, True])
async def test_behind_a_transaction_pooler_it_stands_down_and_leaves_nothing_behind(
    login: str, connection: Connection, log: Log, *, is_said_to_be_direct: bool
) -> None:
    async with pooled(login, in_turn=True) as way:
        before = await sources(way, 3)
        settings = DatabaseSettings(dsn=way, direct_dsn=way if is_said_to_be_direct else "")
        with Emitter(settings, LOG, OFTEN) as one:
            await until(lambda: log and "spectral-emitter" not in [thread.name for thread in threading.enumerate()])
            assert one.samples() == []
        (line,) = log
        assert "transaction pooler" in line["event"]
        assert "SPECTRAL_DIRECT_URL" in line["remedy"]
        assert await sources(way, 3) == before
        assert locks(connection) == 0


# what it says


def plant(connection: Connection) -> None:
    """Something of everything."""
    now = datetime.now(UTC)
    sign_in(connection, "lives")
    sign_in(connection, "vanished", alive=False)
    publish(connection, 3, workspace_id=uuid4())
    publish(connection, 2, next_attempt_at=now + timedelta(hours=1))
    publish(connection, 1, target=None, channel="outbox_default")
    publish(connection, 4, target="worlds", generation=2, channel="outbox_gen_2")
    publish(connection, 2, **in_flight("vanished"))
    publish(connection, 2, **failed(now))
    publish(connection, 1, **failed(now - timedelta(hours=2)))
    connection.execute("select core.brake_pull('worlds', 'ada', 'broken')")


async def test_the_gauges_are_the_numbers_of_status(
    database: str, login: str, connection: Connection, log: Log
) -> None:
    plant(connection)
    with emitter(login, SELDOM) as one:
        samples = await taken(one)
    answer = await asyncio.to_thread(spectral, database, "status", "--json")
    shown = json.loads(answer.stdout)["snapshot"]
    counted = {
        "due": metrics.BACKLOG,
        "waiting": metrics.BACKLOG_WAITING,
        "in_flight": metrics.IN_FLIGHT,
        "stale": metrics.STALE_CLAIMS,
        "failed": metrics.DLQ,
        "failed_lately": metrics.DLQ_RECENT,
    }
    for field, metric in counted.items():
        said = {(each["context"] or "*", str(each["generation"])): each[field]["value"] for each in shown["backlogs"]}
        assert values(samples, metric) == said, field
    assert sum(values(samples, metrics.BACKLOG).values()) == 8
    assert value(samples, metrics.DEFAULT_CHANNEL_ROWS) == 1
    assert values(samples, metrics.BRAKE) == {(each["context"],): 1 for each in shown["brakes"]}
    assert values(samples, metrics.WORKERS) == {("1",): 1}
    assert value(samples, metrics.NOTIFY_QUEUE_USAGE) == shown["notify_queue"]
    assert values(samples, metrics.TABLE_BYTES) == {(table["name"],): table["bytes"] for table in shown["tables"]}
    assert value(samples, metrics.SWEEP_LATE) == 0
    assert [line["log_level"] for line in log] == ["info"]


async def test_every_sample_is_in_the_catalogue_once(login: str, connection: Connection) -> None:
    plant(connection)
    with emitter(login) as one:
        samples = await taken(one)
    assert {sample.metric for sample in samples} <= set(metrics.METRICS)
    assert len({(sample.metric, sample.labels) for sample in samples}) == len(samples)


async def test_who_keeps_dead_rows_from_vacuum_is_named_once_in_the_log_and_in_no_label(
    database: str, log: Log
) -> None:
    with psycopg.connect(database, application_name="nightly report") as pinning:
        pinning.execute("select txid_current()")
        pid = pinning.info.backend_pid
        with emitter(database, limits=Limits(transaction=timedelta(0))) as one:
            samples = await taken(one)
            await taken(one, after=value(samples, metrics.EMITTER_TIMESTAMP) or 0.0)
    assert values(samples, metrics.XMIN_AGE)["backend",] >= 1
    assert "nightly report" not in str(samples)
    (line,) = [line for line in log if line["event"] == "a transaction keeps dead rows from vacuum"]
    assert f"Backend {pid}, 'nightly report'" in line["holder"]
    assert (line["log_level"], line["worker"], line["service"]) == ("warning", "worker-1", WHO.service)
    assert line["seconds"] >= 0


# what a database costs that is away


def refusals(log: Log) -> Log:
    return [line for line in log if line["event"] == "the database cannot be measured"]


async def test_a_database_that_goes_away_costs_the_numbers_and_one_line_until_it_is_back(wire: Wire, log: Log) -> None:
    with emitter(wire.dsn) as one:
        await until(one.samples)
        wire.refuse()
        wire.cut(NAME)
        await until(lambda: not one.samples() and refusals(log))
        wire.refuse(on=False)
        await until(one.samples)
    (line,) = refusals(log)
    assert "DatabaseUnavailableError" in line["error"]
    told = [line["event"] for line in log]
    assert told.count("this worker measures the database") == 2


async def test_a_line_that_has_died_without_a_word_shows_no_old_numbers(wire: Wire) -> None:
    with emitter(wire.dsn) as one:
        await until(one.samples)
        wire.freeze(NAME, new=True)
        await until(lambda: not one.samples())
        wire.thaw(NAME)
        await until(one.samples)


async def test_a_database_that_never_answers_keeps_nobody_from_leaving(wire: Wire) -> None:
    wire.freeze(new=True)
    with emitter(wire.dsn) as one:
        await asyncio.to_thread(wire.wait_for, "")
        assert one.samples() == []
    assert "spectral-emitter" not in [thread.name for thread in threading.enumerate()]


async def test_a_login_without_the_rights_is_told_once_what_it_lacks(database: str, log: Log) -> None:
    with role(database, groups=("spectral_publisher",)) as own, emitter(own) as one:
        await until(lambda: refusals(log))
        assert one.samples() == []
    assert "may not" in refusals(log)[0]["error"]


async def test_a_database_without_the_schema_is_told_from_one_at_rest(empty_database: str, log: Log) -> None:
    with emitter(empty_database) as one:
        await until(lambda: refusals(log))
        assert one.samples() == []
    assert "spectral migrate up" in refusals(log)[0]["error"]
