"""procrastinate. Best: many jobs at once, a pool to match and uvloop. It publishes on connections of its own pool.

More than ten jobs at once slow down what does not wait, so only the handler that waits gets more.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import procrastinate
from psycopg_pool import AsyncConnectionPool

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CONCURRENCY: Final = 10
WAITING_CONCURRENCY: Final = 50


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its schema."""
        app = _app(dsn)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        concurrency = WAITING_CONCURRENCY if order.kind in stage.NAPS else CONCURRENCY
        app = _app(order.dsn, max_size=concurrency) if order.best else _app(order.dsn)
        async with AsyncConnectionPool(order.dsn, kwargs={"autocommit": True}, max_size=10) as pool, app.open_async():

            async def upsert(number: int) -> None:
                async with pool.connection() as connection:
                    await connection.execute(stage.UPSERT_FORMAT, (number,))

            @app.task(name=order.kind)
            async def run(number: int) -> None:
                await stage.handle(order.kind, number, upsert)

            await (app.run_worker_async(concurrency=concurrency) if order.best else app.run_worker_async())

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`defer_async`, each a transaction on one of so many connections."""
        app = _app(order.dsn, min_size=connections, max_size=connections)
        async with app.open_async():
            task = app.configure_task(order.kind)

            async def publish(number: int) -> None:
                await task.defer_async(number=number)

            yield [publish] * connections

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`batch_defer_async`."""
        app = _app(order.dsn)
        async with app.open_async():
            task = app.configure_task(order.kind)

            async def publish(numbers: range) -> None:
                await task.batch_defer_async(*({"number": number} for number in numbers))

            yield publish


def _app(dsn: str, **pool: int) -> procrastinate.App:
    return procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, **pool))


if __name__ == "__main__":
    stage.main(Peer())
