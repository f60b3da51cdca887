"""PgQueuer at its defaults."""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries


async def setup(dsn: str) -> None:
    """Create its schema."""
    connection = await asyncpg.connect(dsn)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


async def work(dsn: str) -> None:
    """Deliver until killed."""
    pgq = PgQueuer.from_asyncpg_connection(await asyncpg.connect(dsn))

    @pgq.entrypoint("note")
    async def note(job: Job) -> None:
        print(int(job.payload or b"0"), time.monotonic_ns(), flush=True)  # noqa: T201  what a contestant is for

    await pgq.run()


async def publish(dsn: str, count: int, pause: float) -> None:
    """Enqueue one by one."""
    connection = await asyncpg.connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    for number in range(count):
        await queries.enqueue("note", str(number).encode())
        print(number, time.monotonic_ns(), flush=True)  # noqa: T201  as above
        await asyncio.sleep(pause)
    await connection.close()


if __name__ == "__main__":
    what, dsn, *rest = sys.argv[1:]
    asyncio.run(
        setup(dsn) if what == "setup" else work(dsn) if what == "work" else publish(dsn, int(rest[0]), float(rest[1]))
    )
