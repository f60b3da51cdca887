"""Who fails beside others, is late or loses the connection, does so for himself; nothing of a group is half kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import psycopg
import pytest

from spectral.core.events import Consumer, TerminalHandlerError, Transaction
from spectral.core.events.consumer import Handler
from spectral.core.events.delivery import trust
from spectral.core.events.infrastructure.postgres import lane
from spectral.core.events.lease import Delivery
from spectral.core.events.probe import HandlerRan
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    NEVER_AGAIN,
    STARTED,
    Bench,
    Scan,
    shortened,
    soon,
    until,
    write_effect,
)
from tests.integration.delivery.trusted import ALL_ENDED, WARM, effects, project_scans, trusting


async def test_a_statement_that_is_refused_fails_alone_and_its_handler_hears_of_it_once(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    await bench.execute("create unique index on public.effects (handler, number)")
    await bench.execute("insert into public.effects (handler, number) values ('project', 3)")
    errors: list[BaseException] = []

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        try:
            await write_effect(tx, "project", scan.number)
        except Exception as error:
            errors.append(error)
            raise

    async with trusting(bench, platform):
        ids = await bench.publish(*range(6))
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips[0] == 6
    assert [type(error) for error in errors] == [psycopg.errors.UniqueViolation]
    assert [await bench.status(each) for each in ids] == [
        "failed" if number == 3 else "delivered" for number in range(6)
    ]
    assert sorted(await effects(bench)) == [("project", number) for number in range(6)]
    assert (await bench.row(ids[3]))["attempts"] == 1


async def test_one_that_fails_after_its_statement_fails_alone(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            raise TerminalHandlerError("no")

    async with trusting(bench, platform):
        ids = await bench.publish(*range(5))
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips[0] == 5
    assert sorted(await effects(bench)) == [("project", number) for number in (0, 1, 3, 4)]
    assert await bench.status(ids[2]) == "failed"


async def test_one_that_takes_too_long_fails_alone(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN, timeout=timedelta(seconds=1.5))
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 1:
            await asyncio.Event().wait()  # which nobody sets

    async with trusting(bench, platform):
        ids = await bench.publish(*range(4))
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips[0] == 4
    assert sorted(await effects(bench)) == [("project", number) for number in (0, 2, 3)]
    assert "HandlerTimeoutError" in (await bench.row(ids[1]))["last_error"]


async def test_a_statement_that_takes_too_long_fails_alone(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    """Nobody answers any more, so the connection is given up; one by one, all but one are answered in time."""
    await bench.execute("create table public.held (number integer primary key)")
    await bench.execute("insert into public.held select generate_series(0, 3)")

    @platform.on(COMPLETED, retry=NEVER_AGAIN, timeout=timedelta(seconds=1.5))
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute("update public.held set number = number where number = %s", [scan.number])

    async with (
        trusting(bench, platform, times=shortened(patience=2)),
        await psycopg.AsyncConnection.connect(bench.dsn) as other,
    ):
        await other.execute("select from public.held where number = 1 for update")
        ids = await bench.publish(*range(4))
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips[0] == 4
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered", "delivered"]


async def test_a_rollback_costs_nobody_else_his_trust(
    bench: Bench, platform: Consumer, round_trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has the server forget everything that is prepared when it rolls back."""
    monkeypatch.setattr(trust, "ENOUGH", 8)  # more than the driver wants to see of a statement before it prepares it
    blamed: list[str] = []
    failed = trust.Trust.failed

    def noted(self: trust.Trust, handler_name: str) -> None:
        blamed.append(handler_name)
        failed(self, handler_name)

    monkeypatch.setattr(trust.Trust, "failed", noted)
    project_scans(platform)

    @platform.on(STARTED, retry=NEVER_AGAIN)
    async def divide(scan: Scan, tx: Transaction) -> None:
        await tx.execute("select 1 / %s", [scan.number])
        if scan.number == 2:
            _ = tx.connection  # so that the driver rolls back
            raise TerminalHandlerError("no")

    async def deliver(*numbers: int, event_type: str = COMPLETED) -> None:
        await bench.publish(*numbers, event_type=event_type)
        await until(lambda: bench.value(ALL_ENDED))

    async with bench.running(platform, lanes=1):
        for number in range(3, 12):
            await deliver(number)
            await deliver(number, event_type=STARTED)
        for last in (0, 2):
            for _ in range(3):
                await deliver(*range(10))
            await deliver(last, event_type=STARTED)
            await deliver(*range(10))
    assert round_trips[-1] == 10
    assert set(blamed) == {"platform.divide"}


