"""chancy. Its default runs jobs in child processes; best: its asyncio executor, 500 at once, eager polling, uvloop.

Results are written back in batches once per `send_outgoing_interval`, which its documentation says to set on the
worker: 50 ms instead of a second at best.
"""

from __future__ import annotations

import functools
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from chancy import Chancy, Job, Queue, Worker
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.contestants import stage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CONCURRENCY: Final = 500
OUTGOING: Final = 0.05
HERE: Final = "benchmarks.contestants.chancy_peer"

effects: list[AsyncConnectionPool] = []


async def run(*, kind: str, number: int, dsn: str) -> None:
    """A job of the asyncio executor."""

    async def upsert(number: int) -> None:
        if not effects:
            effects.append(AsyncConnectionPool(dsn, kwargs={"autocommit": True}, max_size=10, open=False))
            await effects[0].open()
        async with effects[0].connection() as connection:
            await connection.execute(stage.UPSERT_FORMAT, (number,))

    await stage.handle(kind, number, upsert)


def run_in_process(*, kind: str, number: int, dsn: str) -> None:
    """A job of the default executor, which runs plain functions."""
    if kind == "upsert":
        _connected(dsn).execute(stage.UPSERT_FORMAT, (number,))
    elif kind == "note":
        stage.say(number)
    elif kind != "noop":
        time.sleep(stage.NAPS[kind])
    stage.tick()


@functools.cache
def _connected(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True)


class Peer:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Create its schema."""
        async with Chancy(dsn) as chancy:
            await chancy.migrate()

    async def work(self, order: stage.Order) -> None:
        """Deliver until killed."""
        queue = Queue(name="default")
        if order.best:
            queue = Queue(
                name="default",
                executor=Chancy.Executor.Async,
                concurrency=CONCURRENCY,
                polling_interval=1,
                eager_polling=True,
            )
        async with Chancy(order.dsn) as chancy:
            await chancy.declare(queue, upsert=True)
            worker = Worker(chancy)
            if order.best:
                worker.send_outgoing_interval = OUTGOING
            async with worker:
                await worker.wait_for_shutdown()

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`push_ex` on the caller's cursor, in a transaction."""
        async with AsyncExitStack() as stack:
            chancy = await stack.enter_async_context(Chancy(order.dsn))

            def on(connection: psycopg.AsyncConnection[Any]) -> stage.Publish:
                async def publish(number: int) -> None:
                    async with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
                        await chancy.push_ex(cursor, _job(order, number))

                return publish

            opened = [await psycopg.AsyncConnection.connect(order.dsn, autocommit=True) for _ in range(connections)]
            for connection in opened:
                await stack.enter_async_context(connection)
            yield [on(connection) for connection in opened]

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`push_many`."""
        async with Chancy(order.dsn) as chancy:

            async def publish(numbers: range) -> None:
                async for _ in chancy.push_many([_job(order, number) for number in numbers], batch_size=stage.CHUNK):
                    pass

            yield publish


def _job(order: stage.Order, number: int) -> Job:
    function = f"{HERE}.run" if order.best else f"{HERE}.run_in_process"
    return Job(func=function, kwargs={"kind": order.kind, "number": number, "dsn": order.dsn})


if __name__ == "__main__":
    stage.main(Peer())
