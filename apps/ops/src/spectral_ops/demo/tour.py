"""The tour: publish, roll back, publish in bulk, drain, lose a worker, dead-letter, replay; then count."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spectral.core.embedded import EmbeddedPostgres
from spectral.core.events import PublishSettings
from spectral.core.events.bootstrap import publishing as publishing_with
from spectral.core.migrations import up
from spectral_ops.demo.business import GENERATION, SCHEMA, ChangedMindError, Claimed, Consumer, Producer

if TYPE_CHECKING:
    from collections.abc import Callable

SINGLE: Final = 1_000
BULK: Final = 5_000
EVERY_TENTH: Final = 10
CONNECTIONS: Final = 4


@dataclass(frozen=True, slots=True)
class Counts:
    """What the demo did, and what must be nothing."""

    published: int
    rolled_back: int
    notified: int
    delivered: int
    handled: int
    taken_over: int
    dead_lettered: int
    replayed: int
    lost: int
    ghosts: int
    duplicated: int
    stuck: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing delivered that was rolled back, nothing twice, nothing stuck, everything announced."""
        wrong = self.lost or self.ghosts or self.duplicated or self.stuck
        return not wrong and self.published == self.notified == self.delivered == self.handled


async def tour(say: Callable[[str], None]) -> Counts:
    """Run the demo on a Postgres that is gone afterwards; `say` is told each step."""
    started = time.monotonic()
    say("starting an embedded Postgres")
    server = await asyncio.to_thread(EmbeddedPostgres().start)
    try:
        say("migrating: tables, functions, roles")
        await asyncio.to_thread(up, server.dsn)
        return await _run(server.dsn, say, started)
    finally:
        await asyncio.to_thread(server.stop)


async def _run(dsn: str, say: Callable[[str], None], started: float) -> Counts:
    async with AsyncExitStack() as stack:
        connect = [psycopg.AsyncConnection.connect(dsn, autocommit=True) for _ in range(CONNECTIONS + 3)]
        ear, desk, other, *callers = [await stack.enter_async_context(await opening) for opening in connect]
        await desk.execute(SCHEMA.encode())
        await ear.execute(f"listen outbox_gen_{GENERATION}")

        say(f"publishing {SINGLE} events in business transactions, every tenth rolled back, then {BULK} in bulk")
        await _publish(callers)
        notified = await _hear(ear)
        say("delivering: a worker dies with claims in its hands, two others take over, ten events fail for good")
        taken_over = await _lose_a_worker(dsn, desk)
        dead = await Consumer(desk, "worker-1").claim(limit=EVERY_TENTH)
        await Consumer(desk, "worker-1").fail(dead)
        await asyncio.gather(_drain(Consumer(desk, "worker-1")), _drain(Consumer(other, "worker-2")))
        say("replaying the dead letters")
        replayed = await _replay(desk, dead)
        await _drain(Consumer(desk, "worker-1"))
        return await _count(desk, notified, taken_over, (len(dead), replayed), started)


async def _publish(callers: list[psycopg.AsyncConnection[Any]]) -> None:
    shared = publishing_with(PublishSettings(generation=GENERATION))

    async def finish(connection: psycopg.AsyncConnection[Any], numbers: range) -> None:
        producer = Producer(connection, shared)
        for number in numbers:
            with suppress(ChangedMindError):
                await producer.finish(number, change_mind=number % EVERY_TENTH == 0)

    await asyncio.gather(*(finish(caller, range(at, SINGLE, CONNECTIONS)) for at, caller in enumerate(callers)))
    await Producer(callers[0], shared).finish_many(range(SINGLE, SINGLE + BULK))


async def _hear(ear: psycopg.AsyncConnection[Any]) -> int:
    expected = SINGLE - SINGLE // EVERY_TENTH + BULK
    return len([notify async for notify in ear.notifies(timeout=10, stop_after=expected)])


async def _lose_a_worker(dsn: str, desk: psycopg.AsyncConnection[Any]) -> int:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as doomed:
        await Consumer(doomed, "worker-3").claim()
    cursor = await desk.execute("select count(*) from core.outbox_reap(p_grace => interval '0')")
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def _drain(consumer: Consumer) -> None:
    while claimed := await consumer.claim(limit=500):
        await consumer.handle(claimed)


async def _replay(desk: psycopg.AsyncConnection[Any], dead: list[Claimed]) -> int:
    cursor = await desk.execute(
        "select count(cycle) from core.outbox_replay_many(%s, %s, 'demo', 'the reader was mended')",
        [[row.id for row in dead], GENERATION],
    )
    row = await cursor.fetchone()
    return int(row[0]) if row else 0


async def _count(
    desk: psycopg.AsyncConnection[Any], notified: int, taken_over: int, dead: tuple[int, int], started: float
) -> Counts:
    cursor = await desk.execute("""
        select
            (select count(*) from public.scans),
            (select count(*) from core.outbox where status = 'delivered'),
            (select count(*) from public.projected),
            (select count(*) from public.scans where number not in (select number from public.projected)),
            (select count(*) from public.projected where number not in (select number from public.scans)),
            (select count(*) - count(distinct number) from public.projected),
            (select count(*) from core.outbox where status in ('pending', 'in_flight'))
    """)
    row = await cursor.fetchone()
    published, delivered, handled, lost, ghosts, duplicated, stuck = row or (0,) * 7
    return Counts(
        published=published,
        rolled_back=SINGLE + BULK - published,
        notified=notified,
        delivered=delivered,
        handled=handled,
        taken_over=taken_over,
        dead_lettered=dead[0],
        replayed=dead[1],
        lost=lost,
        ghosts=ghosts,
        duplicated=duplicated,
        stuck=stuck,
        seconds=round(time.monotonic() - started, 2),
    )
