"""The relay's side of NATS: many publishes in flight, and the server's word for each of them."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.infrastructure.nats.client import advice_for
from spectral.core.events.infrastructure.nats.connection import Connection, RefusedError
from spectral.core.events.infrastructure.nats.prepare import Preparation
from spectral.core.events.infrastructure.nats.shape import Limits, Shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nats.aio.msg import Msg

    from spectral.core.events.broker import BrokerLane, Reference
    from spectral.core.events.broker_settings import BrokerSettings

_IN_FLIGHT: Final = 1_000
_BEFORE_OTHERS: Final = 100
"""So many are written before the rest of the program has a turn."""

_MESSAGE_ID: Final = "Nats-Msg-Id"
_NOT_FOUND: Final = 404
_STORE_FAILED: Final = 10077
_NO_ROOM: Final = frozenset({10002, 10023, 10028, 10047})
"""Of the account, of the server, of its memory, of its disk."""


class NatsSender:
    """Sends references into the stream of their generation."""

    def __init__(self, settings: BrokerSettings, prefix: str, *, limits: Limits | None = None) -> None:
        self._settings = settings
        self._shape = Shape.of(settings, prefix, limits)
        self._opened: _Opened | None = None

    async def open(self) -> None:
        """Connect; a connection from before is closed.

        Raises:
            BrokerLostError: it cannot be reached, or refuses.
            ConfigurationError: the URL has no usable address.
        """
        await self.close()
        connection = await Connection.open(self._settings, f"{self._shape.prefix} relay")
        opened = _Opened(connection, self._shape)
        try:
            await connection.subscribe(f"{opened.inbox}.>", opened.note)
        except BaseException:
            await connection.close()
            raise
        self._opened = opened

    async def prepare(self, lane: BrokerLane) -> None:
        """Create or correct the lane's stream and consumer, once for each connection.

        Raises:
            ConfigurationError: something else is in the way; the message says what.
        """
        await self._use().preparation.prepare(lane)

    async def send(self, references: Sequence[Reference]) -> list[Reference]:
        """Send; the server has written them to its files when this returns. Answers those it has no room for."""
        opened = self._use()
        refused: list[Reference] = []
        for start in range(0, len(references), _IN_FLIGHT):
            refused += await opened.send(references[start : start + _IN_FLIGHT], self._settings.answer.total_seconds())
        return refused

    async def waiting(self, lane: BrokerLane) -> int:
        """How many messages of the lane wait or are handed out and not acknowledged.

        Not those that were handed out too often: nobody will get them any more.
        """
        opened = self._use()
        call = f"CONSUMER.INFO.{self._shape.stream_name(lane.generation)}.{self._shape.consumer_name(lane)}"
        await opened.preparation.prepare(lane)
        try:
            return _counted(await opened.connection.ask(call))
        except RefusedError as refusal:
            # Somebody removed it. What waited is still in the stream, or gone with it: a new consumer tells.
            opened.preparation.forget(lane.generation)
            if refusal.code != _NOT_FOUND:
                raise BrokerLostError(f"NATS does not count what waits: {refusal.description}") from None
        await opened.preparation.prepare(lane)
        try:
            return _counted(await opened.connection.ask(call))
        except RefusedError as refusal:
            raise BrokerLostError(f"NATS does not count what waits: {refusal.description}") from None

    async def forget(self, generation: int) -> None:
        """Remove the generation's stream, and its consumers with it."""
        await self._use().preparation.remove_stream(generation)

    async def check(self) -> None:
        """See whether the server still answers."""
        await self._use().connection.flush()

    def advice(self) -> tuple[str, ...]:
        """What the server's operator should change."""
        return advice_for(self._settings)

    async def close(self) -> None:
        """Close the connection, if there is one."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.connection.close()

    def _use(self) -> _Opened:
        if self._opened is None:
            raise BrokerLostError("the connection to the broker is not open")
        self._opened.connection.check()
        return self._opened


class _Opened:
    """A connection with what was prepared on it and what is in flight."""

    def __init__(self, connection: Connection, shape: Shape) -> None:
        self.connection = connection
        self.preparation = Preparation(connection, shape)
        self.inbox = connection.inbox()
        self._shape = shape
        self._flights: dict[str, _Flight] = {}
        self._numbers = count()

    async def send(self, references: Sequence[Reference], seconds: float) -> list[Reference]:
        """Publish all, then wait for the server's word for each, for so long at most."""
        number = str(next(self._numbers))
        flight = self._flights[number] = _Flight(references)
        try:
            for index, reference in enumerate(references):
                await self.connection.publish(
                    self._shape.subject(reference),
                    reference.encode(),
                    reply=f"{self.inbox}.{number}.{index}",
                    headers={_MESSAGE_ID: reference.message_id},
                )
                if index % _BEFORE_OTHERS == _BEFORE_OTHERS - 1:
                    await asyncio.sleep(0)
            if not await self.connection.wait(flight.landed, seconds):
                raise self.connection.give_up(f"the broker did not confirm what was sent within {seconds:g} seconds")
        finally:
            del self._flights[number]
        if flight.lost is not None:
            self._forget_streams(references)
            raise BrokerLostError(flight.lost)
        return flight.refused

    async def note(self, message: Msg) -> None:
        """The server's word for one publish; what comes after its flight was given up is ignored."""
        number, _, index = message.subject.removeprefix(f"{self.inbox}.").partition(".")
        flight = self._flights.get(number)
        if flight is not None and index.isdecimal():
            flight.note(int(index), message)

    def _forget_streams(self, references: Sequence[Reference]) -> None:
        for generation in {reference.lane.generation for reference in references}:
            self.preparation.forget(generation)


class _Flight:
    """References that were published together, until the server has said something about each."""

    def __init__(self, references: Sequence[Reference]) -> None:
        self.refused: list[Reference] = []
        self.lost: str | None = None
        self.landed = asyncio.Event()
        self._open = dict(enumerate(references))

    def note(self, index: int, message: Msg) -> None:
        """What became of one."""
        reference = self._open.pop(index, None)
        if reference is None:
            return
        problem = _problem(message)
        if problem is not None and problem.no_room:
            self.refused.append(reference)
        elif problem is not None:
            self.lost = problem.reason
        if not self._open or self.lost is not None:
            self.landed.set()


class _Problem(NamedTuple):
    """Why a message was not kept."""

    no_room: bool
    reason: str


def _problem(message: Msg) -> _Problem | None:
    """None if the server has it, now or from before."""
    if message.headers:  # it is not the server's word but that of the connection: nobody is there
        return _Problem(no_room=False, reason="the broker has no stream for what was sent")
    try:
        answer = json.loads(message.data)
        error = answer.get("error")
        if error is None:
            return None
        code, description = int(error.get("err_code", 0)), str(error.get("description", "no reason"))
    except (ValueError, TypeError, AttributeError):
        return _Problem(no_room=False, reason="the broker's answer cannot be read; is it a NATS server?")
    full = code in _NO_ROOM or (code == _STORE_FAILED and "maximum" in description)
    return _Problem(no_room=full, reason=f"NATS did not keep what was sent: {description}")


def _counted(found: Mapping[str, object]) -> int:
    """Undelivered and unacknowledged."""
    numbers = (found.get("num_pending"), found.get("num_ack_pending"))
    return sum(number for number in numbers if isinstance(number, int))
