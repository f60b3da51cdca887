"""Dispatch: run a handler under its timeout and decide what its failure means.

Here lives the invariant that nothing a handler does escapes: whatever it raises, and whether or not it ever returns, an
outcome follows.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery import runs
from spectral.core.events.describe import describe_many
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import HandlerTimeoutError, TerminalHandlerError
from spectral.core.events.outcome import DeadLetter, Handled, Outcome, Retry
from spectral.core.events.probe import HandlerRanAway
from spectral.core.events.retry import Verdict, classify

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextvars import Context

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.protocols import Transaction

PATIENCE_AT_THE_END: Final = timedelta(seconds=1)
"""Who stops the worker does not wait for handlers that do not want to."""

HANDLED: Final = Handled()


@dataclass(frozen=True, slots=True)
class Execution:
    """How one execution ended; `ran_away` if the handler was left behind, still running."""

    error: BaseException | None = None
    ran_away: bool = False


_RETURNED: Final = Execution()


async def run(desk: Desk, handler: Handler, delivery: Delivery, transaction: Transaction | None = None) -> Execution:
    """Run the handler on this delivery, watched. In a transaction, what is told of it waits until that is over.

    Raises:
        CancelledError: the worker is being stopped; the handler was cancelled too.
    """
    began = time.monotonic()
    activity = desk.watch(delivery, handler)
    told = desk.context_for(delivery, handler, activity.traceparent) if handler.wants_context else None
    try:
        execution = await execute(
            handler, lambda: handler.call(delivery, told, transaction), desk.settings.times.patience, activity.context
        )
    except asyncio.CancelledError as stopped:  # nobody is charged for it
        runs.undo(activity, stopped)
        raise
    except BaseException as error:
        activity.end(error)
        raise
    if transaction is None:
        activity.end(execution.error)
        desk.ended(delivery, began)
    else:
        desk.left(delivery, handler.name, activity, execution.error, began)
    if execution.ran_away:
        desk.probe.tell(HandlerRanAway(delivery, handler.name))
    return execution


async def execute(
    handler: Handler, call: Callable[[], Awaitable[None]], patience: timedelta, context: Context | None = None
) -> Execution:
    """Run the handler in a task of its own, so that it can be left behind.

    Raises:
        CancelledError: the worker is being stopped; the handler was cancelled too.
    """
    task = asyncio.get_running_loop().create_task(_caught(call), name=handler.name, context=context)
    try:
        ended = await _ends(task, handler.timeout_seconds)
    except asyncio.CancelledError:
        task.cancel()
        await _ends(task, min(patience, PATIENCE_AT_THE_END).total_seconds())
        raise
    if ended:
        if task.cancelled():  # a handler that cancels its own task and returns has failed like any other
            return Execution(asyncio.CancelledError())
        error = task.result()
        return _RETURNED if error is None else Execution(error)
    task.cancel()
    ended = await _ends(task, patience.total_seconds())
    return Execution(HandlerTimeoutError(f"did not return within {handler.timeout_seconds:g} s"), ran_away=not ended)


async def _ends(task: asyncio.Task[BaseException | None], within: float) -> bool:
    """Whether it ends in time: `asyncio.wait` for one task, without the sets it makes of it for every event."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    timer = loop.call_later(within, wake)
    try:
        await waiter
    finally:
        timer.cancel()
        task.remove_done_callback(wake)
    return task.done()


async def _caught(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    """As a value: an exit or interrupt raised by a handler must not end the event loop."""
    try:
        reached("handle.before")
        await call()
        reached("handle.after")
    except BaseException as error:  # noqa: BLE001  see above
        return error
    return None


def used_up(handler: Handler) -> TerminalHandlerError:
    """Why a handler that has had its attempts is not run again."""
    return TerminalHandlerError(f"has failed {handler.retry.max_attempts} times, which is all its policy allows")


def conclude(
    delivery: Delivery,
    failures: Sequence[tuple[Handler, BaseException]],
    random: Callable[[], float],
    undone: Sequence[tuple[Handler, BaseException | None]] = (),
) -> Outcome:
    """What becomes of a delivery whose handlers failed like this; none failed: it is handled.

    One handler that may still be retried keeps the row alive; those that took effect are not run again.
    undone: handlers that did well, but what they wrote is not kept, for this reason or because of somebody else. They
        may be retried too, and are not named.
    """
    if not failures:
        return HANDLED
    error = describe_many(((handler.name, failure) for handler, failure in failures), delivery.payload)
    delays = [
        handler.retry.delay(delivery.attempts, random())
        for handler, failure in (*failures, *undone)
        if (failure is None or may_pass(failure, handler)) and handler.retry.allows_another(delivery.attempts)
    ]
    return Retry(error, max(delays)) if delays else DeadLetter(error)


def may_pass(failure: BaseException, handler: Handler) -> bool:
    """Whether it is worth another attempt. A cancellation that nobody asked for is a failure like any other."""
    try:
        return classify(failure, handler.retry) is not Verdict.TERMINAL
    except Exception:  # noqa: BLE001  an error that cannot even be looked at is still only its own row's failure
        return True
