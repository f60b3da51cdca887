"""Spectral at its defaults."""

from __future__ import annotations

import asyncio
import sys
import time

import psycopg
from pydantic import BaseModel

from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope, PublishSettings, WorkerSettings
from spectral.core.events.bootstrap import publisher_for, publishing, worker
from spectral.core.migrations import up

platform = Consumer("platform")


class Numbered(BaseModel):
    """What is sent."""

    number: int


class Silence:
    """Nobody is told: the others log nothing either."""

    def tell(self, note: object) -> None:
        """Nothing."""


@platform.on("worlds.scan.completed")
async def note(event: Numbered) -> None:
    """Say when it came."""
    print(event.number, time.monotonic_ns(), flush=True)  # noqa: T201  what a contestant is for


async def work(dsn: str) -> None:
    """Deliver until killed."""
    await worker(
        platform, settings=WorkerSettings(generation=1), database=DatabaseSettings(dsn=dsn), probe=Silence()
    ).run()


async def publish(dsn: str, count: int, pause: float) -> None:
    """Publish one by one, each in a transaction."""
    shared = publishing(PublishSettings(generation=1))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        publisher = publisher_for(connection, shared)
        for number in range(count):
            async with connection.transaction():
                await publisher.publish(
                    EventEnvelope(
                        event_type="worlds.scan.completed",
                        source="worlds",
                        target="platform",
                        payload={"number": number},
                    )
                )
            print(number, time.monotonic_ns(), flush=True)  # noqa: T201  as above
            await asyncio.sleep(pause)


if __name__ == "__main__":
    what, dsn, *rest = sys.argv[1:]
    if what == "setup":
        up(dsn)
    elif what == "work":
        asyncio.run(work(dsn))
    else:
        asyncio.run(publish(dsn, int(rest[0]), float(rest[1])))
