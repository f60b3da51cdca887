"""Replay and discard by ids: what is done, what is refused, and that two at once are one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import Database, NotFoundError, RefusedError, connect
from spectral.core.operations.discard import discard
from spectral.core.operations.replay import replay
from tests.integration.delivery.platform_worker import until
from tests.migrations.schema import outbox_row, role, update, value
from tests.migrations.sql import fail, row

Connection = psycopg.Connection[Any]


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


async def test_a_replayed_row_starts_anew_in_the_live_generation(operator: Database, connection: Connection) -> None:
    event_id = fail(connection, "ValueError: platform.index: no")
    (done,) = await replay(operator, [event_id], by="ada", reason="fixed")
    assert (done.id, done.cycle, done.refusal) == (event_id, 1, None)
    found = row(connection, event_id)
    assert (found["status"], found["attempts"], found["generation"], found["last_error"]) == ("pending", 0, 1, None)
    assert [(each["last_error"], each["replayed_by"]) for each in found["failure_history"]] == [
        ("ValueError: platform.index: no", "ada")
    ]
    audit = connection.execute("select action, actor, reason, affected, event_ids from core.audit").fetchall()
    assert audit == [("replay", "ada", "fixed", 1, [event_id])]


async def test_what_cannot_be_replayed_is_refused_with_its_reason_and_the_rest_is_replayed(
    operator: Database, connection: Connection
) -> None:
    event_id, gone = fail(connection), fail(connection)
    expected: dict[UUID, str | None] = {
        outbox_row(connection, status): status for status in ("pending", "in_flight", "delivered")
    }
    await discard(operator, [gone], by="ada", reason="oh")
    expected |= {gone: "discarded", uuid4(): "unknown", event_id: None}
    done = await replay(operator, list(expected), by="ada")
    assert {each.id: each.refusal for each in done} == expected


async def test_a_generation_may_be_named_and_must_not_be_retired_or_unknown(
    operator: Database, connection: Connection
) -> None:
    event_id = fail(connection)
    for generation in (0, 99):
        with pytest.raises(RefusedError, match=f"generation {generation} is"):
            await replay(operator, [event_id], generation=generation, by="ada")
    await replay(operator, [event_id], generation=2, by="ada")
    assert (row(connection, event_id)["generation"], row(connection, event_id)["channel"]) == (2, "outbox_gen_2")


async def test_without_a_live_generation_one_has_to_be_named(operator: Database, connection: Connection) -> None:
    event_id = fail(connection)
    connection.execute("select core.deployment_drain(1)")
    with pytest.raises(NotFoundError, match="no generation is live"):
        await replay(operator, [event_id], by="ada")
    assert row(connection, event_id)["status"] == "failed"


async def test_two_operators_replay_the_same_event_at_the_same_moment_and_it_is_replayed_once(
    database: str, connection: Connection
) -> None:
    event_id = fail(connection)
    async with AsyncExitStack() as stack:
        operators = [await stack.enter_async_context(connect(database, f"operator {n}")) for n in range(8)]
        with psycopg.connect(database) as blocker:
            # All of them wait for the row, and get it at the same moment.
            blocker.execute("select from core.outbox where id = %s for update", [event_id])
            waiting = [
                asyncio.create_task(replay(each, [event_id], by=f"operator {n}")) for n, each in enumerate(operators)
            ]
            await until(lambda: value(connection, "select count(*) = 8 from pg_locks where not granted"))
            blocker.commit()
        answers = [(await each)[0] for each in waiting]
    assert sorted(str(each.refusal) for each in answers) == ["None", *["pending"] * 7]
    assert len(row(connection, event_id)["failure_history"]) == 1
    assert value(connection, "select count(*) from core.audit where action = 'replay'") == 1


async def test_discarding_needs_a_reason_and_can_be_taken_back(operator: Database, connection: Connection) -> None:
    event_id = fail(connection)
    with pytest.raises(RefusedError, match="needs a reason"):
        await discard(operator, [event_id], by="ada", reason=" ")
    assert (await discard(operator, [event_id], by="ada", reason="a test order"))[0].refusal is None
    assert row(connection, event_id)["deleted_at"] is not None
    assert update(connection, event_id, deleted_at=None) == 1
    assert (await replay(operator, [event_id], by="ada"))[0].cycle == 1
