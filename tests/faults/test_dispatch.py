"""The proof of dispatch: a raw LISTEN is told, and what was projected is what was published, to the byte.

Nothing here trusts the worker's own word: the notification is heard on a connection of our own that listened before the
publish, and the projection is compared with the payload and, apart from that, with the state it was made from.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, ConfigDict

from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope, Transaction, WorkerSettings
from spectral.core.events.bootstrap import publisher_for, worker
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.testing import RecordingProbe

NOTIFIED_WITHIN = 10.0
PROJECTED_WITHIN = 20.0

SEED: list[tuple[str, str, Any]] = [
    ("card-1", "Größe: 3 µm — “ok” 🌍", {"depth": 3, "tags": ["a", "b"], "ratio": 0.1}),
    ("card-2", "line\nbreak and \\ backslash", {"nested": {"empty": {}, "none": None, "yes": True}}),
    ("card-3", "", {"large": 9007199254740993, "small": -1, "text": "\u2028"}),
]


class Card(BaseModel):
    """The consumer's own view of a card; it keeps what it does not know."""

    model_config = ConfigDict(extra="allow")
    card_id: str
    title: str


class CardsProjectedEvent(BaseModel):
    """The consumer's own view of the payload."""

    cards: list[Card]


platform = Consumer("platform")


@platform.on("worlds.cards.published", name="platform.project_cards")
async def project_cards(snapshot: CardsProjectedEvent, tx: Transaction) -> None:
    for card in snapshot.cards:
        await tx.execute(
            "insert into public.projected_cards (card_id, snapshot) values (%s, %s)",
            [card.card_id, canonical(card.model_dump())],
        )


def canonical(value: object) -> bytes:
    """The one spelling of a JSON value: two values are equal if these bytes are."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@pytest.fixture
async def state(async_connection: psycopg.AsyncConnection[Any]) -> psycopg.AsyncConnection[Any]:
    """The producer's state, seeded, and an empty projection."""
    await async_connection.execute("create table public.cards (card_id text, title text, details jsonb)")
    await async_connection.execute("create table public.projected_cards (card_id text, snapshot bytea)")
    for card_id, title, details in SEED:
        await async_connection.execute(
            "insert into public.cards values (%s, %s, %s::jsonb)", [card_id, title, json.dumps(details)]
        )
    await async_connection.commit()
    return async_connection


async def payload_of(state: psycopg.AsyncConnection[Any]) -> dict[str, Any]:
    """What the producer publishes: its state, as it reads it."""
    rows = await (await state.execute("select card_id, title, details from public.cards order by card_id")).fetchall()
    return {"cards": [{"card_id": card_id, "title": title, "details": details} for card_id, title, details in rows]}


async def first_notification(ear: psycopg.AsyncConnection[Any], within: float = NOTIFIED_WITHIN) -> psycopg.Notify:
    async for notification in ear.notifies(timeout=within, stop_after=1):
        return notification
    pytest.fail(f"no notification within {within:g} s")


async def projected(state: psycopg.AsyncConnection[Any]) -> list[bytes]:
    query = "select snapshot from public.projected_cards order by card_id"
    async with asyncio.timeout(PROJECTED_WITHIN):
        while not (rows := await (await state.execute(query)).fetchall()):
            await state.commit()
            await asyncio.sleep(0.01)
    return [bytes(snapshot) for (snapshot,) in rows]


async def test_what_was_published_is_announced_and_projected_to_the_byte(
    database: str, state: psycopg.AsyncConnection[Any], publishing: Publishing
) -> None:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as ear:
        await ear.execute("listen outbox_gen_1")
        listener = worker(
            platform,
            settings=WorkerSettings(generation=1),
            database=DatabaseSettings(dsn=database),
            probe=RecordingProbe(),
        )
        async with listener:
            await listener.started()
            event = EventEnvelope(
                event_type="worlds.cards.published",
                source="worlds",
                target="platform",
                payload=await payload_of(state),
            )
            await publisher_for(state, publishing).publish(event)
            await state.commit()
            notification = await first_notification(ear)
            snapshots = await projected(state)
    assert (notification.channel, notification.payload) == ("outbox_gen_1", str(event.event_id))
    assert snapshots == [canonical(card) for card in event.payload["cards"]]
    # Apart from what the producer read and wrote: the state that was put there in the first place.
    assert len(SEED) > 0
    assert snapshots == [
        canonical({"card_id": card_id, "title": title, "details": details}) for card_id, title, details in SEED
    ]
    row = await (await state.execute("select status, attempts from core.outbox")).fetchall()
    assert row == [("delivered", 1)]


async def test_only_what_is_committed_is_announced(
    database: str, state: psycopg.AsyncConnection[Any], publishing: Publishing
) -> None:
    undone, kept = (
        EventEnvelope(event_type="worlds.cards.published", source="worlds", target="platform", payload={"cards": []})
        for _ in range(2)
    )
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as ear:
        await ear.execute("listen outbox_gen_1")
        async with state.transaction(force_rollback=True):
            await publisher_for(state, publishing).publish(undone)
        async with state.transaction():
            await publisher_for(state, publishing).publish(kept)
        assert (await first_notification(ear)).payload == str(kept.event_id)


async def test_the_proof_fails_when_nobody_is_told(
    database: str, state: psycopg.AsyncConnection[Any], publishing: Publishing
) -> None:
    await state.execute("alter table core.outbox disable trigger outbox_notify")
    await state.commit()
    event = EventEnvelope(
        event_type="worlds.cards.published", source="worlds", target="platform", payload={"cards": []}
    )
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as ear:
        await ear.execute("listen outbox_gen_1")
        async with state.transaction():
            await publisher_for(state, publishing).publish(event)
        with pytest.raises(pytest.fail.Exception, match="no notification"):
            await first_notification(ear, within=0.5)
