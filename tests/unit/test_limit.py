"""How many of a handler may run at once: places are given in order, and none is ever lost."""

from __future__ import annotations

import asyncio

import pytest

from spectral.core.events.routes import Limit


class Queue:
    """Tasks that want a place, and who got one."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.came: list[str] = []
        self.leave = asyncio.Event()

    async def _stay(self, name: str) -> None:
        async with self.limit:
            self.came.append(name)
            await self.leave.wait()

    async def enter(self, name: str) -> asyncio.Task[None]:
        """Somebody comes, and waits or has a place when this returns."""
        task = asyncio.create_task(self._stay(name))
        await asyncio.sleep(0)
        return task


async def turn_over() -> None:
    """Let whoever was woken run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_there_are_as_many_places_as_it_says() -> None:
    limit = Limit(2)
    seen = []
    for step in (limit.take_now, limit.take_now, limit.give_back):
        step()
        seen.append(limit.is_free)
    assert seen == [True, False, True]


async def test_who_waits_gets_the_place_in_the_order_of_coming() -> None:
    limit = Limit(1)
    limit.take_now()
    queue = Queue(limit)
    tasks = [await queue.enter(name) for name in "abc"]
    assert queue.came == []
    for expected in ("a", "ab", "abc"):
        limit.give_back()
        await turn_over()
        assert queue.came == list(expected)
    queue.leave.set()
    await asyncio.gather(*tasks)
    assert limit.is_free


async def test_a_place_goes_to_whoever_waits_before_it_is_free_for_those_who_do_not() -> None:
    limit = Limit(1)
    limit.take_now()
    queue = Queue(limit)
    waiting = await queue.enter("a")
    limit.give_back()
    assert not limit.is_free  # given to the one that waits, who has not run yet
    queue.leave.set()
    await waiting
    assert limit.is_free


async def test_a_waiter_that_was_cancelled_is_passed_over() -> None:
    limit = Limit(1)
    limit.take_now()
    queue = Queue(limit)
    first, second = [await queue.enter(name) for name in "ab"]
    first.cancel()
    await asyncio.wait({first})
    limit.give_back()
    await turn_over()
    assert queue.came == ["b"]
    queue.leave.set()
    await second
    assert limit.is_free


async def test_a_waiter_that_is_cancelled_just_after_it_was_given_the_place_passes_it_on() -> None:
    limit = Limit(1)
    limit.take_now()
    queue = Queue(limit)
    first, second = [await queue.enter(name) for name in "ab"]
    limit.give_back()  # to the first, which has not run since
    first.cancel()
    await asyncio.wait({first})
    await turn_over()
    assert first.cancelled()
    assert queue.came == ["b"]
    queue.leave.set()
    await second
    assert limit.is_free


async def test_the_last_waiter_that_is_cancelled_with_the_place_in_hand_frees_it() -> None:
    limit = Limit(1)
    told: list[bool] = []
    limit.on_free.append(lambda: told.append(limit.is_free))
    limit.take_now()
    queue = Queue(limit)
    only = await queue.enter("a")
    limit.give_back()
    assert told == []
    only.cancel()
    await asyncio.wait({only})
    assert told == [True]
    assert limit.is_free


async def test_an_error_inside_gives_the_place_back() -> None:
    limit = Limit(1)
    with pytest.raises(ValueError, match="no"):
        async with limit:
            raise ValueError("no")
    assert limit.is_free


async def test_everybody_who_wants_to_know_is_told_when_a_place_is_free_and_only_then() -> None:
    limit = Limit(1)
    told: list[str] = []
    limit.on_free += [lambda: told.append("one"), lambda: told.append("other")]
    limit.take_now()
    queue = Queue(limit)
    waiting = await queue.enter("a")
    limit.give_back()
    assert told == []  # the place went to the one that waits
    queue.leave.set()
    await waiting
    assert told == ["one", "other"]


async def test_whoever_is_told_may_take_the_place_at_once() -> None:
    limit = Limit(1)
    taken: list[int] = []

    def take() -> None:
        if limit.is_free and not taken:
            limit.take_now()
            taken.append(1)

    limit.on_free.append(take)
    async with limit:
        assert not limit.is_free
    assert taken == [1]
    assert not limit.is_free


async def test_places_survive_any_mixture_of_coming_leaving_and_cancelling() -> None:
    limit = Limit(3)
    running, most = 0, 0

    async def one(number: int) -> None:
        nonlocal running, most
        async with limit:
            running += 1
            most = max(most, running)
            try:
                await asyncio.sleep(0.001 * (number % 3))
            finally:
                running -= 1

    tasks = [asyncio.create_task(one(number)) for number in range(200)]
    for number, task in enumerate(tasks):
        if number % 4 == 0:
            await asyncio.sleep(0)
            task.cancel()
    await asyncio.wait(tasks)
    assert (running, most) == (0, 3)
    for _ in range(3):
        assert limit.is_free
        limit.take_now()
    assert not limit.is_free
