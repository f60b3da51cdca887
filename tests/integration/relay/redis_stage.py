"""What every test of the Redis adapter starts from: a server, a prefix of its own, and somebody on each side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final
from uuid import uuid4

import pytest

from spectral.core.events.broker import BrokerLane, Received, Reference
from spectral.core.events.broker_settings import BrokerSettings
from spectral.core.events.infrastructure.redis import RedisReceiver, RedisSender
from tests.integration.relay.redis_server import RedisServer, running_redis

PLAIN: Final = BrokerLane(1, "outbox_gen_1", "worlds")
HOT: Final = BrokerLane(1, "outbox_gen_1_hot", "worlds")
NEXT: Final = BrokerLane(2, "outbox_gen_2", "worlds")
AT_ONCE: Final = timedelta(0)
PATIENTLY: Final = timedelta(seconds=20)


def reference(lane: BrokerLane = PLAIN) -> Reference:
    """Of some row."""
    row = uuid4()
    return Reference(row, row, "worlds.scan.completed", lane, 0, 0)


def references_of(received: list[Received]) -> list[Reference]:
    """Without their receipts."""
    return [each.reference for each in received]


class Stage:
    """A server, and whoever was opened on it under one prefix; all are closed afterwards."""

    def __init__(self, server: RedisServer, leaving: AsyncExitStack) -> None:
        self.server = server
        self.prefix = f"spectral_{uuid4().hex[:8]}"
        self._leaving = leaving

    def settings(self, **others: object) -> BrokerSettings:
        """Of the server."""
        return self.server.settings(**others)

    async def sender(self, *lanes: BrokerLane, room: int = 100, **others: object) -> RedisSender:
        """Open, and the lanes prepared."""
        sender = RedisSender(self.settings(**others), self.prefix, room=room)
        self._leaving.push_async_callback(sender.close)
        await sender.open()
        for lane in lanes:
            await sender.prepare(lane)
        return sender

    async def receiver(self, *lanes: BrokerLane, name: str = "worker-1", **others: object) -> RedisReceiver:
        """Open on the lanes."""
        receiver = RedisReceiver(self.settings(**others), self.prefix, name)
        self._leaving.push_async_callback(receiver.close)
        await receiver.open(lanes)
        return receiver

    async def until_somebody_waits(self) -> None:
        """Until a receiver waits for messages; the server is the only one to know."""

        def look() -> None:
            while b"blocked_clients:1" not in self.server.command("INFO", "clients"):
                time.sleep(0.005)

        await asyncio.to_thread(look)

    def key(self, lane: BrokerLane = PLAIN) -> str:
        """As the documentation names it."""
        return f"{self.prefix}:{lane.generation}:{lane.context}:{lane.processing_class}"


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """The server of this test process; whatever a test does to it, it runs afterwards."""
    server = running_redis()
    yield server
    server.restore()


@pytest.fixture
async def stage(redis_server: RedisServer) -> AsyncIterator[Stage]:
    """See `Stage`."""
    async with AsyncExitStack() as leaving:
        yield Stage(redis_server, leaving)
        redis_server.restore()
