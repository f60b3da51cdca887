"""Whatever a handler does, an outcome follows; and which one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from spectral.core.events import Consumer, RetryPolicy, TerminalHandlerError
from spectral.core.events.consumer import Handler
from spectral.core.events.delivery.dispatch import Execution, conclude, execute
from spectral.core.events.failure import HandlerTimeoutError
from spectral.core.events.outcome import DeadLetter, Handled, Outcome, Retry
from tests.unit.test_routes import delivery

SOON = timedelta(seconds=0.05)
PATIENT = RetryPolicy(max_retries=5, base=timedelta(seconds=10), cap=timedelta(seconds=100))
IMPATIENT = RetryPolicy(max_retries=0)


def handler(name: str = "platform.project", retry: RetryPolicy = PATIENT, timeout: timedelta = SOON) -> Handler:
    async def project() -> None: ...

    return Consumer("platform").handler(project, name=name, retry=retry, timeout=timeout)


async def run(call: Callable[[], Awaitable[None]], within: timedelta = SOON) -> Execution:
    async with asyncio.timeout(10):
        return await execute(handler(timeout=within), call, SOON)


# execute


async def test_a_handler_that_returns_has_no_error() -> None:
    async def returns() -> None:
        await asyncio.sleep(0)

    assert await run(returns) == Execution(None, ran_away=False)


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
async def test_whatever_it_raises_is_a_value(error: BaseException) -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise error

    execution = await run(raises)
    assert (execution.error, execution.ran_away) == (error, False)


async def test_what_is_raised_before_there_is_anything_to_await_is_a_value_too() -> None:
    def refuses() -> Awaitable[None]:
        raise ValueError("the payload does not fit")

    assert isinstance((await run(refuses)).error, ValueError)


async def test_a_handler_that_does_not_return_in_time_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def hangs() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    execution = await run(hangs)
    assert isinstance(execution.error, HandlerTimeoutError)
    assert str(execution.error) == "did not return within 0.05 s"
    assert (execution.ran_away, cancelled.is_set()) == (False, True)


async def test_a_handler_that_succeeds_on_being_cancelled_was_too_late_all_the_same() -> None:
    async def takes_it_as_a_hint() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return

    assert isinstance((await run(takes_it_as_a_hint)).error, HandlerTimeoutError)


async def test_a_handler_that_does_not_obey_is_left_behind() -> None:
    let_go, left = asyncio.Event(), asyncio.Event()

    async def disobeys() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        left.set()

    execution = await run(disobeys)
    assert isinstance(execution.error, HandlerTimeoutError)
    assert execution.ran_away
    let_go.set()
    await left.wait()


async def test_a_handler_whose_task_ends_cancelled_has_failed_and_nobody_else_is_cancelled() -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    execution = await run(cancels_itself)
    assert isinstance(execution.error, asyncio.CancelledError)


async def test_who_waits_for_it_may_be_cancelled_and_takes_it_along() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()

    waiting = asyncio.create_task(run(hangs, timedelta(seconds=60)))
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert cancelled.is_set()


# conclude


def concluded(*failures: tuple[Handler, BaseException], attempts: int = 1, random: float = 1.0) -> Outcome:
    return conclude(delivery(attempts=attempts), failures, lambda: random)


def test_no_failure_is_handled() -> None:
    assert concluded() == Handled()


def test_a_transient_failure_is_retried_after_the_policys_delay() -> None:
    assert concluded((handler(), OSError("x"))) == Retry("OSError: platform.project: x", timedelta(seconds=10))
    assert concluded((handler(), OSError("x")), attempts=3, random=0.5) == Retry(
        "OSError: platform.project: x", timedelta(seconds=20)
    )


@pytest.mark.parametrize("error", [TerminalHandlerError("x"), ValueError("x")])
def test_a_terminal_failure_is_a_dead_letter(error: Exception) -> None:
    assert concluded((handler(), error)) == DeadLetter(f"{type(error).__name__}: platform.project: x")


@pytest.mark.parametrize(("attempts", "outcome"), [(5, Retry), (6, DeadLetter), (7, DeadLetter)])
def test_the_last_attempt_is_a_dead_letter(attempts: int, outcome: type[object]) -> None:
    assert isinstance(concluded((handler(), OSError("x")), attempts=attempts), outcome)


def test_a_cancellation_that_nobody_asked_for_is_a_failure_like_any_other() -> None:
    assert isinstance(concluded((handler(), asyncio.CancelledError())), Retry)


def test_one_handler_that_may_be_retried_keeps_the_row_alive() -> None:
    failures = (handler("platform.a", IMPATIENT), OSError("x")), (handler("platform.b"), OSError("y"))
    assert isinstance(concluded(*failures), Retry)


def test_of_several_delays_the_longest_counts() -> None:
    slow = RetryPolicy(base=timedelta(seconds=50))
    failures = (handler("platform.a", slow), OSError("x")), (handler("platform.b"), OSError("y"))
    assert concluded(*failures) == Retry("OSError: platform.a: x (also: platform.b OSError)", timedelta(seconds=50))


class SpikyError(Exception):
    """Whose every unknown attribute raises something else than AttributeError."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"do not ask for {name}")


def test_an_error_that_does_not_want_to_be_looked_at_has_an_outcome() -> None:
    assert isinstance(concluded((handler(), SpikyError("x"))), Retry | DeadLetter)


def test_a_group_that_holds_the_same_ones_again_and_again_has_an_outcome_in_no_time() -> None:
    error: Exception = OSError("inmost")
    for _ in range(30):
        error = ExceptionGroup("more", [error, error])
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(concluded((handler(), error))), daemon=True)
    thread.start()
    thread.join(5)
    assert outcomes
