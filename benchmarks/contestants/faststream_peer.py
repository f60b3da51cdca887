"""faststream-outbox. Best: 100 rows fetched and 100 deletions flushed at once, polls of 10 ms, uvloop, several workers.

Each worker holds a connection; more than a few slow down what does not wait, so only the handler that waits gets more.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import asyncpg
from faststream import FastStream
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

BEST: Final = {"fetch_batch_size": 100, "terminal_flush_batch_size": 100, "min_fetch_interval": 0.01}
WORKERS: Final = 8
WAITING_WORKERS: Final = 50
METADATA: Final = MetaData()
TABLE: Final = make_outbox_table(METADATA)


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its table."""
        engine = create_async_engine(_url(dsn))
        async with engine.begin() as connection:
            await connection.run_sync(METADATA.create_all)
        await engine.dispose()

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        workers = WAITING_WORKERS if order.kind in stage.NAPS else WORKERS
        broker = OutboxBroker(create_async_engine(_url(order.dsn), pool_size=workers + 2), outbox_table=TABLE)
        pool = await asyncpg.create_pool(order.dsn)

        async def upsert(number: int) -> None:
            await pool.execute(stage.UPSERT_DOLLAR, number)

        @broker.subscriber(order.kind, **({"max_workers": workers, **BEST} if order.best else {}))
        async def run(message: dict[str, int]) -> None:
            await stage.handle(order.kind, message["number"], upsert)

        await FastStream(broker).run()

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`publish` in the caller's transaction."""
        engine = create_async_engine(_url(order.dsn), pool_size=connections)
        broker = OutboxBroker(engine, outbox_table=TABLE)

        def on(connection: AsyncConnection) -> stage.Publish:
            async def publish(number: int) -> None:
                async with connection.begin():
                    await broker.publish({"number": number}, queue=order.kind, session=connection)

            return publish

        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(engine.connect()) for _ in range(connections)]
            yield [on(connection) for connection in opened]
        await engine.dispose()

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`publish_batch`."""
        engine = create_async_engine(_url(order.dsn))
        broker = OutboxBroker(engine, outbox_table=TABLE)

        async def publish(numbers: range) -> None:
            bodies: list[Any] = [{"number": number} for number in numbers]
            async with engine.begin() as connection:
                await broker.publish_batch(*bodies, queue=order.kind, session=connection)

        yield publish
        await engine.dispose()


def _url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+asyncpg://", 1)


if __name__ == "__main__":
    stage.main(Peer())
