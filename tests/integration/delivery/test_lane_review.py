"""A group's transaction that somebody ends behind the lane's back, and a handler nobody can go on after."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from spectral.core.events import Consumer, EventEnvelope, Transaction
from spectral.core.events.delivery.desk import Desk, LoggerFor
from spectral.core.events.delivery.settle import SettleLoop
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
from spectral.core.events.lease import Delivery
from spectral.core.events.outcome import Handled
from spectral.core.events.ports import ClaimAsk, Gate
from spectral.core.events.probe import Finished, LeaseWasLost
from spectral.core.events.routes import Line, Routes
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    NEVER_AGAIN,
    SETTINGS,
    Bench,
    Scan,
    soon,
    until,
    write_effect,
)

Ending = Callable[[psycopg.AsyncConnection[object]], Awaitable[object]]


async def roll_back(connection: psycopg.AsyncConnection[object]) -> None:
    await connection.rollback()


async def roll_back_and_go_on(connection: psycopg.AsyncConnection[object]) -> None:
    await connection.rollback()
    await connection.execute("select 1")


async def commit(connection: psycopg.AsyncConnection[object]) -> None:
    with suppress(psycopg.Error):
        await connection.commit()


async def fail(connection: psycopg.AsyncConnection[object]) -> None:
    with suppress(psycopg.Error):
        await connection.execute("select 1 / 0")


ENDINGS: list[Ending] = [roll_back, roll_back_and_go_on, commit, fail]


class LeftOver:
    """A task that outlives its handler, and comes to its turn at the worst moment: between two turns of the lane's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after: str = "", before: Sequence[str] = ()) -> None:
        self._go = asyncio.Event()
        self._tasks: list[asyncio.Task[object]] = []
        for method in filter(None, (after, *before)):
            monkeypatch.setattr(PostgresLane, method, self._beside(method, is_first=method in before))

    def _beside(self, method: str, *, is_first: bool) -> Callable[..., Awaitable[object]]:
        original = getattr(PostgresLane, method)

        async def beside(lane: PostgresLane, *given: object) -> object:
            if is_first:
                await self._have_its_turn()
            answer = await original(lane, *given)
            await self._have_its_turn()
            return answer

        return beside

    async def _have_its_turn(self) -> None:
        if self._tasks:
            self._go.set()
            await soon(asyncio.gather(*self._tasks))
            self._tasks.clear()
            self._go.clear()

    def leave(self, tx: Transaction, ending: Ending) -> None:
        """By a handler that runs."""
        connection = tx.connection

        async def later() -> object:
            await self._go.wait()
            return await ending(connection)

        self._tasks.append(asyncio.create_task(later()))


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
@pytest.mark.parametrize("numbers", [(1, 2), (1, 2, 3)], ids=["at the commit", "at the next row"])
async def test_a_row_is_not_delivered_without_its_effect_when_a_task_ends_the_group_s_transaction(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...], ending: Ending
) -> None:
    left_over = LeftOver(monkeypatch, after="undo")

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            left_over.leave(tx, ending)
            raise OSError("away")

    ids = await bench.publish(*numbers)
    await bench.drain(platform, lanes=1)
    assert [(await bench.row(each))["status"] for each in ids] == ["delivered", "failed", "delivered"][: len(ids)]
    assert await bench.effects() == [("project", number) for number in numbers if number != 2]
    assert await bench.keys() == ["platform.project"] * (len(ids) - 1)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
@pytest.mark.parametrize("numbers", [(1, 2), (1, 2, 3)], ids=["at the commit", "at the next row"])
async def test_a_handler_that_returns_and_leaves_a_task_that_ends_the_transaction_fails_alone(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...], ending: Ending
) -> None:
    left_over = LeftOver(monkeypatch, before=("begin", "commit"))

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            left_over.leave(tx, ending)

    ids = await bench.publish(*numbers)
    await bench.drain(platform, lanes=1)
    rows = [await bench.row(each) for each in ids]
    assert [row["status"] for row in rows] == ["delivered", "failed", "delivered"][: len(ids)]
    assert rows[1]["last_error"].startswith("TransactionMisusedError: platform.project: ")
    assert await bench.effects() == [("project", number) for number in numbers if number != 2]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
