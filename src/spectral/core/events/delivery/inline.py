"""A coroutine run inside another's task, but in a context of its own: a handler without the cost of a task.

What it sets in its context stays there; what it raises is a value; it may wait, and be cancelled, like any other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator
    from contextvars import Context


class Waiting(NamedTuple):
    """A coroutine that has begun, and what it waits for first. Its own wait has to be passed on, once."""

    coroutine: Coroutine[Any, Any, None]
    waits_for: object


def begin(call: Callable[..., Awaitable[None]], *arguments: object) -> Waiting | None:
    """Call the function and run what comes of it up to where it first waits; none: it has returned.

    Raises whatever it raises. To be called inside of the context in which it is to run on.
    """
    try:
        coroutine = cast("Coroutine[Any, Any, None]", call(*arguments))  # handlers are async functions
    except StopIteration as error:
        raise RuntimeError("raised StopIteration before it began") from error  # not to be taken for its return
    try:
        return Waiting(coroutine, coroutine.send(None))
    except StopIteration:
        return None


class InContext:
    """Await it for the error of a coroutine that has begun; none if it returned."""

    __slots__ = ("_begun", "_context")

    def __init__(self, begun: Waiting, context: Context) -> None:
        self._begun = begun
        self._context = context

    def __await__(self) -> Generator[Any, Any, BaseException | None]:
        run, (coroutine, waits_for) = self._context.run, self._begun
        closing = False
        try:
            while True:
                try:
                    answer = yield waits_for
                except GeneratorExit:  # the task itself is thrown away
                    closing = True
                    run(coroutine.close)
                    raise
                except BaseException as error:  # noqa: BLE001  a cancellation: the handler may have something to say to it
                    waits_for = run(coroutine.throw, error)
                else:
                    waits_for = run(coroutine.send, answer)
        except StopIteration:
            return None
        except BaseException as error:  # an exit or interrupt raised by a handler must not end the loop
            if closing:
                raise
            return error


async def is_cancelled() -> bool:
    """Whether a cancellation is on its way to this task; one that somebody has caught is not, though it counts."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return True
    return False
