"""Which rows are a worker's: by generation, channel, class and type, and what a generation has on record."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from spectral.core.events import ConfigurationError, Consumer
from spectral.core.events.probe import NeverAllocated, Unhandled
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, Bench, Scan, shortened, until


def mailing(seen: Counter[int], *event_types: str, name: str = "platform.mail") -> Consumer:
    """A consumer that counts what it sees."""
    consumer = Consumer("platform")

    @consumer.on(*(event_types or (COMPLETED,)), name=name)
    async def mail(scan: Scan) -> None:
        seen[scan.number] += 1

    return consumer


@pytest.fixture
def seen() -> Counter[int]:
    """The numbers of the events that were handled."""
    return Counter()


async def test_rows_of_other_generations_are_not_touched(bench: Bench, seen: Counter[int]) -> None:
    others = [*await bench.publish(0, generation=0), *await bench.publish(2, generation=2)]
    await bench.publish(1)
    await bench.drain(mailing(seen))
    assert seen == {1: 1}
    rows = [await bench.row(each) for each in others]
    assert [(row["status"], row["attempts"]) for row in rows] == [("pending", 0)] * 2


async def test_a_worker_runs_the_generations_it_accepts_beside_its_own(bench: Bench, seen: Counter[int]) -> None:
    await bench.publish(0, generation=0)
    await bench.publish(1)
    (other,) = await bench.publish(2, generation=2)
    await bench.drain(mailing(seen), accept_generations=frozenset({0}))
    assert seen == {0: 1, 1: 1}
    assert await bench.status(other) == "pending"


async def test_a_worker_hears_of_the_generations_it_accepts(bench: Bench, seen: Counter[int]) -> None:
    async with bench.running(mailing(seen), accept_generations=frozenset({0})):
        await bench.publish(0, generation=0)
        await until(lambda: bench.all_are("delivered"), within=10)


async def test_broadcasts_of_other_generations_are_not_split(bench: Bench, seen: Counter[int]) -> None:
    await bench.publish(2, generation=2, target=None)
    await bench.drain(mailing(seen))
    assert await bench.statuses() == {"pending": 1}


async def test_rows_without_a_channel_are_found_by_the_poll(bench: Bench, seen: Counter[int]) -> None:
    async with bench.running(mailing(seen), times=shortened(poll=0.5)):
        await bench.insert(channel="outbox_default", payload='{"number": 1}', idempotency_key="x")
        await until(lambda: bench.all_are("delivered"))
    assert seen == {1: 1}


async def test_rows_of_a_class_are_for_workers_of_that_class(bench: Bench, seen: Counter[int]) -> None:
    (hot,) = await bench.publish(1, processing_class="hot")
    (cold,) = await bench.publish(2, processing_class="cold")
    await bench.drain(mailing(seen))
    assert seen == {}
    await bench.drain(mailing(seen), classes=("hot",))
    assert seen == {1: 1}
    assert [await bench.status(each) for each in (hot, cold)] == ["delivered", "pending"]


async def test_a_worker_hears_of_its_classes(bench: Bench, seen: Counter[int]) -> None:
    async with bench.running(mailing(seen), classes=("hot", "cold")):
        await bench.publish(1, processing_class="hot")
        await bench.publish(2, processing_class="cold")
        await bench.publish(3)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert seen == {1: 1, 2: 1, 3: 1}


async def test_a_type_that_another_worker_handles_is_left_alone(bench: Bench, seen: Counter[int]) -> None:
    await bench.worker(mailing(seen, STARTED, name="platform.other")).run(until="once")
    await bench.publish(1, event_type=STARTED)
    async with bench.running(mailing(seen), times=shortened(unhandled_after=0.2)):
        await bench.publish(2)
        await until(lambda: seen[2])
        await asyncio.sleep(1)  # what must not happen has no signal; the worker has looked several times by then
    assert await bench.statuses() == {"pending": 1, "delivered": 1}


async def test_a_type_that_nobody_handles_goes_to_the_dlq_after_the_grace(bench: Bench, seen: Counter[int]) -> None:
    (event_id,) = await bench.publish(1, event_type="worlds.scan.forgotten")
    async with bench.running(mailing(seen), times=shortened(unhandled_after=0.5)):
        await until(lambda: bench.all_are("failed"))
    row = await bench.row(event_id)
    assert row["last_error"] == (
        "NoHandlerError: no handler of platform is subscribed to worlds.scan.forgotten in generation 1"
    )
    ((context, dead),) = [(note.context, note.dead) for note in bench.notes.of(Unhandled)]
    assert (context, [(each.event_id, each.event_type) for each in dead]) == (
        "platform",
        [(event_id, "worlds.scan.forgotten")],
    )


async def test_before_the_grace_is_over_it_waits_for_a_handler_to_appear(bench: Bench, seen: Counter[int]) -> None:
    await bench.publish(1, event_type="worlds.scan.new")
    await bench.drain(mailing(seen))
    assert await bench.statuses() == {"pending": 1}
    await bench.drain(mailing(seen, "worlds.scan.new", name="platform.new"))
    assert seen == {1: 1}


async def test_a_retired_generation_is_refused(bench: Bench, seen: Counter[int]) -> None:
    with pytest.raises(ConfigurationError, match="generation 0 is retired"):
        await bench.worker(mailing(seen), generation=0).run()
    await until(bench.is_left_alone)


async def test_an_unknown_generation_is_recorded_as_allocated(bench: Bench, seen: Counter[int]) -> None:
    await bench.worker(mailing(seen), generation=7).run(until="once")
    assert await bench.value("select status from core.deployments where generation = 7") == "allocated"


async def test_a_generation_far_above_the_live_one_that_nobody_allocated_is_told_of(
    bench: Bench, seen: Counter[int]
) -> None:
    await bench.worker(mailing(seen), generation=77).run(until="once")
    assert bench.notes.of(NeverAllocated) == [NeverAllocated(77, 1)]


@pytest.mark.parametrize("generation", [1, 2, 77])
async def test_of_a_generation_that_is_live_or_was_allocated_nothing_is_told(
    bench: Bench, seen: Counter[int], generation: int
) -> None:
    await bench.connection.execute("insert into core.deployments (generation) values (77)")
    await bench.worker(mailing(seen), generation=generation).run(until="once")
    assert bench.notes.of(NeverAllocated) == []


async def test_of_the_generation_after_the_live_one_nothing_is_told(bench: Bench, seen: Counter[int]) -> None:
    await bench.connection.execute("delete from core.deployments where generation = 2")
    await bench.worker(mailing(seen), generation=2).run(until="once")
    assert bench.notes.of(NeverAllocated) == []


async def test_what_a_worker_handles_is_on_record(bench: Bench, seen: Counter[int]) -> None:
    await bench.worker(mailing(seen, COMPLETED, STARTED)).run(until="once")
    cursor = await bench.connection.execute(
        "select generation, context, event_type, handler_name, max_attempts from core.subscriptions order by event_type"
    )
    assert [tuple(row.values()) for row in await cursor.fetchall()] == [
        (1, "platform", COMPLETED, "platform.mail", 6),
        (1, "platform", STARTED, "platform.mail", 6),
    ]


async def test_a_worker_that_lacks_a_handler_on_record_is_refused_and_told_which(
    bench: Bench, seen: Counter[int]
) -> None:
    await bench.worker(mailing(seen, name="platform.old")).run(until="once")
    with pytest.raises(ConfigurationError, match=r"lacks: platform\.old \(worlds\.scan\.completed\)"):
        await bench.worker(mailing(seen)).run()
    assert await bench.value("select count(*) from core.subscriptions") == 1
    await until(bench.is_left_alone)


async def test_the_same_handlers_in_another_generation_are_nobodys_business(bench: Bench, seen: Counter[int]) -> None:
    await bench.worker(mailing(seen, name="platform.old")).run(until="once")
    await bench.worker(mailing(seen), generation=2).run(until="once")


async def test_a_worker_may_replace_what_is_on_record(bench: Bench, seen: Counter[int]) -> None:
    await bench.worker(mailing(seen, name="platform.old")).run(until="once")
    await bench.publish(1)
    await bench.drain(mailing(seen), replace_subscriptions=True)
    assert seen == {1: 1}
    assert await bench.value("select array_agg(handler_name) from core.subscriptions") == ["platform.mail"]


async def test_a_replayed_row_is_run_by_the_generation_it_was_replayed_into(bench: Bench, seen: Counter[int]) -> None:
    bad = await bench.insert(payload='{"number": "two"}', idempotency_key="x")
    await bench.drain(mailing(seen))
    assert await bench.status(bad) == "failed"

    mended = Consumer("platform")
    taken: list[Any] = []

    @mended.on(COMPLETED, name="platform.mail")
    async def mail() -> None:
        taken.append(bad)

    async with bench.running(mended, generation=2):
        await bench.execute("select core.outbox_replay(%s, 2, 'ada')", bad)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert taken == [bad]


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        ("drop schema core cascade", "spectral migrate up"),
        ("drop function core.outbox_subscribe", "spectral migrate up"),
        ("drop table core.subscriptions cascade", "spectral migrate up"),
    ],
)
async def test_a_database_without_the_schema_is_refused_with_what_to_do(
    bench: Bench, seen: Counter[int], damage: str, advice: str
) -> None:
    await bench.execute(damage)
    with pytest.raises(ConfigurationError, match=advice):
        await bench.worker(mailing(seen)).run()
    await until(bench.is_left_alone)
