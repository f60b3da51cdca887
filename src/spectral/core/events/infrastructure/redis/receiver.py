"""A worker's side of Redis: references from the streams of its lanes, each handed to one worker at a time.

What a worker was handed and did not acknowledge in time is taken over by whoever looks next; everybody looks, now and
then. So it does not matter what becomes of a worker, of its connection, or of a `receive` that was cancelled.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from spectral.core.events.broker import BrokerLostError, Received, Reference
from spectral.core.events.infrastructure.redis.connection import Line, Refusal, retrieve
from spectral.core.events.infrastructure.redis.shape import (
    AT_ONCE,
    Receipt,
    acknowledge,
    give_back,
    leave,
    prepare,
    stream_of,
    take,
    wait,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import timedelta

    from spectral.core.events.broker import BrokerLane
    from spectral.core.events.broker_settings import BrokerSettings

_AT_LEAST_EVERY: Final = 3
_MOMENT: Final = 1.0
"""After so many seconds what was given back may be taken; and so often everybody looks for such."""


class RedisReceiver:
    """Implements `BrokerReceiver`."""

    def __init__(self, settings: BrokerSettings, prefix: str, name: str) -> None:
        self._prefix = prefix
        self._name = name
        redeliver_after = settings.redeliver_after.total_seconds()
        self._idle = int(redeliver_after * 1000)
        self._idle_given_back = int((redeliver_after - min(_MOMENT, redeliver_after / 2)) * 1000)
        self._take_over_every = min(_MOMENT, redeliver_after / 4)
        self._take_over_at = self._took_over_at = 0.0
        # Two, for one of them waits most of the time, and nothing else can be asked on it meanwhile.
        self._in = Line(settings)
        self._out = Line(settings)
        self._streams: list[bytes] = []
        self._look: asyncio.Task[None] | None = None
        self._found: list[Received] = []
        self._rubbish: list[Receipt] = []
        self._unreadable = 0

    async def open(self, lanes: Sequence[BrokerLane]) -> None:
        """See `BrokerReceiver`."""
        await self._drop()
        self._streams = [stream_of(self._prefix, lane).encode() for lane in dict.fromkeys(lanes)]
        self._take_over_at = 0.0
        try:
            await self._out.open()
            await self._in.open()
            await self._out.demand(*(prepare(stream) for stream in self._streams))
        except BaseException:
            await self._drop()
            raise

    def advice(self) -> tuple[str, ...]:
        """See `BrokerReceiver`."""
        return self._out.advice()

    @property
    def unreadable(self) -> int:
        """See `BrokerReceiver`."""
        return self._unreadable

    async def receive(self, limit: int, for_at_most: timedelta) -> list[Received]:
        """See `BrokerReceiver`."""
        if limit < 1 or not self._streams:
            await asyncio.sleep(for_at_most.total_seconds())
            return []
        loop = asyncio.get_running_loop()
        until = loop.time() + for_at_most.total_seconds()
        while not self._found:
            # Whoever is cancelled leaves the look behind, and the next one gets what it finds.
            if self._look is None or self._look.done():
                self._look = asyncio.ensure_future(self._look_around(min(limit, AT_ONCE), until))
                self._look.add_done_callback(retrieve)
            await asyncio.shield(self._look)
            if loop.time() >= until:
                break
        received, self._found = self._found[:limit], self._found[limit:]
        return received

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """See `BrokerReceiver`."""
        await self._out.demand(*acknowledge(_receipts(received)))

    async def give_back(self, received: Sequence[Received]) -> None:
        """See `BrokerReceiver`. For a while this worker takes nothing over: it would get them back itself.

        Not for longer, however often: who is handed what is not for it again and again would leave everything lying.
        """
        pause = self._take_over_every * random.uniform(2, 3)  # noqa: S311  no secret
        now = asyncio.get_running_loop().time()
        self._take_over_at = min(now + pause, self._took_over_at + _AT_LEAST_EVERY * self._take_over_every)
        for answer in await self._out.ask(*give_back(_receipts(received), self._idle_given_back)):
            # Without a group there is nothing to give back: the server was emptied.
            if isinstance(answer, Refusal) and answer.code != "NOGROUP":
                raise self._out.judge(answer)

    async def close(self) -> None:
        """See `BrokerReceiver`. What is still held may be taken by others at once."""
        try:
            await self._in.drop()  # first, so that nothing more is handed out to this worker
            with suppress(BrokerLostError):
                await self._out.ask(*(leave(stream, self._name, self._idle) for stream in self._streams))
        finally:
            await self._drop()

    async def _look_around(self, limit: int, until: float) -> None:
        """Find what there is; if there is nothing, wait for something, but not past the time to take over."""
        await self._clear_away()
        await self._take(limit)
        left = min(until, self._take_over_at) - asyncio.get_running_loop().time()
        if not self._found and not self._rubbish and left > 0:
            await self._wait(left)
        if not self._found:  # or else the next look does it: these must not wait for it
            await self._clear_away()

    async def _take(self, limit: int) -> None:
        """What there is; now and then also what others left lying."""
        now = asyncio.get_running_loop().time()
        takes_over = now >= self._take_over_at
        if takes_over:  # and see to it that the other connection is neither dead nor closed for doing nothing
            await self._out.demand(("PING",))
        # Round and round, so that a full stream does not starve those behind it.
        self._streams = streams = [*self._streams[1:], self._streams[0]]
        idle = self._idle if takes_over else None
        (answer,) = await self._in.demand(take(streams, self._name, limit, idle))
        if takes_over:  # not in step with the others, or the same one would always be the first
            self._took_over_at = now
            self._take_over_at = now + self._take_over_every * random.uniform(0.75, 1.25)  # noqa: S311  no secret
        flat = cast("list[Any]", answer)
        for at, entry, message in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            self._keep(Receipt(streams[at], entry), message)

    async def _wait(self, seconds: float) -> None:
        """What comes in this time: of each stream one message at most; the rest is for the next look."""
        milliseconds = max(1, int(seconds * 1000))  # nothing would mean for ever
        (answer,) = await self._in.ask(wait(self._streams, self._name, milliseconds), block=seconds)
        if isinstance(answer, Refusal):
            if answer.code in {"NOGROUP", "UNBLOCKED"}:  # emptied under our eyes: the next look makes it anew
                return
            raise self._in.judge(answer)
        for stream, entries in cast("list[Any]", answer or []):
            for entry, fields in entries:
                self._keep(Receipt(stream, entry), fields[1])

    def _keep(self, receipt: Receipt, message: bytes) -> None:
        reference = Reference.decode(message)
        if reference is None:
            self._rubbish.append(receipt)
            self._unreadable += 1
        else:
            self._found.append(Received(reference, receipt))

    async def _clear_away(self) -> None:
        """Acknowledge what nobody can read."""
        rubbish, self._rubbish = self._rubbish, []
        await self._in.demand(*acknowledge(rubbish))

    async def _drop(self) -> None:
        """What was found and not handed out is taken over by somebody, if it is still there."""
        await self._in.drop()
        await self._out.drop()
        self._look = None  # it ends by itself, without a connection
        self._found.clear()
        self._rubbish.clear()


def _receipts(received: Iterable[Received]) -> Iterator[Receipt]:
    return (cast("Receipt", each.receipt) for each in received)
