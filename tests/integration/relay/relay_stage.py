"""A database, a real broker, a relay between them, and workers that take from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol, Unpack

import pytest

from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope
from spectral.core.events.bootstrap import relay, worker
from spectral.core.events.broker import BrokerLane, BrokerReceiver
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings, RelaySettings
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.infrastructure.nats import NatsReceiver
from spectral.core.events.infrastructure.redis import RedisReceiver
from spectral.core.events.relay.process import Relay
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    SETTINGS,
    Bench,
    Changes,
    Notes,
    open_bench,
    until,
)
from tests.integration.relay.nats_server import nats_server
from tests.integration.relay.redis_stage import redis_server

__all__ = ["nats_server", "redis_server", "stage"]

RELAY = RelaySettings(
    poll=timedelta(milliseconds=300), grace=timedelta(milliseconds=300), reconnect=timedelta(milliseconds=50)
)


class Server(Protocol):
    """What tests do to a broker."""

    @property
    def url(self) -> str: ...
    def start(self, *, empty: bool = False) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


@dataclass
class RelayStage:
    """One database and one broker; `notes` are the relays', those of the workers are the bench's."""

    bench: Bench
    server: Server
    settings: BrokerSettings
    notes: Notes

    async def switch(self, mode: str) -> None:
        """As an operator does."""
        await self.bench.execute("select core.relay_switch(%s, 'ada', 'test')", mode)

    @asynccontextmanager
    async def relaying(self, settings: RelaySettings = RELAY) -> AsyncIterator[Relay]:
        """A relay that runs while the block does, and listens."""
        running = relay(
            settings=settings, broker=self.settings, database=DatabaseSettings(dsn=self.bench.dsn), probe=self.notes
        )
        task = asyncio.create_task(running.run())
        try:
            await until(lambda: running.health().listening or task.done())
            yield running
        finally:
            running.stop()
            async with asyncio.timeout(20):
                await task

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[BrokerReceiver]:
        """Somebody who receives what is for the platform, and does nothing with it."""
        adapter = {BrokerKind.NATS: NatsReceiver, BrokerKind.REDIS: RedisReceiver}[self.settings.kind]
        prefix = await self.bench.value("select prefix from core.relay_mode()")
        receiver: BrokerReceiver = adapter(self.settings, prefix, "idle")
        await receiver.open([BrokerLane(1, "outbox_gen_1", "platform")])
        try:
            yield receiver
        finally:
            await receiver.close()

    @asynccontextmanager
    async def working(self, *consumers: Consumer, **changes: Unpack[Changes]) -> AsyncIterator[Listener]:
        """A worker that may take from the broker, while the block runs."""
        made = worker(
            *consumers,
            settings=replace(SETTINGS, **changes),
            database=DatabaseSettings(dsn=self.bench.dsn),
            broker=self.settings,
            probe=self.bench.notes,
        )
        async with made as listener:
            await listener.started()
            await until(lambda: listener.health().listening)
            yield listener

    @asynccontextmanager
    async def delivering(self, *consumers: Consumer, **changes: Unpack[Changes]) -> AsyncIterator[Listener]:
        """Switched over, with a relay and a worker that takes from the broker."""
        await self.switch(self.settings.kind)
        async with self.relaying() as running, self.working(*consumers, **changes) as listener:
            await until(lambda: running.health().connected and listener.health().takes_from == self.settings.kind)
            yield listener


@pytest.fixture(params=["nats", "redis"])
async def stage(request: pytest.FixtureRequest, database: str) -> AsyncIterator[RelayStage]:
    """See `RelayStage`."""
    server: Server = request.getfixturevalue(f"{request.param}_server")
    settings = BrokerSettings(kind=BrokerKind(request.param), url=server.url)
    async with open_bench(database) as bench:
        yield RelayStage(bench, server, settings, Notes())


def counting(seen: list[int]) -> Consumer:
    """A consumer of the platform whose handler notes the number of each event."""
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def note(envelope: EventEnvelope) -> None:
        seen.append(envelope.payload["number"])

    return platform
