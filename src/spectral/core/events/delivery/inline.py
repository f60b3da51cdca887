"""A coroutine run inside another's task, but in a context of its own: a handler without the cost of a task.

What it sets in its context stays there; what it raises is a value; it may wait, and be cancelled, like any other.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Generator
    from contextvars import Context


class InContext:
    """Await it for the coroutine's error; none if it returned."""

    __slots__ = ("_context", "_coroutine")

    def __init__(self, coroutine: Awaitable[None], context: Context) -> None:
        self._coroutine = cast("Coroutine[Any, Any, None]", coroutine)  # handlers are async functions
        self._context = context

    def __await__(self) -> Generator[Any, Any, BaseException | None]:
        run, coroutine = self._context.run, self._coroutine
        closing = False
        try:
            waits_for = run(coroutine.send, None)
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
