"""Two writers settle what plain handlers have done: the second one what is too much for the first."""

from __future__ import annotations

import psycopg

from spectral.core.events import Consumer
from spectral.core.events.delivery.tray import HEAP
from tests.integration.delivery.platform_worker import COMPLETED, Bench, Scan, until

MANY = 3 * HEAP


async def test_a_heap_that_has_to_wait_does_not_hold_up_the_next(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    first, second, *_ = await bench.publish(*range(MANY))

    async def so_many_are_delivered() -> bool:
        return (await bench.statuses())["delivered"] >= HEAP

    async with await psycopg.AsyncConnection.connect(bench.dsn) as elsewhere:
        # The same key, in a transaction that does not end: whoever writes it has to wait for that.
        await elsewhere.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)"
            " values ('platform.mail', %s, %s, 'event')",
            [str(first), first],
        )
        async with bench.running(platform, concurrency=MANY):
            await until(so_many_are_delivered)
            neighbour = await bench.status(second)  # it is in the heap of the first
            await elsewhere.rollback()
            await until(lambda: bench.all_are("delivered"))
    assert neighbour == "in_flight"
    assert await bench.keys() == ["platform.mail"] * MANY


async def test_few_events_are_settled_on_one_connection(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    await bench.publish(*range(HEAP // 2))
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"))
        assert len(await bench.backends("settle")) == 1
