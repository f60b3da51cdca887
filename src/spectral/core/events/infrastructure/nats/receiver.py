"""A worker's side of NATS: asks its lanes for messages, and tells the server which of them are done with.

When `receive` returns, everything the server has handed out to it was returned or given back. When it is cancelled,
what had come is kept for the next call, and what comes after is handed to somebody else in a while.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.events.broker import BrokerLostError, Received, Reference
from spectral.core.events.infrastructure.nats.client import advice_for
from spectral.core.events.infrastructure.nats.connection import Connection
from spectral.core.events.infrastructure.nats.prepare import Preparation
from spectral.core.events.infrastructure.nats.pull import Round
from spectral.core.events.infrastructure.nats.shape import MAX_DELIVER, Limits, Shape, deliveries_of, nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nats.aio.msg import Msg

    from spectral.core.events.broker import BrokerLane
    from spectral.core.events.broker_settings import BrokerSettings

_DONE: Final = b"+ACK"
_NOT_MINE: Final = b"-NAK"
_NEVER_AGAIN: Final = b"+TERM"
_A_MOMENT: Final = timedelta(milliseconds=500)
_SEVERAL: Final = 5
_LONGEST: Final = timedelta(seconds=1)
_AT_ONCE: Final = 0.2
"""Seconds for lanes to say that they have nothing; one that says nothing has as many out as it may."""

_BUSY_SECONDS: Final = 0.05
"""So long only those lanes are asked that had something, while they have more; then all of them again."""

_BUSY_ROUNDS: Final = 10
"""And so many times at most: where few are taken at a time, the others come to their turn all the same."""

_PAUSE: Final = 0.25
"""Seconds before lanes are asked again that would not let this worker wait."""


class _Receipt(NamedTuple):
    """Where a message is acknowledged. A number means another message once the stream was made anew."""

    reply: str
    connection: int
    deliveries: int


class NatsReceiver:
    """Receives references of some lanes. One `receive` at a time; the rest at any time."""

    def __init__(self, settings: BrokerSettings, prefix: str, name: str, *, limits: Limits | None = None) -> None:
        self._settings = settings
        self._shape = Shape.of(settings, prefix, limits)
        self._name = name
        self._connection: Connection | None = None
        self._connections = 0
        self._lanes: list[BrokerLane] = []
        self._busy: set[BrokerLane] = set()
        self._busy_until = 0.0
        self._busy_rounds = 0
        self._round: Round | None = None
        self._unreadable = 0

    @property
    def unreadable(self) -> int:
        """How many messages were no references, since this was made."""
        return self._unreadable

    def advice(self) -> tuple[str, ...]:
        """What the server's operator should change."""
        return advice_for(self._settings)

    async def open(self, lanes: Sequence[BrokerLane]) -> None:
        """Connect, and prepare the lanes; a connection from before is closed.

        Raises:
            BrokerLostError: it cannot be reached, or refuses.
            ConfigurationError: what is there cannot be used; the message says what to change.
        """
        await self.close()
        connection = await Connection.open(self._settings, f"{self._shape.prefix} {self._name}")
        try:
            preparation = Preparation(connection, self._shape)
            for lane in lanes:
                await preparation.prepare(lane)
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        self._connections += 1
        self._lanes = list(dict.fromkeys(lanes))
        self._busy = set()

    async def receive(self, limit: int, for_at_most: timedelta) -> list[Received]:
        """Up to `limit`, as soon as there are any; none if there were none in this time."""
        connection = self._use()
        ends = asyncio.get_running_loop().time() + for_at_most.total_seconds()
        messages = await self._left_over()
        if not messages and self._is_busy():
            self._busy_rounds += 1
            messages = await self._ask(connection, _shared(limit, list(self._busy)[:limit]), None, _AT_ONCE)
        if not messages and (limit < len(self._lanes) or not for_at_most):
            messages = await self._look(connection, limit)
        while not messages and (left := ends - asyncio.get_running_loop().time()) > 0:
            messages = await self._wait(connection, limit, left)
        return await self._handed_out(connection, messages, limit)

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """These need not be handed out again; the server has read so when this returns.

        What came over a connection from before is left out: it is handed out again, and found void.
        """
        await self._answer(received, lambda _: _DONE)

    async def give_back(self, received: Sequence[Received]) -> None:
        """Somebody else may have these, after a moment; after a longer one, if nobody wanted them several times.

        What was handed out for the last time is removed: it would stay in the stream, where nobody is given it nor
        counts it, until there is no room for anything else. The relay finds it missing, and sends it again.
        """
        await self._answer(received, _given_back)

    async def close(self) -> None:
        """Close the connection, if there is one; what nobody was given yet is given back, as far as can be."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            for message in await self._left_over():
                await connection.publish(message.reply, _at_once(message.reply))
        except BrokerLostError:
            pass  # the server will notice by itself
        finally:
            self._round = None
            await connection.close()

    async def _left_over(self) -> list[Msg]:
        """What a call that was cancelled had asked for and got."""
        left = self._round
        if left is None:
            return []
        await left.end()
        self._round = None
        return left.messages

    async def _look(self, connection: Connection, limit: int) -> list[Msg]:
        """What there is at once; where there is less room than lanes, of so many lanes at a time."""
        if limit >= len(self._lanes):
            return await self._ask(connection, self._shares(limit), None, _AT_ONCE)
        lanes = self._in_turn()
        self._busy_until = asyncio.get_running_loop().time() + _BUSY_SECONDS
        for start in range(0, len(lanes), limit):
            messages = await self._ask(connection, dict.fromkeys(lanes[start : start + limit], 1), None, _AT_ONCE)
            if messages:
                return messages
        return []

    async def _wait(self, connection: Connection, limit: int, seconds: float) -> list[Msg]:
        """What there is, or what comes first: for no longer than the server may be silent."""
        seconds = min(seconds, self._settings.answer.total_seconds())
        started = asyncio.get_running_loop().time()
        messages = await self._ask(connection, self._shares(limit), timedelta(seconds=seconds), seconds)
        if not messages and asyncio.get_running_loop().time() - started < seconds / 2:
            await connection.wait(asyncio.Event(), min(seconds / 2, _PAUSE))
        return messages

    async def _ask(
        self, connection: Connection, wanted: dict[BrokerLane, int], waiting: timedelta | None, seconds: float
    ) -> list[Msg]:
        """One round. While it is under way it is remembered, for the case that this call is cancelled."""
        asked = self._round = Round(connection, self._shape)
        await asked.ask(wanted, waiting)
        await asked.wait(seconds)
        await asked.end()
        self._round = None
        self._busy = {lane for lane in wanted if self._shape.lane_key(lane) in asked.brought}
        return asked.messages

    def _shares(self, limit: int) -> dict[BrokerLane, int]:
        """How many to ask of each lane: one of those that had nothing the last time, the rest of the others."""
        self._busy_until = asyncio.get_running_loop().time() + _BUSY_SECONDS
        lanes = self._in_turn()
        if limit <= len(lanes):
            return dict.fromkeys(lanes, 1)
        busy = [lane for lane in lanes if lane in self._busy] or lanes
        return dict.fromkeys(lanes, 1) | _shared(limit - (len(lanes) - len(busy)), busy)

    def _is_busy(self) -> bool:
        """Whether only those lanes are to be asked that had something the last time: not for long, nor often."""
        in_time = asyncio.get_running_loop().time() < self._busy_until and self._busy_rounds < _BUSY_ROUNDS
        return bool(self._busy) and in_time

    def _in_turn(self) -> list[BrokerLane]:
        """The lanes, beginning with another one each time."""
        self._busy_rounds = 0
        self._lanes = self._lanes[1:] + self._lanes[:1]
        return self._lanes

    async def _handed_out(self, connection: Connection, messages: list[Msg], limit: int) -> list[Received]:
        """The references among the messages; what is none is acknowledged, and what is too much given back."""
        received: list[Received] = []
        for message in messages:
            reference = Reference.decode(message.data)
            if reference is None:
                self._unreadable += 1
                await connection.publish(message.reply, _DONE)
            elif len(received) < limit:
                receipt = _Receipt(message.reply, self._connections, deliveries_of(message.reply))
                received.append(Received(reference, receipt))
            else:
                await connection.publish(message.reply, _at_once(message.reply))
        return received

    async def _answer(self, received: Sequence[Received], answer: Callable[[_Receipt], bytes]) -> None:
        connection = self._use()
        receipts = [each.receipt for each in received if isinstance(each.receipt, _Receipt)]
        current = [receipt for receipt in receipts if receipt.connection == self._connections]
        for receipt in current:
            await connection.publish(receipt.reply, answer(receipt))
        if current:
            await connection.flush()

    def _use(self) -> Connection:
        if self._connection is None:
            raise BrokerLostError("the connection to the broker is not open")
        self._connection.check()
        return self._connection


def _at_once(reply: str) -> bytes:
    """For what was not looked at; see `give_back`."""
    return _NEVER_AGAIN if deliveries_of(reply) >= MAX_DELIVER else _NOT_MINE


def _given_back(receipt: _Receipt) -> bytes:
    if receipt.deliveries >= MAX_DELIVER:
        return _NEVER_AGAIN
    # Not in step with those who ask: the same one would be handed it each time.
    delay = min(_LONGEST, _A_MOMENT * 2 ** max(0, receipt.deliveries - _SEVERAL)) * random.uniform(0.5, 1)  # noqa: S311
    return b'-NAK {"delay": %d}' % nanoseconds(delay)


def _shared(limit: int, lanes: Sequence[BrokerLane]) -> dict[BrokerLane, int]:
    """As many of one lane as of another, and together no more than the limit."""
    return {lane: limit // len(lanes) + (index < limit % len(lanes)) for index, lane in enumerate(lanes)}