async def test_one_that_is_refused_like_a_name_that_was_forgotten_fails_all_the_same(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    await bench.execute(
        "create function public.refuse() returns trigger language plpgsql as"
        " $$ begin if new.number = 3 then raise exception 'no' using errcode = '0A000'; end if; return new; end $$"
    )
    await bench.execute(
        "create trigger refuse before insert on public.effects for each row execute function public.refuse()"
    )

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with trusting(bench, platform):
        await bench.publish(*range(10, 15))
        await until(lambda: bench.value(ALL_ENDED))
        ids = await bench.publish(*range(5))
        await until(lambda: bench.value(ALL_ENDED))
    assert len(round_trips) <= 4
    assert [await bench.status(each) for each in ids] == 3 * ["delivered"] + ["failed", "delivered"]


async def test_neighbours_of_one_that_fails_are_not_told_as_failed(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        if scan.number == 3:
            raise TerminalHandlerError("no")
        await write_effect(tx, "project", scan.number)

    async with trusting(bench, platform):
        await bench.publish(*range(6))
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips == []  # it failed before there was one
    told = [(note.act.delivery.payload, note.failure) for note in bench.notes.of(HandlerRan)]
    assert {payload for payload, failure in told if failure is not None} == {'{"number": 3}'}


async def test_a_connection_that_is_lost_under_their_statements_has_done_nothing(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    await bench.execute("create table public.held (number integer primary key)")
    await bench.execute("insert into public.held select generate_series(0, 4)")

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute(
            "with held as (update public.held set number = number where number = %s)"
            " insert into public.effects (handler, number) values ('project', %s)",
            [scan.number, scan.number],
        )

    async with trusting(bench, platform):
        async with await psycopg.AsyncConnection.connect(bench.dsn) as other:
            await other.execute("select from public.held where number = 3 for update")
            await bench.publish(*range(5))
            await until(lambda: bench.value("select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock'"))
            await bench.terminate("lane")
        await until(lambda: bench.all_are("delivered"))
    assert round_trips[0] == 5
    assert sorted(await effects(bench)) == [("project", number) for number in range(5)]


async def test_a_worker_that_is_cancelled_under_their_statements_leaves_nothing(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    await bench.execute("create table public.held (number integer primary key)")
    await bench.execute("insert into public.held select generate_series(0, 3)")
    ended: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        try:
            await tx.execute("update public.held set number = number where number = %s", [scan.number])
        except asyncio.CancelledError:
            ended[scan.number] += 1
            raise

    listener = bench.worker(platform, lanes=1)
    running = asyncio.create_task(listener.run())
    await bench.publish(WARM)
    await until(lambda: bench.all_are("delivered"))
    async with await psycopg.AsyncConnection.connect(bench.dsn) as other:
        await other.execute("select from public.held where number = 2 for update")
        ids = await bench.publish(*range(4))
        await until(lambda: bench.value("select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock'"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(running)
    assert round_trips == [4]
    assert ended == {0: 1, 1: 1, 2: 1, 3: 1}
    assert {await bench.status(each) for each in ids} == {"pending"}
    assert [(await bench.row(each))["attempts"] for each in ids] == [0, 0, 0, 0]


async def test_a_worker_that_is_told_to_stop_begins_none_of_them(
    bench: Bench, platform: Consumer, round_trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = project_scans(platform)
    begin = lane.PostgresLane.begin_together

    async def begin_and_stop(
        self: lane.PostgresLane, begun: Sequence[tuple[Delivery, Handler]], only: str | None = None
    ) -> bool:
        listener.stop()
        await until(lambda: listener._desk.stopping)
        return await begin(self, begun, only)

    monkeypatch.setattr(lane.PostgresLane, "begin_together", begin_and_stop)
    listener = bench.worker(platform, lanes=1)
    running = asyncio.create_task(listener.run())
    await bench.publish(WARM)
    await until(lambda: bench.all_are("delivered"))
    ids = await bench.publish(*range(4))
    await soon(running)
    assert round_trips == []
    assert set(runs) == {WARM}
    assert [(await bench.row(each))["attempts"] for each in ids] == [0, 0, 0, 0]
    assert {await bench.status(each) for each in ids} == {"pending"}
