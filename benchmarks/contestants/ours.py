"""Spectral: at its defaults a `spectral worker` process, with its log going where nobody reads it.

Beside `default` there are two settings for comparison: `quiet` (nobody is told anything, so nothing is logged) and
`processes` (two worker processes). Publishing is that of a program with psycopg, on the same loop as everybody's.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

import psycopg

from benchmarks.contestants import ours_handlers, stage
from spectral.core.events import DatabaseSettings, EventEnvelope, PublishSettings, WorkerSettings
from spectral.core.events.bootstrap import publisher_for, publishing, worker
from spectral.core.events.probe import NoteTaker
from spectral.core.events.settings import Identity
from spectral.core.migrations import up
from spectral_workers.logs import configure_logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

GENERATION: Final = 1
_CROWD: Final = UUID(int=1)
"""The workspace that has published far more than the others: the same events, without a number."""

_PROGRAM: Final = "from spectral_ops.cli import main; main()"


class Ours:
    """Implements `stage.Program`."""

    async def setup(self, dsn: str) -> None:
        """Apply the migrations."""
        await asyncio.to_thread(up, dsn)

    async def work(self, order: stage.Order) -> None:
        """Become a worker process, or be one that tells nobody."""
        if order.settings == "quiet":
            await worker(
                ours_handlers.CONSUMERS[order.kind],
                settings=WorkerSettings(generation=GENERATION),
                database=DatabaseSettings(dsn=order.dsn),
                probe=NoteTaker(),  # who is not told how takes no notes
            ).run()
            return
        _become_worker(order)

    @asynccontextmanager
    async def publishers(self, order: stage.Order, connections: int) -> AsyncIterator[Sequence[stage.Publish]]:
        """`publish` in a transaction."""
        shared = publishing(PublishSettings(generation=GENERATION))

        def on(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> stage.Publish:
            publisher = publisher_for(connection, shared)

            async def publish(number: int) -> None:
                async with connection.transaction():
                    await publisher.publish(_event(order.kind, number))

            return publish

        async with AsyncExitStack() as stack:
            opened = [await _connect(order.dsn) for _ in range(connections)]
            for connection in opened:
                await stack.enter_async_context(connection)
            yield [on(connection) for connection in opened]

    @asynccontextmanager
    async def bulk(self, order: stage.Order) -> AsyncIterator[stage.PublishMany]:
        """`publish_many`, the making of the envelopes included."""
        shared = publishing(PublishSettings(generation=GENERATION))
        async with await _connect(order.dsn) as connection:
            publisher = publisher_for(connection, shared)

            async def publish(numbers: range) -> None:
                async with connection.transaction():
                    await publisher.publish_many([_event(order.kind, number) for number in numbers])

            yield publish


async def _connect(dsn: str) -> psycopg.AsyncConnection[tuple[object, ...]]:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


def _event(kind: str, number: int) -> EventEnvelope:
    if kind == "crowd":
        return EventEnvelope(
            event_type=ours_handlers.event_type("shared"),
            source="worlds",
            target="platform",
            workspace_id=_CROWD,
            payload={"number": -1},
        )
    return EventEnvelope(
        event_type=ours_handlers.event_type(kind), source="worlds", target="platform", payload={"number": number}
    )


def _become_worker(order: stage.Order) -> None:
    variables = {
        **os.environ,  # noqa: TID251  the top of a program
        "SPECTRAL_DATABASE_URL": order.dsn,
        "SPECTRAL_GENERATION": str(GENERATION),
    }
    options = ["--processes", "2"] if order.settings == "processes" else []
    app = f"{ours_handlers.__name__}:{order.kind}"
    os.execve(sys.executable, [sys.executable, "-c", _PROGRAM, "worker", *options, app], variables)  # noqa: S606  us


if __name__ == "__main__":
    configure_logs(Identity(generation=GENERATION), os.environ)  # noqa: TID251  the top of a program
    stage.main(Ours())
