"""PgQueuer. Best: a pool, batches of 1,000 and uvloop, which its own command line uses when it is installed."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

BATCH: Final = 1_000


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its schema."""
        connection = await asyncpg.connect(dsn)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        pool = await asyncpg.create_pool(order.dsn)
        if order.best:
            pgq = PgQueuer.from_asyncpg_pool(pool)
        else:
            pgq = PgQueuer.from_asyncpg_connection(await asyncpg.connect(order.dsn))

        async def upsert(number: int) -> None:
            await pool.execute(stage.UPSERT_DOLLAR, number)

        @pgq.entrypoint(order.kind)
        async def run(job: Job) -> None:
            await stage.handle(order.kind, int(job.payload or b"0"), upsert)

        await (pgq.run(batch_size=BATCH) if order.best else pgq.run())

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`enqueue` in a transaction of the connection's."""

        def on(connection: asyncpg.Connection) -> stage.Publish:
            queries = Queries(AsyncpgDriver(connection))

            async def publish(number: int) -> None:
                async with connection.transaction():
                    await queries.enqueue(order.kind, str(number).encode())

            return publish

        async with AsyncExitStack() as stack:
            opened = [await asyncpg.connect(order.dsn) for _ in range(connections)]
            for connection in opened:
                stack.push_async_callback(connection.close)
            yield [on(connection) for connection in opened]

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`enqueue` of lists."""
        connection = await asyncpg.connect(order.dsn)
        queries = Queries(AsyncpgDriver(connection))

        async def publish(numbers: range) -> None:
            async with connection.transaction():
                payloads = [str(number).encode() for number in numbers]
                await queries.enqueue([order.kind] * len(numbers), payloads, [0] * len(numbers))

        yield publish
        await connection.close()


if __name__ == "__main__":
    stage.main(Peer())
