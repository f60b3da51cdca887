"""Which rows are whose, and when: context, generation, class and due time."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from spectral.core import deployments
from spectral.core.database import connect
from spectral.core.deployments import HandOver, Release
from spectral.core.events import Consumer, Transaction
from tests.conformance.delivery.stage import Stage
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, Scan, shortened, until, write_effect


def counting(seen: Counter[int], context: str = "platform") -> Consumer:
    """A consumer that counts what it sees."""
    consumer = Consumer(context, retry=AT_ONCE)

    @consumer.on(COMPLETED)
    async def count(scan: Scan) -> None:
        seen[scan.number] += 1

    return consumer


@pytest.fixture
def seen() -> Counter[int]:
    """The numbers of the events that were handled."""
    return Counter()


async def test_events_of_one_context_are_not_anothers(stage: Stage, seen: Counter[int]) -> None:
    elsewhere: Counter[int] = Counter()
    async with stage.running(counting(seen)), stage.running(counting(elsewhere, "worlds")):
        await stage.publish(1, 2)
        await stage.publish(3, 4, target="worlds")
        (nobodys,) = await stage.publish(5, target="core")
        await until(lambda: stage.value("select count(*) = 4 from core.outbox where status = 'delivered'"))
    assert (seen, elsewhere) == ({1: 1, 2: 1}, {3: 1, 4: 1})
    assert await stage.status(nobodys) == "pending"


async def test_a_worker_runs_rows_of_its_own_generation_only(stage: Stage, seen: Counter[int]) -> None:
    later: Counter[int] = Counter()
    async with stage.running(counting(seen)):
        (of_two,) = await stage.publish(2, generation=2)
        await stage.publish(1)
        await until(lambda: seen[1])
        row = await stage.row(of_two)
        assert (row["status"], row["attempts"]) == ("pending", 0)
        async with stage.running(counting(later), generation=2):
            await until(lambda: stage.all_are("delivered"))
    assert (seen, later) == ({1: 1}, {2: 1})


async def test_a_worker_runs_the_generations_it_accepts_too(stage: Stage, seen: Counter[int]) -> None:
    async with stage.running(counting(seen), generation=2, accept_generations=frozenset({1})):
        await stage.publish(1)
        await stage.publish(2, generation=2)
        await until(lambda: stage.all_are("delivered"))
    assert seen == {1: 1, 2: 1}


async def test_rows_of_a_class_are_for_workers_of_that_class(stage: Stage, seen: Counter[int]) -> None:
    plain: Counter[int] = Counter()
    async with stage.running(counting(plain)), stage.running(counting(seen), classes=("hot",)):
        await stage.publish(*range(5), processing_class="hot")
        (cold,) = await stage.publish(9, processing_class="cold")
        await until(lambda: stage.value("select count(*) = 5 from core.outbox where status = 'delivered'"))
    assert (seen, plain) == (Counter(range(5)), {})
    assert (await stage.row(cold))["attempts"] == 0


async def test_a_row_without_a_channel_is_delivered_to_its_generation(stage: Stage, seen: Counter[int]) -> None:
    """As plain SQL inserts it; nobody listens on that channel, so it is found by polling."""
    async with stage.running(counting(seen), times=shortened(poll=0.3)):
        await stage.insert(channel="outbox_default", payload='{"number": 1}')
        await until(lambda: stage.all_are("delivered"))
    assert seen == {1: 1}


async def test_a_delayed_event_is_not_delivered_before_it_is_due(stage: Stage, platform: Consumer) -> None:
    order: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        order.append(scan.number)
        await write_effect(tx, "project", scan.number)

    async with stage.running(platform):
        ids = [
            (await stage.publish(number, delay=timedelta(seconds=seconds)))[0]
            for number, seconds in ((3, 0.8), (2, 0.4), (1, 0))
        ]
        await until(lambda: stage.all_are("delivered"))
    assert order == [1, 2, 3]
    rows = [await stage.row(each) for each in ids]
    assert all(row["delivered_at"] >= row["next_attempt_at"] for row in rows)


async def test_what_is_handed_over_is_run_by_the_generation_it_goes_to(stage: Stage, seen: Counter[int]) -> None:
    """Under way: a message that names the generation of before leads nowhere."""
    behind: Counter[int] = Counter()
    async with connect(stage.dsn, "test") as operator:
        await stage.publish(*range(10))
        await until(lambda: stage.broker is None or stage.value("select count(relayed_at) = 10 from core.outbox"))
        await deployments.allocate(operator, Release.of([counting(seen)], generation=2), by="ada")
        await deployments.promote(operator, 2, by="ada")
        async with stage.running(counting(seen), generation=2):
            done = await deployments.hand_over(operator, HandOver(1, 2), by="ada", reason="the workers of 1 are gone")
            await until(lambda: stage.all_are("delivered"))
    assert done.moved == 10
    assert seen == Counter(range(10))
    assert await stage.value("select array_agg(distinct generation) from core.outbox") == [2]
    await stage.drain(counting(behind))
    assert behind == {}
