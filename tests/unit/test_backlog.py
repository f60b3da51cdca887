"""Rows that wait for a lane: in order, shared out fairly, and nothing is lost when some are put back."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from spectral.core.events.delivery.backlog import Backlog
from spectral.core.events.lease import Delivery


def rows(*numbers: int) -> list[Delivery]:
    """Stand-ins: the backlog never looks at what it keeps."""
    return cast("list[Delivery]", list(numbers))


async def soon(awaited: asyncio.Task[deque[Delivery]]) -> list[Delivery]:
    async with asyncio.timeout(1):
        return list(await awaited)


async def test_one_lane_takes_rows_in_their_order_up_to_its_limit() -> None:
    backlog = Backlog(1)
    backlog.put(rows(1, 2, 3))
    assert list(await backlog.take(2)) == rows(1, 2)
    assert list(await backlog.take(2)) == rows(3)


async def test_a_lane_takes_no_more_than_its_share() -> None:
    backlog = Backlog(3)
    backlog.put(rows(1, 2, 3, 4, 5, 6, 7))
    assert list(await backlog.take(10)) == rows(1, 2, 3)
    assert list(await backlog.take(10)) == rows(4, 5)
    assert list(await backlog.take(10)) == rows(6)
    assert list(await backlog.take(10)) == rows(7)


async def test_what_is_put_back_comes_first_and_in_its_order() -> None:
    backlog = Backlog(1)
    backlog.put(rows(1, 2, 3, 4))
    taken = await backlog.take(2)
    backlog.put_back(taken)
    assert list(await backlog.take(4)) == rows(1, 2, 3, 4)


async def test_a_lane_waits_until_there_is_something() -> None:
    backlog = Backlog(1)
    waiting = asyncio.create_task(backlog.take(10))
    await asyncio.sleep(0)
    assert not waiting.done()
    backlog.put(rows(1))
    assert await soon(waiting) == rows(1)


async def test_of_two_lanes_that_wait_for_one_row_one_goes_on_waiting() -> None:
    backlog = Backlog(2)
    first, second = asyncio.create_task(backlog.take(10)), asyncio.create_task(backlog.take(10))
    await asyncio.sleep(0)
    backlog.put(rows(1))
    await asyncio.wait({first, second}, return_when=asyncio.FIRST_COMPLETED, timeout=1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [first.done(), second.done()].count(True) == 1
    backlog.put(rows(2))
    assert sorted([*await soon(first), *await soon(second)], key=str) == rows(1, 2)


async def test_nothing_put_wakes_nobody() -> None:
    backlog = Backlog(1)
    waiting = asyncio.create_task(backlog.take(10))
    await asyncio.sleep(0)
    backlog.put([])
    backlog.put_back([])
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_lane_that_is_cancelled_while_it_waits_takes_nothing_along() -> None:
    backlog = Backlog(1)
    waiting = asyncio.create_task(backlog.take(10))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    backlog.put(rows(1))
    assert list(await backlog.take(10)) == rows(1)


async def test_what_is_cleared_is_handed_out_to_be_given_back() -> None:
    backlog = Backlog(1)
    backlog.put(rows(1, 2))
    backlog.put_back(rows(0))
    assert backlog.clear() == rows(0, 1, 2)
    assert backlog.clear() == []
