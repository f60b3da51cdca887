"""The emergency that the runbook's *Poll only* is for, on a server whose NOTIFY queue is really full: does it help?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from spectral.core.embedded import FAST_AND_UNSAFE, EmbeddedPostgres, ServerOptions
from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope, WorkerSettings
from spectral.core.events.bootstrap import worker
from spectral.core.events.settings import WorkerTimes
from spectral.core.migrations import up
from tests.acceptance.cli_desk import Desk
from tests.docs.test_runbook import SECTIONS, OnDuty, Section, holding
from tests.integration.delivery.platform_worker import until
from tests.memory import running

PUBLISH: Final = (
    "insert into core.outbox (event_type, source, target, generation, channel)"
    " select 'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1' from generate_series(1, %s)"
)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """With the smallest queue there is, half a megabyte: it is full after some thousand events instead of millions."""
    settings = {**FAST_AND_UNSAFE, "max_notify_queue_pages": 64}
    with running(EmbeddedPostgres(options=ServerOptions(tcp=False, settings=settings))) as started:
        up(started.dsn)
        yield started


def usage(connection: psycopg.Connection[Any]) -> float:
    found = connection.execute("select pg_notification_queue_usage()").fetchone()
    assert found is not None
    return float(found[0])


def fill(connection: psycopg.Connection[Any], share: float) -> None:
    """Publish until so much of the queue is used."""
    for _ in range(100):
        if usage(connection) >= share:
            return
        connection.execute(PUBLISH, [200])
    raise AssertionError("the queue does not fill up")


def section(title: str) -> Section:
    (found,) = (each for each in SECTIONS if each.title == title)
    return found


def test_without_the_bell_publishing_works_again_and_workers_find_everything(
    server: EmbeddedPostgres, tmp_path: Path
) -> None:
    dsn, desk = server.dsn, Desk(server.dsn, tmp_path)
    on_duty = OnDuty(dsn, {"owner": dsn, "superuser": dsn, "operator": dsn}, tmp_path)
    (disable, enable) = (
        code for language, code in section("Poll only").blocks if language == "sql" and "bell_set" in code
    )
    (end_it,) = (code for _, code in section("The NOTIFY queue fills up").blocks if "terminate" in code)

    # Somebody who listens, and sits in a transaction.
    with psycopg.connect(dsn, autocommit=True) as publisher, holding(dsn, "listen outbox_gen_1; begin; select 1"):
        publisher.execute("insert into core.deployments (generation, status, promoted_at) values (1, 'live', now())")
        # As if every row came in a transaction of its own.
        publisher.execute("select core.bell_set('always', 'test', 'to fill the queue')")
        for share, code in ((0.25, 0), (0.5, 4)):
            fill(publisher, share)
            seen = desk.spectral("status")
            assert seen.code == code
            assert f"The NOTIFY queue is {usage(publisher):.0%} full" in seen.out
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="too many notifications in the NOTIFY queue"):
            fill(publisher, 1)
        assert usage(publisher) > 0.9
        # A wake-up is a hint: what gives rows back, and would wake whoever may take them, does not fail for it.
        publisher.execute(
            "select core.outbox_release(array_agg(id), array_agg(claim_token))"
            " from core.outbox_claim('passer-by', 'platform', '{1}', '{outbox_gen_1}', null, 5)"
        )

        on_duty.run_sql(disable)
        publisher.execute(PUBLISH, [200])
        asyncio.run(deliver_by_polling(dsn, publisher))

        on_duty.run_sql(end_it)
        on_duty.run_sql(enable)
        with psycopg.connect(dsn, autocommit=True) as ear:
            ear.execute("listen outbox_gen_1")
            publisher.execute(PUBLISH, [1])
            assert [heard.channel for heard in ear.notifies(timeout=20, stop_after=1)] == ["outbox_gen_1"]
        assert usage(publisher) < 0.25


async def deliver_by_polling(dsn: str, publisher: psycopg.Connection[Any]) -> None:
    """Run a worker until it has delivered what waits, and one event that comes when it listens and is idle."""
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def index_scan(event: EventEnvelope) -> None: ...

    def left() -> int:
        found = publisher.execute("select count(*) from core.outbox where status <> 'delivered'").fetchone()
        assert found is not None
        return int(found[0])

    settings = WorkerSettings(generation=1, times=WorkerTimes(poll=timedelta(milliseconds=200)))
    database = DatabaseSettings(dsn=dsn)
    await worker(platform, settings=settings, database=database).run(until="drained")
    assert left() == 0
    async with worker(platform, settings=settings, database=database) as running:
        await running.started()
        publisher.execute(PUBLISH, [1])
        await until(lambda: left() == 0)
