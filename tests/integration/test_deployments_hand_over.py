"""Hand over: what is shown before, what moves and what stays, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from spectral.core import deployments
from spectral.core.database import Database, RefusedError, connect
from spectral.core.deployments import Count, HandedOver, HandOver, Release, Subscription, Waiting, handing_over, reading
from tests.migrations.sql import EVENT_TYPE, claim, publish, row, settle

Connection = psycopg.Connection[Any]
RENAMED = "worlds.scan.renamed"
BEGUN = "worlds.scan.begun"


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    """The operator's connection; generation 2 has gone live, so that rows of 1 may be handed over to it."""
    async with connect(database, "test") as opened:
        await opened.connection.execute("set role spectral_operator")
        subscription = Subscription("platform", EVENT_TYPE, "platform.project_scan", 6)
        await deployments.allocate(opened, Release("v2", (subscription,), 2), by="ada")
        await deployments.promote(opened, 2, by="ada")
        yield opened


def generations(connection: Connection) -> dict[tuple[int, str], int]:
    found = connection.execute("select generation, channel, count(*) from core.outbox group by 1, 2").fetchall()
    return {(generation, channel): rows for generation, channel, rows in found}


async def test_who_moves_rows_back_at_the_same_time_is_noticed(operator: Database, connection: Connection) -> None:
    for _ in range(10):
        publish(connection)

    def move_back(_: int) -> None:
        connection.execute("select core.outbox_hand_over(2, 1, null, 1, 'bob', null)")

    await deployments.allocate(operator, Release("v3", (), 3), by="ada")
    await deployments.promote(operator, 3, by="ada")  # rows of neither are publishers' any more
    with pytest.raises(RefusedError, match="somebody else hands over from 2 to 1 at the same time; 2 rows were moved"):
        await deployments.hand_over(operator, HandOver(1, 2, batch=2), by="ada", on_progress=move_back)


async def test_a_preview_counts_by_type_and_knows_what_nobody_would_handle(
    operator: Database, connection: Connection
) -> None:
    for kind, target, count in (
        (EVENT_TYPE, "platform", 3),
        (EVENT_TYPE, "worlds", 2),
        (RENAMED, "platform", 1),
        (EVENT_TYPE, None, 1),
        (BEGUN, None, 1),
    ):
        for _ in range(count):
            publish(connection, target=target, p_event_type=kind)
    assert len(claim(connection, limit=1)) == 1
    preview = await deployments.preview_hand_over(operator, HandOver(1, 2))
    assert preview.waiting == (
        Waiting("platform", EVENT_TYPE, 2, subscribed=True),
        Waiting("worlds", EVENT_TYPE, 2, subscribed=False),
        Waiting("platform", RENAMED, 1, subscribed=False),
        Waiting(None, BEGUN, 1, subscribed=False),
        Waiting(None, EVENT_TYPE, 1, subscribed=True),
    )
    assert (preview.total, preview.in_flight, preview.workers) == (Count(7), Count(1), ())
    assert len(preview.unhandled) == 3
    of_one = await deployments.preview_hand_over(operator, HandOver(1, 2, context="worlds"))
    assert (of_one.total, of_one.in_flight) == (Count(2), Count(0))
    assert generations(connection) == {(1, "outbox_gen_1"): 8}


