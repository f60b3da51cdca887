"""The card travels worlds, outbox, platform under NOTIFY, and arrives as it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from spectral.core.embedded import PostgresServer
from spectral.core.events import DatabaseSettings, WorkerSettings, WorkerTimes
from spectral.core.events.bootstrap import worker
from spectral.core.events.probe import Finished
from spectral.core.events.testing import RecordingProbe
from spectral_workers.event_consumers import build_world_model_card_projection_consumer
from tests.acceptance.worker_process import SPECTRAL
from tests.integration.contexts_stage import DRAFT, Stage, open_stage

WITHIN = 10.0
"""Seconds until a notification that does not come is missed; it takes milliseconds."""

# No poll: what is delivered was announced.
SETTINGS = WorkerSettings(generation=1, times=WorkerTimes(poll=timedelta(minutes=5)))


@pytest.fixture
async def stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    async with open_stage(postgres) as opened:
        yield opened


async def notified(ear: psycopg.AsyncConnection[Any]) -> UUID:
    async for notification in ear.notifies(timeout=WITHIN, stop_after=1):
        return UUID(notification.payload)
    pytest.fail(f"no notification on outbox_gen_1 within {WITHIN} s")


async def test_a_card_arrives_byte_for_byte_because_it_was_announced(stage: Stage) -> None:
    world_model_id = await stage.world_model()
    probe = RecordingProbe()
    async with await psycopg.AsyncConnection.connect(stage.dsn, autocommit=True) as ear:
        await ear.execute("listen outbox_gen_1")
        async with worker(
            build_world_model_card_projection_consumer(),
            settings=SETTINGS,
            database=DatabaseSettings(dsn=stage.platform_dsn),
            probe=probe,
        ):
            card = await stage.cards.publish(world_model_id, DRAFT)
            row_id = await notified(ear)
            (finished,) = await probe.wait_for(Finished)

    assert finished.delivery.event_id == row_id
    ((sent, snapshot),) = await stage.rows(
        "select convert_to(event.payload::text, 'utf8'), convert_to(snapshot.card::text, 'utf8')"
        " from core.outbox as event join platform.system_card_snapshots as snapshot on snapshot.event_id = event.id"
        " where event.id = %s",
        row_id,
    )
    assert snapshot == sent  # what arrived is what was sent, to the byte
    assert json.loads(snapshot) == card.model_dump(mode="json")  # and that is the producer's payload
    # And it says what the author wrote, here and in the producer's own table, not merely the same as something empty.
    assert {name: value for name, value in json.loads(snapshot).items() if name != "published_at"} == {
        "world_model_id": str(world_model_id),
        "revision": 1,
        "title": "Hafen, Nacht: «港»",
        "summary": 'Tides, "fog" and\nmoving cranes \\ 🌫',
        "capabilities": ["tides up to 4 m", "fog by the hour"],
        "limitations": ["no ice"],
        "evaluations": [
            {"benchmark": "drift-100", "score": 0.875},
            {"benchmark": "rare", "score": 1e-07},
            {"benchmark": "whole", "score": 3.0},
        ],
    }
    assert await stage.rows(
        "select title, summary, capabilities, limitations, evaluations, published_at from worlds.model_cards"
    ) == [
        (
            DRAFT.title,
            DRAFT.summary,
            list(DRAFT.capabilities),
            list(DRAFT.limitations),
            [{"benchmark": each.benchmark, "score": each.score} for each in DRAFT.evaluations],
            card.published_at,
        )
    ]


async def test_a_field_that_platform_does_not_know_is_in_the_snapshot_all_the_same(stage: Stage) -> None:
    world_model_id = await stage.world_model()
    await stage.cards.publish(world_model_id, DRAFT)
    await stage.change(
        "insert into core.outbox (event_type, source, target, payload, generation, channel) select event_type, source,"
        ' target, payload || \'{"revision": 2, "licence": {"since": [2027, null]}}\', generation, channel'
        " from core.outbox"
    )
    (await stage.drain()).assert_all_handled(times=2)
    assert await stage.rows(
        "select snapshot.card -> 'licence', snapshot.card::text = event.payload::text"
        " from platform.system_card_snapshots as snapshot join core.outbox as event on event.id = snapshot.event_id"
        " order by snapshot.revision"
    ) == [(None, True), ({"since": [2027, None]}, True)]


async def test_worker_processes_of_both_contexts_run_under_their_own_logins(stage: Stage) -> None:
    """As in production: `spectral worker spectral_workers.event_consumers:worlds`, and platform's beside it."""
    await stage.cards.publish(world_model_id := await stage.world_model(), DRAFT)
    await stage.cluster(world_model_id)
    for context, dsn in (("platform", stage.platform_dsn), ("worlds", stage.worlds_dsn)):
        process = await asyncio.create_subprocess_exec(
            SPECTRAL,
            "worker",
            "--drain",
            f"spectral_workers.event_consumers:{context}",
            env={
                "PATH": "/usr/bin:/bin",
                "SPECTRAL_GENERATION": "1",
                "SPECTRAL_DATABASE_URL": dsn,
                "SPECTRAL_PLATFORM_DATABASE_URL": stage.platform_dsn,
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, told = await process.communicate()
        assert process.returncode == 0, told.decode()
    assert await stage.rows("select target, status from core.outbox order by target") == [
        ("platform", "delivered"),
        ("worlds", "delivered"),
    ]
    assert await stage.rows("select revision from platform.system_card_snapshots") == [(1,)]
    assert await stage.rows("select samples from worlds.rule_candidates") == [(["crane 1", "crane 2"],)]
