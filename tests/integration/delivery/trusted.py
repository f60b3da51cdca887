"""Handlers that have earned it: a worker that has seen them do well, and what they did since."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from spectral.core.events import Consumer, Transaction
from tests.integration.delivery.platform_worker import COMPLETED, Bench, Changes, Scan, until, write_effect

WARM = 1_000
"""From this number on they are scans that a worker gets to know its handlers by."""

ALL_ENDED = "select count(*) = 0 from core.outbox where status in ('pending', 'in_flight') and source = 'worlds'"


@asynccontextmanager
async def trusting(
    bench: Bench, consumer: Consumer, *event_types: str, **changes: Unpack[Changes]
) -> AsyncIterator[None]:
    """A worker of one lane that has seen each of its handlers do well."""
    changes.setdefault("lanes", 1)
    async with bench.running(consumer, **changes):
        for number, event_type in enumerate(event_types or (COMPLETED,), start=WARM):
            await bench.publish(number, event_type=event_type)
            await until(lambda: bench.all_are("delivered"))
        yield


def project_scans(consumer: Consumer) -> Counter[int]:
    """Have a handler write an effect for each scan; answers how often it ran for which."""
    runs: Counter[int] = Counter()

    @consumer.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)

    return runs


async def effects(bench: Bench) -> list[tuple[str, int]]:
    return [effect for effect in await bench.effects() if effect[1] < WARM]
