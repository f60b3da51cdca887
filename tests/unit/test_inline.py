"""A handler inside its runner's task: to itself it is a task like any other, and nothing of it gets out."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from spectral.core.events.delivery.inline import InContext, begin

SEEN: ContextVar[str] = ContextVar("SEEN", default="untouched")


async def inside(function: Callable[[], Awaitable[None]], context: Context | None = None) -> BaseException | None:
    """The function in a context of its own, as a runner has it."""
    context = context or copy_context()
    try:
        waiting = context.run(begin, function)
    except BaseException as error:  # noqa: BLE001  as a value, like what comes after it has waited
        return error
    return None if waiting is None else await InContext(waiting, context)


async def run(function: Callable[[], Awaitable[None]]) -> BaseException | None:
    """The same, inside this task."""
    async with asyncio.timeout(10):
        return await inside(function)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def task_of(function: Callable[[], Awaitable[None]]) -> asyncio.Task[BaseException | None]:
    return asyncio.create_task(inside(function))


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


# results


async def test_one_that_never_waits_returns_nothing() -> None:
    ran: list[int] = []

    async def returns() -> None:
        ran.append(1)

    assert await run(returns) is None
    assert ran == [1]


async def test_one_that_waits_is_woken_and_returns_nothing() -> None:
    heard: list[str] = []
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        await asyncio.sleep(0)
        heard.append(await future)

    task = task_of(waits)
    await asyncio.sleep(0)
    future.set_result("word")
    assert await task is None
    assert heard == ["word"]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        OSError("x"),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        BaseException("x"),
        StopAsyncIteration(),
        ExceptionGroup("x", [OSError()]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_it_raises_is_a_value(error: BaseException, *, waits: bool) -> None:
    async def raises() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    assert await run(raises) is error


async def test_a_stop_iteration_is_an_error_and_no_return() -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise StopIteration

    assert isinstance(await run(raises), RuntimeError)


async def test_an_error_of_what_it_waits_for_reaches_it() -> None:
    caught: list[BaseException] = []

    async def catches() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, OSError("away"))
        try:
            await future
        except OSError as error:
            caught.append(error)

    assert await run(catches) is None
    assert [str(error) for error in caught] == ["away"]


async def test_one_that_stops_an_iteration_before_it_begins_has_not_returned() -> None:
    def stops() -> Awaitable[None]:
        raise StopIteration

    assert isinstance(await run(stops), RuntimeError)


# its context


async def test_what_it_sets_in_its_context_stays_there() -> None:
    inside: list[str] = []

    async def sets() -> None:
        SEEN.set("by the handler")
        await asyncio.sleep(0)
        inside.append(SEEN.get())  # also after it has waited

    assert await run(sets) is None
    assert (inside, SEEN.get()) == (["by the handler"], "untouched")


async def test_it_sees_the_context_it_was_given_and_so_do_its_tasks() -> None:
    context = copy_context()
    context.run(SEEN.set, "given")
    seen: list[str] = []

    async def child() -> None:
        seen.append(SEEN.get())

    async def looks() -> None:
        seen.append(SEEN.get())
        await asyncio.create_task(child())

    assert await inside(looks, context) is None
    assert seen == ["given", "given"]


async def test_its_cleaning_up_runs_in_its_context_too() -> None:
    seen: list[str] = []

    async def cleans_up() -> None:
        SEEN.set("by the handler")
        try:
            await for_ever()
        finally:
            seen.append(SEEN.get())

    task = task_of(cleans_up)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert seen == ["by the handler"]


async def test_several_in_one_task_do_not_see_each_other() -> None:
    seen: list[str] = []

    async def sets() -> None:
        seen.append(SEEN.get())
        SEEN.set("left behind")

    for _ in range(3):
        assert await run(sets) is None
    assert seen == ["untouched"] * 3


# cancellation


async def test_a_cancellation_reaches_it_and_is_its_error() -> None:
    reached: list[str] = []

    async def hangs() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            reached.append("cancelled")
            raise

    task = task_of(hangs)
    await asyncio.sleep(0)
    task.cancel()
    assert isinstance(await task, asyncio.CancelledError)  # a value: what it means is the runner's to say
    assert reached == ["cancelled"]
    assert task.cancelling() == 1


async def test_it_may_ignore_its_cancellation() -> None:
    async def ignores() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    task = task_of(ignores)
    await asyncio.sleep(0)
    task.cancel()
    assert await task is None


async def test_it_may_answer_its_cancellation_with_another_error() -> None:
    async def translates() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise OSError("interrupted") from None

    task = task_of(translates)
    await asyncio.sleep(0)
    task.cancel()
    assert isinstance(await task, OSError)


async def test_a_second_cancellation_reaches_its_cleaning_up() -> None:
    reached: list[int] = []

    async def stubborn() -> None:
        for number in range(2):
            try:
                await for_ever()
            except asyncio.CancelledError:
                reached.append(number)

    task = task_of(stubborn)
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    assert await task is None
    assert reached == [0, 1]


async def test_its_task_is_the_runners_so_that_it_can_be_cancelled_from_inside() -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    task = task_of(cancels_itself)
    assert isinstance(await task, asyncio.CancelledError)


# what asks for the current task


async def test_a_timeout_inside_ends_what_it_surrounds_and_nothing_else() -> None:
    ran: list[str] = []

    async def times_out() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await for_ever()
        ran.append("after")
        await asyncio.sleep(0)

    assert await run(times_out) is None
    assert ran == ["after"]
    assert cancelling() == 0


async def test_a_timeout_that_it_lets_out_is_a_value() -> None:
    async def times_out() -> None:
        async with asyncio.timeout(0.001):
            await for_ever()

    assert isinstance(await run(times_out), TimeoutError)
    assert cancelling() == 0


async def test_a_timeout_around_it_ends_it() -> None:
    reached: list[str] = []

    async def hangs() -> None:
        try:
            await for_ever()
        finally:
            reached.append("end")

    async def within() -> None:
        async with asyncio.timeout(0.001):
            error = await inside(hangs)
            assert isinstance(error, asyncio.CancelledError)
            raise error

    with pytest.raises(TimeoutError):
        await within()
    assert reached == ["end"]


async def test_a_group_of_tasks_inside_waits_for_all_of_them() -> None:
    done: list[int] = []

    async def child(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)

    async def nested() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(child(1))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(child(2))
            assert 2 in done

    assert await run(nested) is None
    assert sorted(done) == [1, 2]


async def test_a_failure_in_a_group_of_tasks_inside_is_a_value_and_leaves_no_cancellation_behind() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("away")

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await for_ever()  # the group cancels its parent, which is the runner's task

    error = await run(grouped)
    assert isinstance(error, ExceptionGroup)
    assert cancelling() == 0


async def test_a_cancellation_ends_a_group_of_tasks_inside_with_all_of_them() -> None:
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            await for_ever()
        finally:
            ended.append(number)

    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(child(number))

    task = task_of(grouped)
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    assert isinstance(await task, asyncio.CancelledError)
    assert sorted(ended) == [0, 1, 2]


# thrown away


def half_way(function: Callable[[], Awaitable[None]]) -> Coroutine[Any, Any, BaseException | None]:
    """A runner that has begun with the function and is nobody's task."""

    begun = inside(function)
    begun.send(None)
    return begun


async def test_it_is_closed_with_its_task_and_may_clean_up() -> None:
    ended: list[str] = []

    async def hangs() -> None:
        SEEN.set("by the handler")
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(SEEN.get())

    half_way(hangs).close()
    assert ended == ["by the handler"]


async def test_it_is_closed_when_nobody_refers_to_its_task_any_more() -> None:
    ended: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append("end")

    begun = half_way(hangs)
    del begun
    gc.collect()
    assert ended == ["end"]


async def test_one_that_does_not_want_to_be_closed_is_told_so_and_its_error_is_not_swallowed() -> None:
    async def clings() -> None:
        while True:
            try:
                await asyncio.sleep(0)
            except GeneratorExit:
                break
        await asyncio.sleep(0)

    begun = half_way(clings)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        begun.close()


async def test_what_it_raises_while_it_is_closed_is_not_taken_for_its_result() -> None:
    async def objects() -> None:
        try:
            await asyncio.sleep(0)
        except GeneratorExit:
            raise OSError("while closing") from None

    begun = half_way(objects)
    with pytest.raises(OSError, match="while closing"):
        begun.close()
