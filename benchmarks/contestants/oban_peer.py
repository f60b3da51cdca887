"""oban. Its documentation's queue of 10 is the default; best: a queue of 200 and uvloop."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

LIMIT: Final = 200
DEFAULT_LIMIT: Final = 10


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its schema."""
        async with AsyncConnectionPool(dsn) as pool:
            await install(pool)

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        async with AsyncConnectionPool(order.dsn, kwargs={"autocommit": True}, max_size=10) as effects:

            async def upsert(number: int) -> None:
                async with effects.connection() as connection:
                    await connection.execute(stage.UPSERT_FORMAT, (number,))

            _handler(order.kind, upsert)
            pool = await Oban.create_pool(order.dsn)
            async with Oban(pool=pool, queues={"default": LIMIT if order.best else DEFAULT_LIMIT}):
                await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`enqueue` on the caller's connection, in a transaction."""
        handler = _handler(order.kind, _nowhere)
        async with AsyncExitStack() as stack:
            pool = await stack.enter_async_context(AsyncConnectionPool(order.dsn))
            oban = Oban(pool=pool)

            def on(connection: psycopg.AsyncConnection[Any]) -> stage.Publish:
                async def publish(number: int) -> None:
                    async with connection.transaction():
                        await oban.enqueue(handler.new({"number": number}), conn=connection)

                return publish

            opened = [await psycopg.AsyncConnection.connect(order.dsn, autocommit=True) for _ in range(connections)]
            for connection in opened:
                await stack.enter_async_context(connection)
            yield [on(connection) for connection in opened]

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`enqueue_many`."""
        handler = _handler(order.kind, _nowhere)
        async with AsyncConnectionPool(order.dsn) as pool:
            oban = Oban(pool=pool)

            async def publish(numbers: range) -> None:
                await oban.enqueue_many(handler.new({"number": number}) for number in numbers)

            yield publish


def _handler(kind: str, upsert: stage.Publish) -> Any:  # noqa: ANN401  theirs, of which nothing is known here
    @worker(queue="default")
    class Handler:
        """Jobs name it by its path."""

        async def process(self, job: Any) -> None:  # noqa: ANN401  as above
            """One job."""
            await stage.handle(kind, job.args["number"], upsert)

    return Handler


async def _nowhere(_number: int) -> None:
    """A publisher handles nothing."""


if __name__ == "__main__":
    stage.main(Peer())
