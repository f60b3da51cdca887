"""Operators, publishers and workers at once: whatever the order turns out to be, nothing is lost or mixed up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from spectral.core import deployments
from spectral.core.database import Database, RefusedError, connect
from spectral.core.deployments import Count, HandOver, Release, Status
from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, PublishSettings, RetryPolicy, Transaction
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.testing import EFFECTS_SCHEMA, Ledger, Verdict, check, record_effect, settle_down
from tests.integration.delivery.platform_worker import COMPLETED, Bench, open_bench, until
from tests.migrations.sql import publish

Connection = psycopg.Connection[Any]
AT_ONCE = RetryPolicy(max_retries=5, base=timedelta(0), cap=timedelta(0))


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    async with connect(database, "ada") as opened:
        yield opened


@pytest.fixture
async def colleague(database: str) -> AsyncIterator[Database]:
    async with connect(database, "bob") as opened:
        yield opened


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with open_bench(database) as opened:
        await opened.execute(EFFECTS_SCHEMA)
        yield opened


class Platform:
    """A release of the platform: what it handles, it writes down; every fourth event fails in one handler at first."""

    def __init__(self) -> None:
        self.consumer = Consumer("platform", retry=AT_ONCE)
        self.consumer.on(COMPLETED)(self.project)
        self.consumer.on(COMPLETED)(self.mail)

    async def project(self, event: EventEnvelope, tx: Transaction, context: DeliveryContext) -> None:
        await record_effect(tx, context, event.idempotency_key)

    async def mail(self, event: EventEnvelope, tx: Transaction, context: DeliveryContext) -> None:
        if event.payload["number"] % 4 == 0 and context.attempt == 1:
            raise TimeoutError("not yet")
        await record_effect(tx, context, event.idempotency_key)


async def publish_as(bench: Bench, generation: int, count: int, ledger: Ledger) -> None:
    """As many transactions; every tenth event is for everybody."""
    shared = publishing(PublishSettings(generation=generation))
    async with await psycopg.AsyncConnection.connect(bench.dsn) as connection:
        for number in range(count):
            target = None if number % 10 == 0 else "platform"
            event = EventEnvelope(event_type=COMPLETED, source="worlds", target=target, payload={"number": number})
            with ledger.attempt_of(event, generation=generation):
                async with connection.transaction():
                    await publisher_for(connection, shared).publish(event)


async def verdict(bench: Bench, ledger: Ledger) -> Verdict:
    assert await settle_down(bench.dsn, timedelta(seconds=60))
    return await check(bench.dsn, ledger)


def once() -> Callable[[], bool]:
    """Not at first, but then."""
    answers = iter((False, True))
    return lambda: next(answers)


async def audit(operator: Database, *actions: str) -> list[tuple[Any, ...]]:
    return await operator.tuples(
        "select actor, detail ->> 'before', detail ->> 'generation' from core.audit"
        " where action = any (%s) order by id",
        [list(actions)],
    )


async def test_of_two_promotions_at_once_one_comes_after_the_other(operator: Database, colleague: Database) -> None:
    three = (await deployments.allocate(operator, Release("v3"), by="ada")).generation
    for _ in range(10):
        await asyncio.gather(
            deployments.promote(operator, 2, by="ada"), deployments.promote(colleague, three, by="bob")
        )
        statuses = [each.status for each in await deployments.list_deployments(operator)]
        assert statuses.count(Status.LIVE) == 1
    steps = await audit(operator, "promote", "rollback")
    # each of them knew what it took over from
    assert [before for _, before, _ in steps] == ["1", *(generation for _, _, generation in steps[:-1])]
    assert steps[-1][2] == str(await deployments.live_generation(operator))


async def test_two_rollbacks_at_once_are_one(operator: Database, colleague: Database) -> None:
    await deployments.promote(operator, 2, by="ada")
    done = await asyncio.gather(
        deployments.rollback(operator, by="ada"), deployments.rollback(colleague, by="bob"), return_exceptions=True
    )
    # the second one finds it done, or is told that it would go forward again
    assert all(isinstance(each, RefusedError) or each.generation == 1 for each in done)  # type: ignore[union-attr]
    assert await deployments.live_generation(operator) == 1
    assert len(await audit(operator, "rollback")) == 1


async def test_what_was_published_while_its_generation_was_retired_waits_and_is_handed_over(
    operator: Database, bench: Bench
) -> None:
    platform, ledger = Platform(), Ledger()
    await deployments.allocate(operator, Release.of([platform.consumer], label="v2", generation=2), by="ada")
    await deployments.promote(operator, 2, by="ada")
    event = EventEnvelope(event_type=COMPLETED, source="worlds", target="platform", payload={"number": 1})
    with ledger.attempt_of(event, generation=1):
        async with await psycopg.AsyncConnection.connect(bench.dsn) as late, late.transaction():
            await publisher_for(late, publishing(PublishSettings(generation=1))).publish(event)
            retired = await deployments.retire(operator, 1, by="ada")  # which cannot see the row yet
            assert (retired.status, retired.pending) == (Status.RETIRED, Count(0))
    _, found, _ = await deployments.list_deployments(operator)
    assert (found.status, found.pending) == (Status.RETIRED, Count(1))
    remarks = deployments.remarks(await deployments.list_deployments(operator))
    assert "spectral generations hand-over 1 2" in [each.remedy for each in remarks]
    assert (await deployments.hand_over(operator, HandOver(1, 2), by="ada")).moved == 1
    await bench.drain(platform.consumer, generation=2)
    counted = await verdict(bench, ledger)
    assert counted.clean, counted.found
    assert (counted.published, counted.handled) == (1, 2)


async def test_retiring_while_publishers_publish_loses_nothing(operator: Database, bench: Bench) -> None:
    platform, ledger = Platform(), Ledger()
    await deployments.allocate(operator, Release.of([platform.consumer], label="v2", generation=2), by="ada")
    await deployments.promote(operator, 2, by="ada")
    publishers = asyncio.gather(*(publish_as(bench, 1, 15, ledger) for _ in range(3)))
    while not publishers.done():
        with suppress(RefusedError):
            await deployments.retire(operator, 1, by="ada")
        await deployments.hand_over(operator, HandOver(1, 2, batch=5), by="ada")
    await publishers
    await deployments.hand_over(operator, HandOver(1, 2), by="ada")
    assert (await deployments.retire(operator, 1, by="ada")).status is Status.RETIRED
    await bench.drain(platform.consumer, generation=2)
    counted = await verdict(bench, ledger)
    assert counted.clean, counted.found
    assert counted.published == 45


async def test_a_generation_into_which_rows_are_being_handed_over_is_not_retired(
    operator: Database, database: str, connection: Connection
) -> None:
    await deployments.promote(operator, 2, by="ada")
    three = (await deployments.allocate(operator, Release("v3"), by="ada")).generation
    publish(connection)
    with psycopg.connect(database) as mover:
        mover.execute("select core.outbox_hand_over(1, %s)", [three])
        retiring = asyncio.create_task(deployments.retire(operator, three, by="ada"))
        waiting = operator.connection.info.backend_pid
        blocked = "select %s = any (pg_blocking_pids(%s))"
        await until(lambda: connection.execute(blocked, [mover.info.backend_pid, waiting]).fetchone() == (True,))
        mover.commit()
        with pytest.raises(RefusedError, match=f"generation {three} is not at its end: 1 pending {COMPLETED}"):
            await retiring
    assert (await deployments.find_deployment(operator, three)).status is Status.ALLOCATED


async def test_a_hand_over_while_workers_of_both_generations_claim_mixes_nothing_up(
    operator: Database, colleague: Database, bench: Bench
) -> None:
    old, new, ledger = Platform(), Platform(), Ledger()
    await deployments.allocate(operator, Release.of([new.consumer], label="v2", generation=2), by="ada")
    await deployments.promote(operator, 2, by="ada")
    await publish_as(bench, 1, 20, ledger)
    few = await deployments.hand_over(operator, HandOver(1, 2, batch=3), by="ada", aborted=once())
    assert few.moved == 3
    async with AsyncExitStack() as workers:
        await workers.enter_async_context(bench.running(old.consumer, generation=1, name="old"))
        await workers.enter_async_context(bench.running(new.consumer, generation=2, name="new"))
        publishers = asyncio.gather(*(publish_as(bench, generation, 40, ledger) for generation in (1, 1, 2)))
        while not publishers.done():
            # two people who do not know of each other
            await asyncio.gather(
                deployments.hand_over(operator, HandOver(1, 2, batch=3), by="ada"),
                deployments.hand_over(colleague, HandOver(1, 2, batch=2), by="bob"),
            )
        await publishers
        await publish_as(bench, 1, 10, ledger)
        counted = await verdict(bench, ledger)
    assert counted.clean, counted.found
    assert (counted.published, counted.handled) == (150, 300)
    by_generation = await operator.tuples("select distinct generation from public.spectral_effects order by 1")
    assert by_generation == [(1,), (2,)]
