"""The business of the demo: `worlds` scans and renders, `platform` keeps what it is told of it.

A user of the library like any other. Worker processes run it as
`spectral worker spectral_ops.demo.business:platform spectral_ops.demo.business:worlds`.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import psycopg
from pydantic import BaseModel

from spectral.core.events import (
    Consumer,
    DatabaseSettings,
    DeliveryContext,
    EventEnvelope,
    TerminalHandlerError,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.testing import EFFECTS_SCHEMA, record_effect

SCAN_COMPLETED: Final = "worlds.scan.completed"
REPORT_FILED: Final = "worlds.report.filed"
TILE_ORDERED: Final = "platform.tile.ordered"
SEASON_OPENED: Final = "platform.season.opened"
"""A broadcast: both contexts want it."""

MENDED_IN: Final = 2
"""The generation whose code can read reports."""

_SECONDS_TO_RENDER: Final = 0.25
_TILES_AT_ONCE: Final = 4

# No key on what handlers write: a doubled effect has to be seen, not prevented.
SCHEMA: Final = f"""
    create table public.decisions (event_id uuid primary key, event_type text not null);
    create table public.projections (number integer not null);
    {EFFECTS_SCHEMA};
"""

platform = Consumer("platform")
worlds = Consumer("worlds")


class Scan(BaseModel):
    """What `platform` wants to know of a scan."""

    number: int


@platform.on(SCAN_COMPLETED)
async def project_scan(scan: Scan, event: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
    """Keep a projection of every scan; it commits together with the ack."""
    await tx.execute("insert into public.projections (number) values (%s)", [scan.number])
    await _record(tx, event, delivery)


@platform.on(REPORT_FILED)
async def read_report(event: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
    """Read a report. The code of generation 1 cannot, and knows that trying again would not help."""
    if _own_generation() < MENDED_IN:
        raise TerminalHandlerError("this report is in a format that this release cannot read")
    await _record(tx, event, delivery)


@platform.on(SEASON_OPENED, name="platform.open_season")
async def open_season_in_platform(event: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
    """Its share of the broadcast."""
    await _record(tx, event, delivery)


@worlds.on(SEASON_OPENED, name="worlds.open_season")
async def open_season_in_worlds(event: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
    """Its share of the broadcast."""
    await _record(tx, event, delivery)


@worlds.on(TILE_ORDERED, concurrency=_TILES_AT_ONCE)
async def render_tile(event: EventEnvelope, delivery: DeliveryContext) -> None:
    """Render a tile: slow, and outside of any transaction. If the worker dies in between, it is done again."""
    await asyncio.sleep(_SECONDS_TO_RENDER)
    dsn = DatabaseSettings.from_environ(os.environ).dsn  # noqa: TID251  this is the top of a worker process
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as outside:
        await record_effect(
            outside, delivery, event.idempotency_key, generation=_own_generation(), context="worlds", external=True
        )


async def _record(tx: Transaction, event: EventEnvelope, delivery: DeliveryContext) -> None:
    await record_effect(tx, delivery, event.idempotency_key, generation=_own_generation())


def _own_generation() -> int:
    """This process's, not the event's: comparing the two is the oracle's business."""
    return WorkerSettings.from_environ(os.environ).generation  # noqa: TID251  as above
