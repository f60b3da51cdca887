"""One round of asking: a request for messages to each of some lanes, answered into an inbox of its own.

A request waits for the first message, takes what else there is, and is over: the server says so, or the number that
was asked for is reached. While a lane has as many messages out as it may, the server says nothing at all; so nothing
here waits for the last word of everyone. Ending a round takes the inbox away, and with it what is still asked for.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.infrastructure.nats.connection import retrieve
from spectral.core.events.infrastructure.nats.shape import nanoseconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from spectral.core.events.broker import BrokerLane
    from spectral.core.events.infrastructure.nats.connection import Connection
    from spectral.core.events.infrastructure.nats.shape import Shape

_HEARTBEAT: Final = "100"
_GONE: Final = frozenset({"400", "503"})  # it cannot be asked so; nobody is there to be asked
_GONE_BECAUSE: Final = ("deleted", "shutdown", "push based")
_REST_SECONDS: Final = 0.05
"""How long the rest of what a lane has may take to arrive after its first message."""


class Round:
    """Requests that are open, and the messages that have come."""

    def __init__(self, connection: Connection, shape: Shape) -> None:
        self.messages: list[Msg] = []
        self.brought: dict[str, int] = {}
        self._connection = connection
        self._shape = shape
        self._inbox = connection.inbox()
        self._subscription: Subscription | None = None
        self._ending: asyncio.Task[None] | None = None
        self._open: dict[str, int] = {}
        self._begun = asyncio.Event()
        self._enough = asyncio.Event()
        self._lost: str | None = None

    async def ask(self, wanted: Mapping[BrokerLane, int], waiting: timedelta | None) -> None:
        """Ask each lane for so many; to wait for the first so long, or not at all."""
        self._subscription = await self._connection.subscribe(f"{self._inbox}.>", self._note)
        for lane, most in wanted.items():
            key = self._shape.lane_key(lane)
            self._open[key] = most
            request: dict[str, object] = {"batch": most, "no_wait": True}
            if waiting is not None:
                request["expires"] = nanoseconds(waiting)
            stream, consumer = self._shape.stream_name(lane.generation), self._shape.consumer_name(lane)
            await self._connection.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
                json.dumps(request).encode(),
                reply=f"{self._inbox}.{key}",
            )

    async def wait(self, seconds: float) -> None:
        """Until something came or nothing will, for so long at most."""
        if await self._connection.wait(self._begun, seconds):
            await self._connection.wait(self._enough, _REST_SECONDS)

    async def end(self) -> None:
        """Take back what is still asked for; what was sent meanwhile is among the messages.

        Raises:
            BrokerLostError: a lane has no consumer any more, and there is no message to be lost by saying so.
        """
        if self._ending is None:
            if self._subscription is None:
                return
            leaving = self._connection.drain if self._open else self._connection.unsubscribe
            self._ending = asyncio.ensure_future(leaving(self._subscription))
            self._ending.add_done_callback(retrieve)
        await asyncio.shield(self._ending)  # so that it can be waited for again, if this is cancelled
        if self._lost is not None and not self.messages:
            raise BrokerLostError(self._lost)

    async def _note(self, message: Msg) -> None:
        """A message, or the server's word about a request."""
        if not message.subject.startswith(self._inbox):
            self._take(message)
            return
        headers = message.headers or {}
        status = headers.get("Status", "")
        if status == _HEARTBEAT:
            return
        description = headers.get("Description", "").strip().lower()
        if status in _GONE or any(each in description for each in _GONE_BECAUSE):
            self._lost = "a consumer is gone from the broker, or cannot be asked"
            self._enough.set()
        self._over(message.subject.removeprefix(f"{self._inbox}."))

    def _take(self, message: Msg) -> None:
        self.messages.append(message)
        self._begun.set()
        key = self._shape.key_of(message.subject)
        self.brought[key] = self.brought.get(key, 0) + 1
        if key in self._open:
            self._open[key] -= 1
            if self._open[key] <= 0:
                self._over(key)

    def _over(self, key: str) -> None:
        """Nothing more will come from this lane."""
        self._open.pop(key, None)
        if key in self.brought or not self._open or self._lost is not None:
            self._begun.set()
            self._enough.set()
