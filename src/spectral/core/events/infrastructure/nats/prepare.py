"""See to it that a lane's stream and consumer are there and as they have to be.

A stream that can be corrected is corrected, one that cannot is the operator's to remove. A consumer that cannot be
corrected stays if it serves: two versions of this program must not take it from each other. If it does not, it is made
anew: it only remembers who has which message, and whoever gets a message twice finds it void.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.nats.connection import RefusedError
from spectral.core.events.infrastructure.nats.shape import differing, is_usable

if TYPE_CHECKING:
    from spectral.core.events.broker import BrokerLane
    from spectral.core.events.infrastructure.nats.connection import Connection
    from spectral.core.events.infrastructure.nats.shape import Shape

_NOT_FOUND: Final = 404
_STREAM_NAME_IN_USE: Final = 10058
_ASKED_WRONG: Final = frozenset({400, 403, 409})
# Not enabled (for the account), more replicas than servers, another kind of update, no room to set aside.
_OPERATORS: Final = frozenset({10028, 10039, 10047, 10052, 10074, 10076})


class Preparation:
    """What was prepared on one connection."""

    def __init__(self, connection: Connection, shape: Shape) -> None:
        self._connection = connection
        self._shape = shape
        self._generations: set[int] = set()
        self._lanes: set[BrokerLane] = set()

    async def prepare(self, lane: BrokerLane) -> None:
        """Create or correct what the lane needs, unless that was done before.

        Raises:
            ConfigurationError: the server will not; the message says what to change.
        """
        if lane in self._lanes:
            return
        if lane.generation not in self._generations:
            await self._stream(lane.generation)
            self._generations.add(lane.generation)
        await self._consumer(lane)
        self._lanes.add(lane)

    def forget(self, generation: int) -> None:
        """What was prepared for the generation may be gone."""
        self._generations.discard(generation)
        self._lanes = {lane for lane in self._lanes if lane.generation != generation}

    async def _stream(self, generation: int) -> None:
        """Looked for before it is made: a server without room for another says so before it sees that it exists."""
        wanted = self._shape.stream(generation)
        name = self._shape.stream_name(generation)
        existing = await self._existing(name)
        if existing is None:
            try:
                await self._connection.ask(f"STREAM.CREATE.{name}", wanted)
            except RefusedError as refusal:
                if refusal.reason_code != _STREAM_NAME_IN_USE:
                    raise _told(refusal, f"the stream {name}", "change what the server allows this account") from None
                existing = await self._existing(name)  # somebody else was quicker
        if existing is None or not differing(existing, wanted):
            return
        try:
            await self._connection.ask(f"STREAM.UPDATE.{name}", {**existing, **wanted})
        except RefusedError as refusal:
            raise _told(refusal, f"to correct the stream {name}", _removing(name)) from None

    async def _existing(self, name: str) -> dict[str, object] | None:
        """How the stream is made; none if it is not there."""
        try:
            found = await self._connection.ask(f"STREAM.INFO.{name}")
        except RefusedError as refusal:
            if refusal.code == _NOT_FOUND:
                return None
            raise _told(refusal, f"to show the stream {name}", _removing(name)) from None
        return cast("dict[str, object]", found.get("config") or {})

    async def _consumer(self, lane: BrokerLane) -> None:
        stream = self._shape.stream_name(lane.generation)
        name = self._shape.consumer_name(lane)
        wanted = self._shape.consumer(lane)
        call = f"CONSUMER.CREATE.{stream}.{name}.{wanted['filter_subject']}"
        body: dict[str, object] = {"stream_name": stream, "config": wanted}
        try:
            await self._connection.ask(call, body)
        except RefusedError as refusal:
            if refusal.code == _NOT_FOUND:
                self.forget(lane.generation)
                raise BrokerLostError(f"the stream {stream} is gone") from None
        else:
            return
        try:
            found = await self._connection.ask(f"CONSUMER.INFO.{stream}.{name}")
            existing = cast("dict[str, object]", found.get("config") or {})
            if is_usable(existing, wanted):
                with suppress(RefusedError):  # it serves, whether or not the rest of it can be corrected
                    kept = {"max_waiting": existing.get("max_waiting")}
                    await self._connection.ask(call, {**body, "config": {**wanted, **kept}})
                return
            await self._remove(f"CONSUMER.DELETE.{stream}.{name}")
            await self._connection.ask(call, body)
        except RefusedError as refusal:
            remedy = f"remove what is in its way with `nats consumer rm {stream}`"
            raise _told(refusal, f"the consumer {name} of {stream}", remedy) from None

    async def remove_stream(self, generation: int) -> None:
        """Remove everything of a generation; nothing if nothing is there."""
        self.forget(generation)
        name = self._shape.stream_name(generation)
        try:
            await self._remove(f"STREAM.DELETE.{name}")
        except RefusedError as refusal:
            raise _told(refusal, f"to remove the stream {name}", f"remove it with `nats stream rm {name}`") from None

    async def _remove(self, call: str) -> None:
        try:
            await self._connection.ask(call)
        except RefusedError as refusal:
            if refusal.code != _NOT_FOUND:
                raise


def _told(refusal: RefusedError, what: str, remedy: str) -> ConfigurationError | BrokerLostError:
    """Whose it is to mend: the operator's, or time's."""
    message = f"NATS refuses {what}: {refusal.description}"
    if refusal.code in _ASKED_WRONG or refusal.reason_code in _OPERATORS:
        return ConfigurationError(f"{message}; {remedy}")
    return BrokerLostError(message)


def _removing(stream: str) -> str:
    return f"remove it with `nats stream rm {stream}`: what is lost with it is sent again"
