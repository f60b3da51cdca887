"""The tour: an embedded Postgres, workers and producers on it, and the steps in their order."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spectral.core.embedded import FAST_AND_UNSAFE, EmbeddedPostgres, ServerOptions
from spectral.core.events.testing import Ledger
from spectral.core.migrations import up
from spectral_ops.demo.business import SCHEMA
from spectral_ops.demo.crew import Crew
from spectral_ops.demo.outbox import Outbox
from spectral_ops.demo.producer import Producer
from spectral_ops.demo.steps import Stage, play

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from spectral_ops.demo.counts import Counts
    from spectral_ops.demo.telling import Teller

CALLERS: Final = 4
"""Producers of each generation, all at once."""

_REFRESH_SECONDS: Final = 0.2


def tour(teller: Teller, environ: Mapping[str, str], directory: Path) -> Counts:
    """Run the demo on a Postgres that is gone afterwards.

    Args:
        teller: is told each step.
        environ: the variables that worker processes inherit.
        directory: where their logs go.

    Raises:
        DemoFailedError: it could not go on.
    """
    began = time.monotonic()
    teller.say("Starting an embedded Postgres")
    # Nothing here outlives the server, and it is workers that die, not the server: it need not wait for the disk.
    with EmbeddedPostgres(options=ServerOptions(settings=FAST_AND_UNSAFE)) as server:
        teller.say("Migrating: tables, functions, roles")
        up(server.dsn)
        try:
            return asyncio.run(_visit(server.dsn, teller, Crew(server.dsn, environ, directory), began))
        except BaseExceptionGroup as group:
            raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    """What went wrong first; that it happened beside other things does not matter."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _visit(dsn: str, teller: Teller, crew: Crew, began: float) -> Counts:
    async with AsyncExitStack() as stack:

        async def connect() -> psycopg.AsyncConnection[Any]:
            return await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn, autocommit=True))

        desk, watch, ledger = await connect(), await connect(), Ledger()
        await desk.execute(SCHEMA.encode())
        producers = {
            generation: [Producer(await connect(), generation, ledger) for _ in range(CALLERS)] for generation in (1, 2)
        }
        await stack.enter_async_context(crew)
        await stack.enter_async_context(_watched(Outbox(watch), teller))
        return await play(Stage(dsn, teller, crew, Outbox(desk), ledger, producers, began))


@asynccontextmanager
async def _watched(outbox: Outbox, teller: Teller) -> AsyncIterator[None]:
    """Show how far the deliveries are while the block runs."""

    async def watch() -> None:
        while True:
            teller.show(await outbox.standings())
            await asyncio.sleep(_REFRESH_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