async def test_a_row_that_was_handled_before_is_delivered_though_its_transaction_is_ended(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    connections: list[psycopg.AsyncConnection[object]] = []

    @platform.on(COMPLETED, concurrency=1)  # each in a transaction of its own
    async def project(scan: Scan, tx: Transaction) -> None:
        connections.append(tx.connection)
        await write_effect(tx, "project", scan.number)

    begin = PostgresLane.begin

    async def and_then_end(lane: PostgresLane, delivery: Delivery, handler_name: str) -> Gate:
        gate = await begin(lane, delivery, handler_name)
        if connections:
            await ending(connections.pop())
        return gate

    monkeypatch.setattr(PostgresLane, "begin", and_then_end)
    await bench.publish(1, idempotency_key="same")
    await bench.publish(2, idempotency_key="same")
    await bench.drain(platform, lanes=1)
    assert await bench.all_are("delivered")
    assert await bench.effects() == [("project", 1)]


async def change_the_role(tx: Transaction) -> None:
    await tx.execute("set role spectral_publisher")


async def roll_back_and_write_on(tx: Transaction) -> None:
    await tx.connection.rollback()
    await tx.execute("select 1")


async def leave_a_check_to_the_end(tx: Transaction) -> None:
    await tx.execute("create temp table parent (id integer primary key)")
    await tx.execute("create temp table child (id integer references parent deferrable initially deferred)")
    await tx.execute("insert into parent values (1)")
    await tx.execute("insert into child values (1)")


@pytest.mark.parametrize(
    "misuse", [change_the_role, roll_back_and_write_on, leave_a_check_to_the_end], ids=lambda way: way.__name__
)
async def test_the_first_of_two_handlers_that_misuses_the_transaction_is_named_and_tried_as_often_as_any(
    bench: Bench, platform: Consumer, misuse: Callable[[Transaction], Awaitable[None]]
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def first(scan: Scan, tx: Transaction) -> None:
        runs["first"] += 1
        await write_effect(tx, "first", scan.number)
        if scan.number == 2:
            await misuse(tx)

    @platform.on(COMPLETED)
    async def second(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "second", scan.number)

    ids = await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    rows = [await bench.row(each) for each in ids]
    assert [row["status"] for row in rows] == ["delivered", "failed", "delivered"]
    assert [row["attempts"] for row in rows] == [1, 4, 1]
    assert rows[1]["last_error"].startswith("TransactionMisusedError: platform.first: ")
    assert runs["first"] < 20
    assert await bench.effects() == [(name, number) for name in ("first", "second") for number in (1, 3)]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
async def test_the_first_of_two_handlers_that_fails_and_leaves_a_task_is_tried_as_often_as_any(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    left_over = LeftOver(monkeypatch, after="undo")

    @platform.on(COMPLETED)
    async def first(_: Scan, tx: Transaction) -> None:
        left_over.leave(tx, ending)
        raise OSError("away")

    @platform.on(COMPLETED)
    async def second(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "second", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform, lanes=1)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 4)
    # Whatever of it was kept, was kept once.
    assert len(await bench.effects()) == len(await bench.keys()) <= 1


async def test_a_check_that_is_left_to_the_end_is_made_in_a_transaction_of_its_own(
    bench: Bench, platform: Consumer
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await leave_a_check_to_the_end(tx)
        await write_effect(tx, "project", scan.number)

    await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    assert await bench.all_are("delivered")
    assert await bench.effects() == [("project", 1), ("project", 2), ("project", 3)]
    assert await bench.value("select max(attempts) from core.outbox") == 1


async def test_what_the_first_handler_did_is_kept_when_the_second_one_s_key_is_held(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def first(scan: Scan, tx: Transaction) -> None:
        runs["first"] += 1
        await write_effect(tx, "first", scan.number)

    @platform.on(COMPLETED)
    async def second(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "second", scan.number)

    hold = "insert into core.event_handled (handler_name, idempotency_key, event_id) values (%s, %s, %s)"
    async with await psycopg.AsyncConnection.connect(bench.dsn) as other, bench.running(platform, lanes=1):
        await other.execute(hold, ["platform.second", "held", uuid4()])
        (event_id,) = await bench.publish(1, idempotency_key="held")
        await until(lambda: _keys_of(bench, "platform.first"))
        assert await bench.effects() == [("first", 1)]
        await other.rollback()
        await until(lambda: bench.all_are("delivered"))
    assert runs["first"] == 1
    assert await bench.effects() == [("first", 1), ("second", 1)]
    row = await bench.row(event_id)
    assert (row["attempts"], row["last_error"]) == (1, None)


async def _keys_of(bench: Bench, handler: str) -> bool:
    return handler in await bench.keys()


async def test_the_client_s_encoding_is_not_the_worker_s(bench: Bench, platform: Consumer) -> None:
    names: list[object] = []

    @platform.on(COMPLETED)
    async def mail(envelope: EventEnvelope) -> None:
        names.append(envelope.payload["name"])

    await bench.insert(payload=Jsonb({"number": 1, "name": "Zoé"}))
    bench.dsn = make_conninfo(bench.dsn, client_encoding="latin1")
    await bench.drain(platform)
    assert names == ["Zoé"]


async def test_a_lost_lease_of_a_row_is_told_as_lost_though_another_one_of_it_is_settled_at_the_same_time(
    bench: Bench,
) -> None:
    line = Line("platform", (COMPLETED,), (), transactional=False)
    desk = Desk(SETTINGS, Routes((line,), {}), bench.notes, cast("LoggerFor", None), lambda: 0.5)
    claims = PostgresClaims(bench.dsn, replace(SETTINGS, name="worker"))
    ask = ClaimAsk("platform", (COMPLETED,), ("platform.mail",), 10)
    (event_id,) = await bench.publish(1)
    ((old,), *_), *_ = await claims.claim([ask])
    await bench.execute("select core.outbox_reap('300 s', '0 s', 100, 6)")
    ((new,), *_), *_ = await claims.claim([ask])
    await claims.close()
    assert old.lease.row_id == new.lease.row_id == event_id

    desk.hold([old, new], line)
    desk.took_effect(old, "platform.stale")
    for each in (old, new):
        desk.conclude(each, Handled())
    loop = asyncio.create_task(SettleLoop(PostgresSettlements(bench.dsn, SETTINGS), desk).run())
    await soon(desk.quiet.wait())
    loop.cancel()
    with suppress(asyncio.CancelledError):
        await loop
    assert [note.delivery.lease for note in bench.notes.of(LeaseWasLost)] == [old.lease]
    assert [note.delivery.lease for note in bench.notes.of(Finished)] == [new.lease]
    assert await bench.keys() == []


async def test_a_line_that_asks_for_ever_other_types_is_not_remembered_for_ever() -> None:
    claims = PostgresClaims("", SETTINGS)
    for number in range(1_000):
        assert f"{{t{number}}}".encode() in claims._claim(ClaimAsk("platform", (f"t{number}",), (), 1))
    assert claims._quoted.cache_info().currsize < 500  # what is remembered shows nowhere else
