"""pgmq's client over its SQL functions. It has no worker, so the loop is ours: read, handle, delete.

Default: one message at a time, and its own long poll. Best: read and delete 1,000 at once, and a poll every 5 ms. For
the handlers' own writes there is a pool of ten connections.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import psycopg
from pgmq.async_queue import PGMQueue
from pgmq.install import get_embedded_install_sql, install_pgmq_sql

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

QUEUE: Final = "bench"
BATCH: Final = 1_000
POLL: Final = 0.005


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its schema and a queue."""
        with psycopg.connect(dsn) as connection:
            install_pgmq_sql(get_embedded_install_sql(), conn=connection)
        async with _queue(dsn) as queue:
            await queue.create_queue(QUEUE)

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        async with _queue(order.dsn) as queue, asyncpg.create_pool(order.dsn) as pool:

            async def upsert(number: int) -> None:
                await pool.execute(stage.UPSERT_DOLLAR, number)

            while True:
                if order.best:
                    await _work_off(queue, order.kind, upsert)
                else:
                    for message in await queue.read_with_poll(QUEUE, qty=1) or ():
                        await stage.handle(order.kind, message.message["number"], upsert)
                        await queue.delete(QUEUE, message.msg_id)

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`send` on the caller's connection, in a transaction."""
        async with AsyncExitStack() as stack:
            queue = await stack.enter_async_context(_queue(order.dsn))

            def on(connection: asyncpg.Connection) -> stage.Publish:
                async def publish(number: int) -> None:
                    async with connection.transaction():
                        await queue.send(QUEUE, {"number": number}, conn=connection)

                return publish

            opened = [await asyncpg.connect(order.dsn) for _ in range(connections)]
            for connection in opened:
                stack.push_async_callback(connection.close)
            yield [on(connection) for connection in opened]

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`send_batch`."""
        async with _queue(order.dsn) as queue:

            async def publish(numbers: range) -> None:
                await queue.send_batch(QUEUE, [{"number": number} for number in numbers])

            yield publish


async def _work_off(queue: PGMQueue, kind: str, upsert: stage.Publish) -> None:
    messages = await queue.read_batch(QUEUE, batch_size=BATCH)
    if not messages:
        await asyncio.sleep(POLL)
        return
    if kind == "noop":
        for message in messages:
            await stage.handle(kind, message.message["number"], upsert)
    else:
        await asyncio.gather(*(stage.handle(kind, message.message["number"], upsert) for message in messages))
    await queue.delete_batch(QUEUE, [message.msg_id for message in messages])


@asynccontextmanager
async def _queue(dsn: str) -> AsyncIterator[PGMQueue]:
    async with asyncpg.create_pool(dsn) as pool:
        queue = PGMQueue(pool=pool, init_extension=False)
        await queue.init()
        yield queue


if __name__ == "__main__":
    stage.main(Peer())
