"""absurd-sdk, its schema from absurdctl of the same version. Best: 50 at once, batches of 100, a poll every 10 ms."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from psycopg_pool import AsyncConnectionPool

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

QUEUE: Final = "bench"
CONCURRENCY: Final = 50
BATCH: Final = 100
POLL: Final = 0.01
_FILL: Final = (
    "select absurd.spawn_task(%s, %s, jsonb_build_object('number', n), %s)"
    " from generate_series(%s::integer, %s::integer) as n"
)


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its schema and a queue."""
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL.encode())
            await AsyncAbsurd(connection, queue_name=QUEUE).create_queue()

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        app = AsyncAbsurd(order.dsn, queue_name=QUEUE)
        async with AsyncConnectionPool(order.dsn, kwargs={"autocommit": True}, max_size=10) as pool:

            async def upsert(number: int) -> None:
                async with pool.connection() as connection:
                    await connection.execute(stage.UPSERT_FORMAT, (number,))

            @app.register_task(order.kind)
            async def run(params: dict[str, int], _context: object) -> None:
                await stage.handle(order.kind, params["number"], upsert)

            if order.best:
                await app.start_worker(concurrency=CONCURRENCY, batch_size=BATCH, poll_interval=POLL)
            else:
                await app.start_worker()

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`spawn` on the caller's connection, in a transaction."""

        def on(connection: psycopg.AsyncConnection[Any]) -> stage.Publish:
            app = AsyncAbsurd(connection, queue_name=QUEUE)

            async def publish(number: int) -> None:
                async with connection.transaction():
                    await app.spawn(order.kind, {"number": number}, queue=QUEUE)

            return publish

        async with AsyncExitStack() as stack:
            opened = [await psycopg.AsyncConnection.connect(order.dsn, autocommit=True) for _ in range(connections)]
            for connection in opened:
                await stack.enter_async_context(connection)
            yield [on(connection) for connection in opened]

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """It has no bulk publish; this one, inside the server, is for filling only."""
        async with await psycopg.AsyncConnection.connect(order.dsn, autocommit=True) as connection:

            async def publish(numbers: range) -> None:
                options = json.dumps({"max_attempts": 5})
                await connection.execute(_FILL, (QUEUE, order.kind, options, numbers[0], numbers[-1]))

            yield publish


if __name__ == "__main__":
    stage.main(Peer())
