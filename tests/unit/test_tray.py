"""What is concluded is taken in heaps, in its order, and no row twice in one."""

from __future__ import annotations

import asyncio

from spectral.core.events.delivery.tray import Tray
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