async def test_a_preview_of_very_many_rows_ends_and_says_so(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        publish(connection)
    monkeypatch.setattr(reading, "PREVIEWED_AT_MOST", 4)
    assert (await deployments.preview_hand_over(operator, HandOver(1, 2))).total == Count(4)
    monkeypatch.setattr(reading, "PREVIEWED_AT_MOST", 3)
    assert (await deployments.preview_hand_over(operator, HandOver(1, 2))).total == Count(4, capped=True)


async def test_everything_that_waits_moves_batch_by_batch_with_its_class_and_its_attempts(
    operator: Database, connection: Connection
) -> None:
    tried = publish(connection)
    settle(connection, claim(connection), "retry", "TimeoutError: later", "1 hour")
    for given in ({"p_class": "hot"}, {"target": None}, {}, {}):
        publish(connection, **given)
    progress: list[int] = []
    done = await deployments.hand_over(
        operator, HandOver(1, 2, batch=2), by="ada", reason="v1 is gone", on_progress=progress.append
    )
    assert done == HandedOver(5, Count(0), Count(0), aborted=False)
    assert progress == [2, 4, 5]
    assert generations(connection) == {(2, "outbox_gen_2"): 4, (2, "outbox_gen_2_hot"): 1}
    assert (row(connection, tried)["attempts"], row(connection, tried)["last_error"]) == (1, "TimeoutError: later")
    entries = connection.execute(
        "select actor, reason, affected, detail, cardinality(event_ids) from core.audit where action = 'hand_over'"
        " order by id"
    ).fetchall()
    assert entries == [("ada", "v1 is gone", moved, {"generation": 2, "before": 1}, moved) for moved in (2, 2, 1)]
    await deployments.retire(operator, 1, by="ada")


async def test_of_one_context_only_its_own_rows_move(operator: Database, connection: Connection) -> None:
    for target in ("platform", "worlds", None):
        publish(connection, target=target)
    done = await deployments.hand_over(operator, HandOver(1, 2, context="worlds"), by="ada")
    assert done == HandedOver(1, Count(0), Count(0), aborted=False)
    moved = connection.execute("select target from core.outbox where generation = 2").fetchall()
    assert moved == [("worlds",)]


async def test_rows_in_flight_stay_with_their_worker_and_are_told_of(
    operator: Database, connection: Connection
) -> None:
    held = publish(connection)
    claims = claim(connection)
    publish(connection)
    done = await deployments.hand_over(operator, HandOver(1, 2), by="ada")
    assert done == HandedOver(1, Count(0), Count(1), aborted=False)
    assert row(connection, held)["generation"] == 1
    settle(connection, claims, "retry", "TimeoutError: again")
    assert (await deployments.hand_over(operator, HandOver(1, 2), by="ada")).moved == 1


async def test_it_may_be_ended_between_two_batches_and_begun_again(operator: Database, connection: Connection) -> None:
    for _ in range(5):
        publish(connection)
    progress: list[int] = []
    done = await deployments.hand_over(
        operator, HandOver(1, 2, batch=2), by="ada", on_progress=progress.append, aborted=lambda: len(progress) == 1
    )
    assert done == HandedOver(2, Count(3), Count(0), aborted=True)
    assert (await deployments.hand_over(operator, HandOver(1, 2), by="ada")).moved == 3


async def test_a_row_that_somebody_holds_is_waited_for(
    operator: Database, database: str, connection: Connection
) -> None:
    event_id = publish(connection)
    publish(connection)
    with psycopg.connect(database) as holder:
        holder.execute("select from core.outbox where id = %s for update", [event_id])
        progress: list[int] = []

        def let_go(moved: int) -> None:
            progress.append(moved)
            holder.rollback()

        done = await deployments.hand_over(operator, HandOver(1, 2), by="ada", on_progress=let_go)
    assert (done.moved, progress) == (2, [1, 2])


async def test_a_row_that_somebody_does_not_let_go_of_is_left_and_told_of(
    operator: Database, database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_over, "_PAUSE", 0.0)
    event_id = publish(connection)
    with psycopg.connect(database) as holder:
        holder.execute("select from core.outbox where id = %s for update", [event_id])
        async with asyncio.timeout(30):
            done = await deployments.hand_over(operator, HandOver(1, 2), by="ada")
    assert done == HandedOver(0, Count(1), Count(0), aborted=False)


async def test_a_publisher_that_goes_on_does_not_keep_it_for_ever(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_over, "_PAUSE", 0.0)
    publish(connection)
    publish(connection, target="worlds")

    def one_more(_moved: int) -> None:
        publish(connection)
        publish(connection, target="worlds")

    async with asyncio.timeout(30):
        done = await deployments.hand_over(operator, HandOver(1, 2), by="ada", on_progress=one_more)
    assert (done.moved, done.pending) == (40, Count(2))


async def test_what_was_stamped_with_a_number_that_is_retired_or_was_never_given_can_be_handed_over(
    operator: Database, connection: Connection
) -> None:
    publish(connection, p_generation=0)
    publish(connection, p_generation=99)
    for source in (0, 99):
        assert (await deployments.hand_over(operator, HandOver(source, 2), by="ada")).moved == 1
    assert generations(connection) == {(2, "outbox_gen_2"): 2}


async def test_nothing_is_handed_over_where_it_cannot_go(operator: Database, connection: Connection) -> None:
    publish(connection)
    for order, said in (
        (HandOver(1, 0), "generation 0 is retired"),
        (HandOver(2, 1), "generation 2 is live"),
        (HandOver(1, 1), "from one generation to another"),
        (HandOver(1, 2, batch=0), "at least one row"),
    ):
        for ask in (deployments.preview_hand_over(operator, order), deployments.hand_over(operator, order, by="ada")):
            with pytest.raises(RefusedError, match=said):
                await ask
    assert generations(connection) == {(1, "outbox_gen_1"): 1}
