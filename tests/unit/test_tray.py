"""What is concluded is taken in heaps, in its order, and no row twice in one."""

from __future__ import annotations

import asyncio

from spectral.core.events.delivery.tray import HEAP, Tray
from spectral.core.events.lease import Delivery
from spectral.core.events.outcome import Handled
from spectral.core.events.ports import Conclusion
from tests.unit.test_routes import delivery


def filled(*deliveries: Delivery) -> Tray:
    tray = Tray()
    for each in deliveries:
        tray.put(Conclusion(each, Handled()))
    return tray


async def taken(tray: Tray, limit: int = 100) -> list[Delivery]:
    async with asyncio.timeout(10):
        return [each.delivery for each in await tray.take(limit)]


async def test_what_is_there_is_taken_up_to_the_limit_and_in_its_order() -> None:
    rows = [delivery() for _ in range(5)]
    tray = filled(*rows)
    assert await taken(tray, 3) == rows[:3]
    assert await taken(tray, 3) == rows[3:]


async def test_who_takes_waits_for_the_first() -> None:
    tray, row = filled(delivery()), delivery()
    await taken(tray)
    waiting = asyncio.create_task(taken(tray))
    await asyncio.sleep(0)
    assert not waiting.done()
    tray.put(Conclusion(row, Handled()))
    assert await waiting == [row]


async def test_a_row_that_is_there_twice_is_not_taken_twice_at_once() -> None:
    first, row, last = (delivery() for _ in range(3))
    again = row._replace(attempts=2)
    tray = filled(first, row, again, last)
    assert await taken(tray) == [first, row]
    assert await taken(tray) == [again, last]
    assert not tray


async def test_a_heap_is_taken_when_it_is_whole_and_not_before() -> None:
    rows = [delivery() for _ in range(HEAP + 1)]
    tray = filled(*rows[: HEAP - 1])
    waiting = asyncio.create_task(tray.take_heap())
    await asyncio.sleep(0)
    assert not waiting.done()
    for row in rows[HEAP - 1 :]:
        tray.put(Conclusion(row, Handled()))
    assert [each.delivery for each in await waiting] == rows[:HEAP]
    assert await taken(tray) == rows[HEAP:]


async def test_who_waits_for_a_heap_that_somebody_else_takes_waits_for_the_next() -> None:
    first, second = [delivery() for _ in range(HEAP)], [delivery() for _ in range(HEAP)]
    tray = Tray()
    waiting = asyncio.create_task(tray.take_heap())
    await asyncio.sleep(0)
    for row in first:
        tray.put(Conclusion(row, Handled()))
    assert await taken(tray, HEAP) == first  # it never waits, so whoever waits for the heap has not run in between
    await asyncio.sleep(0)
    assert not waiting.done()
    for row in second:
        tray.put(Conclusion(row, Handled()))
    async with asyncio.timeout(10):
        assert [each.delivery for each in await waiting] == second


async def test_who_takes_as_it_comes_is_woken_though_another_has_taken_a_heap_before_it() -> None:
    tray, row = Tray(), delivery()
    as_it_comes = asyncio.create_task(taken(tray))
    await asyncio.sleep(0)
    for _ in range(HEAP):
        tray.put(Conclusion(delivery(), Handled()))
    assert len(await tray.take_heap()) == HEAP  # at once: whoever was woken has not run in between
    await asyncio.sleep(0)
    assert not as_it_comes.done()
    tray.put(Conclusion(row, Handled()))
    assert await as_it_comes == [row]
