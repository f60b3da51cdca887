"""A connection whose socket the event loop watches for good, and not anew for every answer.

To begin watching and to end it costs the client more than all else it does for a quick statement. While nobody waits
there is nothing to read, so watching on costs nothing; should there be something all the same, it ends until the next
wait. It ends before the socket is closed, always: its number may be the next one's at once.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import psycopg
from psycopg.waiting import Ready, Wait

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")

_READ: Final = int(Wait.R)
_Selector: Final[type[selectors.BaseSelector]] = getattr(selectors, "PollSelector", selectors.SelectSelector)


class WatchedConnection(psycopg.AsyncConnection[Any]):
    """The driver's connection, with a cheaper way to wait; whatever is done with it waits here."""

    _loop: asyncio.AbstractEventLoop | None = None  # the one that watches the socket, while it does
    _socket = -1
    _waiter: asyncio.Future[Ready] | None = None
    _deadline = math.inf
    _timer: asyncio.TimerHandle | None = None
    _looks_at = math.inf

    async def wait(self, gen: PQGen[T], interval: float | None = None, timeout: float | None = None) -> T:  # noqa: ASYNC109  the driver's signature
        """See the driver's."""
        if interval is not None or timeout is not None:  # whoever waits for notifications, and perhaps in vain
            given = {name: value for name, value in (("interval", interval), ("timeout", timeout)) if value is not None}
            self.rest()
            return await super().wait(gen, **given)
        try:
            return await self.completed(gen)
        except (asyncio.CancelledError, KeyboardInterrupt) as interruption:
            # The statement is to be ended too, so that the session can be used on: the driver knows how.
            return await super().wait(cast("PQGen[T]", _Interrupted(gen, interruption)))

    async def completed(self, running: PQGen[T], within: float = math.inf) -> T:
        """Drive the driver's generator.

        Raises:
            TimeoutError: there was no answer in time; the connection cannot be used any more.
        """
        loop = asyncio.get_running_loop()
        try:
            wanted = next(running)
            self._deadline = loop.time() + within
            if self._deadline < self._looks_at:
                self._look_later(loop)
            ready = await self._ready(wanted, loop)
            while True:
                wanted = running.send(ready)
                if self._has_more(wanted):
                    await asyncio.sleep(0)  # whoever reads a lot must not hold up everybody
                    ready = Ready.R
                else:
                    ready = await self._ready(wanted, loop)
        except StopIteration as done:
            result: T = done.value
            return result
        except BaseException:
            self.rest()  # the driver may have closed the socket
            raise

    async def _ready(self, wanted: int, loop: asyncio.AbstractEventLoop) -> Ready:
        self._waiter = waiter = loop.create_future()
        try:
            if self._loop is not loop:  # or another one watches, which may have ended, or runs in another thread
                self.rest()
                self._socket = self.pgconn.socket
                loop.add_reader(self._socket, self._readable)
                self._loop = loop
            state = await waiter if wanted == _READ else await self._ready_to_write(waiter, loop)
        except (OSError, ValueError) as error:  # the socket was closed under it
            raise psycopg.OperationalError("the connection was closed") from error
        finally:
            if self._waiter is waiter:
                self._waiter = None
        if state is Ready.NONE:
            raise TimeoutError
        return state

    def _has_more(self, wanted: int) -> bool:
        """Whether there is more to read although what came was not all.

        Some loops (uvloop) tell of a socket's error once and never again. A server that ends sends its reason, then the
        end; if something was written to it in between, the error comes with the first of them.
        """
        return wanted == _READ and self._loop is not None and _is_readable(self._socket)

    async def _ready_to_write(self, waiter: asyncio.Future[Ready], loop: asyncio.AbstractEventLoop) -> Ready:
        """For what does not fit into the socket at once."""
        loop.add_writer(self._socket, _note, waiter, Ready.W)
        try:
            return await waiter
        finally:
            loop.remove_writer(self._socket)

    def _readable(self) -> None:
        if self._waiter is None:
            self.rest()
        else:
            _note(self._waiter, Ready.R)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._deadline, self._look, loop)
        self._looks_at = self._deadline

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for many waits: whoever waits by now may have begun later than when it was set."""
        self._timer, self._looks_at = None, math.inf
        if self._waiter is None or self._deadline == math.inf:
            return
        if loop.time() < self._deadline:
            self._look_later(loop)
            return
        # After a loop that stood still the time is up and the answer is there: then the answer counts.
        _note(self._waiter, Ready.R if self._loop is not None and _is_readable(self._socket) else Ready.NONE)

    def give_up(self) -> None:
        """Have whoever waits for an answer wait no longer: `completed` raises `TimeoutError`."""
        if self._waiter is not None:
            _note(self._waiter, Ready.NONE)

    def rest(self) -> None:
        """Have the socket watched no longer, until the next wait."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._socket)

    async def close(self) -> None:
        """See the driver's."""
        self.rest()
        await super().close()


class _Interrupted:
    """A generator in whose wait somebody was interrupted: says so once, then goes on."""

    def __init__(self, running: PQGen[Any], interruption: BaseException) -> None:
        self._running = running
        self._interruption: BaseException | None = interruption

    def __next__(self) -> Wait:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            raise interruption
        return next(self._running)

    def send(self, ready: Ready) -> Wait:
        """See the driver's."""
        return self._running.send(ready)


def _is_readable(socket: int) -> bool:
    with _Selector() as selector:  # one that opens no file of its own, where there is
        selector.register(socket, selectors.EVENT_READ)
        return bool(selector.select(0))


def _note(waiter: asyncio.Future[Ready], state: Ready) -> None:
    if not waiter.done():
        waiter.set_result(state)
