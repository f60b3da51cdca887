"""Several workers, many rows, and roles that may do no more than they must."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack

import psycopg
import pytest

from spectral.core.events import (
    ConfigurationError,
    Consumer,
    DatabaseSettings,
    EventEnvelope,
    RetryPolicy,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.bootstrap import publisher_for, publishing, worker
from spectral.core.events.settings import PublishSettings
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    STARTED,
    TIMES,
    Bench,
    Scan,
    shortened,
    until,
    write_effect,
)
from tests.migrations.schema import role


def clumsy(seed: int) -> Consumer:
    """A consumer whose handlers fail one time in five, in every way there is."""
    consumer = Consumer("platform", retry=RetryPolicy(max_retries=50, base=AT_ONCE.base, cap=AT_ONCE.cap))
    dice = random.Random(seed)  # noqa: S311  a seed, so that a failure can be repeated

    @consumer.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        match dice.randrange(25):
            case 0:
                raise OSError("away")
            case 1:
                await tx.connection.rollback()
            case 2:
                await tx.connection.close()
            case 3:
                await tx.execute("do $$ begin raise exception 'no' using errcode = '40001'; end $$")
            case 4:
                await tx.execute("select pg_terminate_backend(pg_backend_pid())")
            case _:
                return

    @consumer.on(STARTED)
    async def mail(scan: Scan, envelope: EventEnvelope) -> None:
        assert scan.number == envelope.payload["number"]
        if dice.randrange(5) == 0:
            raise OSError("away")

    return consumer


@pytest.mark.parametrize("seed", [1, 2])
async def test_three_clumsy_workers_apply_every_event_once(bench: Bench, seed: int) -> None:
    async with AsyncExitStack() as workers:
        for number in range(3):
            await workers.enter_async_context(bench.running(clumsy(seed * 10 + number), batch=4))
        for start in range(0, 300, 50):
            await bench.publish(*range(start, start + 50))
            await bench.publish(*range(start, start + 50), event_type=STARTED)
        await until(lambda: bench.all_are("delivered"), within=60)
    assert await bench.effects() == [("project", number) for number in range(300)]
    assert Counter(await bench.keys()) == {"platform.project": 300, "platform.mail": 300}


async def test_workers_that_come_and_go_apply_every_event_once(bench: Bench) -> None:
    def projecting() -> Consumer:
        consumer = Consumer("platform", retry=AT_ONCE)

        @consumer.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            await asyncio.sleep(0.002)

        return consumer

    await bench.publish(*range(400))
    for turn in range(4):
        worker = bench.worker(projecting())
        run = asyncio.create_task(worker.run())
        await until(lambda goal=turn * 40: _effects(bench, goal))  # type: ignore[misc]
        worker.stop()
        await run
        assert await bench.value("select count(*) from core.outbox where status = 'in_flight'") == 0
    assert await bench.value("select max(attempts) from core.outbox") == 1
    await bench.drain(projecting())
    assert await bench.effects() == [("project", number) for number in range(400)]


async def _effects(bench: Bench, count: int) -> bool:
    return len(await bench.effects()) > count


async def test_one_lane_handles_what_was_published_together_in_its_order(bench: Bench, platform: Consumer) -> None:
    order: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        order.append(scan.number)
        await write_effect(tx, "project", scan.number)

    await bench.publish(*range(100))
    await bench.drain(platform, lanes=1)
    assert order == list(range(100))


async def test_an_event_whose_transaction_commits_late_is_delivered(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform), await psycopg.AsyncConnection.connect(bench.dsn) as slow:
        early = EventEnvelope(event_type=COMPLETED, source="worlds", target="platform", payload={"number": 0})
        await slow.execute("select 'the business'")
        await publisher_for(slow, publishing(PublishSettings(generation=1))).publish(early)
        await bench.publish(*range(1, 50))
        await until(lambda: bench.all_are("delivered"))
        await slow.commit()
        await until(lambda: _effects(bench, 49), within=10)
        await until(lambda: bench.all_are("delivered"))


async def test_a_role_that_may_only_deliver_delivers(bench: Bench, platform: Consumer) -> None:
    """And publishes, and shows its life, and reaps: with the rights of spectral_worker and spectral_publisher alone."""

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await tx.publish(EventEnvelope(event_type="platform.card.projected", source="platform", target="worlds"))

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 3

    await bench.publish(1, 2)
    await bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null)")
    await bench.publish(3, event_type=STARTED)
    await bench.publish(4, event_type="worlds.scan.forgotten")
    await bench.execute("grant insert on public.effects to public")
    times = shortened(grace=0.3, unhandled_after=0.3, lease=5)
    with role(bench.dsn, groups=("spectral_worker", "spectral_publisher")) as dsn:
        listener = worker(
            platform,
            settings=WorkerSettings(generation=1, times=times),
            database=DatabaseSettings(dsn=dsn),
            probe=bench.notes,
        )
        async with listener:
            await until(lambda: bench.value("select count(*) = 3 from core.outbox where status = 'delivered'"))
            await until(lambda: bench.value("select count(*) = 1 from core.outbox where status = 'failed'"))
    assert await bench.effects() == [("project", 1), ("project", 2)]
    assert await bench.value("select count(*) from core.outbox where target = 'worlds'") == 2


async def test_a_role_that_may_not_deliver_is_told_what_it_lacks(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    with role(bench.dsn, groups=("spectral_publisher",)) as dsn:
        listener = worker(
            platform,
            settings=WorkerSettings(generation=1, times=TIMES),
            database=DatabaseSettings(dsn=dsn),
            probe=bench.notes,
        )
        with pytest.raises(ConfigurationError, match="grant spectral_worker"):
            await listener.run()
