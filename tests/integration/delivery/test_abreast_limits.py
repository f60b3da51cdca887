"""Who does more than send one statement and wait for it is found out before anything is kept, and runs by himself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.string import TextLoader

from spectral.core.events import Consumer, EventEnvelope, TerminalHandlerError, Transaction
from spectral.core.events.failure import TransactionMisusedError
from spectral.core.events.probe import HandlerRanAway
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    NEVER_AGAIN,
    STARTED,
    Bench,
    Scan,
    shortened,
    until,
    write_effect,
)
from tests.integration.delivery.trusted import ALL_ENDED, WARM, effects, trusting


async def test_who_reads_before_he_writes_loses_no_update(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    """One statement so far, then two, the second of which is made of the answer to the first."""
    await bench.execute("create table public.balance (amount integer)")
    await bench.execute("insert into public.balance values (0)")

    @platform.on(COMPLETED)
    async def add(scan: Scan, tx: Transaction) -> None:
        cursor: Any = await tx.execute("select amount from public.balance for update")
        (amount,) = await cursor.fetchone()
        if scan.number < WARM:
            await tx.execute("update public.balance set amount = %s", [amount + 1])

    async with trusting(bench, platform):
        await bench.publish(*range(8))
        await until(lambda: bench.all_are("delivered"))
        await bench.publish(*range(8))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == [8]  # and never again
    assert await bench.value("select amount from public.balance") == 16


async def by_the_connection(tx: Transaction) -> None:
    await tx.connection.execute("insert into public.effects (handler, number) values ('more', 2)")


async def by_publishing(tx: Transaction) -> None:
    await write_effect(tx, "more", 2)
    await tx.publish(EventEnvelope(event_type=STARTED, source="platform", target="worlds", payload={"number": 2}))


async def by_two_at_once(tx: Transaction) -> None:
    await asyncio.gather(write_effect(tx, "more", 2), tx.execute("select 1"))


async def by_not_waiting(tx: Transaction) -> None:
    left = asyncio.ensure_future(write_effect(tx, "more", 2))
    left.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.sleep(0)


async def by_the_cursor(tx: Transaction) -> None:
    cursor: Any = await tx.execute("select 1")
    await cursor.execute("insert into public.effects (handler, number) values ('more', 2)")


async def by_changing_how_rows_are_read(tx: Transaction) -> None:
    cursor: Any = await tx.execute("insert into public.effects (handler, number) values ('more', 2) returning number")
    cursor.adapters.register_loader("int4", TextLoader)


@pytest.mark.parametrize(
    "want_more",
    [
        by_the_connection,
        by_publishing,
        by_two_at_once,
        by_not_waiting,
        by_the_cursor,
        by_changing_how_rows_are_read,
    ],
)
@pytest.mark.parametrize("swallows", [False, True])
async def test_who_wants_more_than_a_statement_is_run_by_himself(
    bench: Bench,
    platform: Consumer,
    groups: list[int],
    want_more: Callable[[Transaction], Awaitable[None]],
    *,
    swallows: bool,
) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        if scan.number != 2:
            await write_effect(tx, "project", scan.number)
            return
        try:
            await want_more(tx)
        except BaseException:
            if not swallows:
                raise

    async with trusting(bench, platform):
        ids = await bench.publish(*range(5))
        await until(lambda: bench.value(ALL_ENDED))
    assert groups[0] == 5
    assert runs[2] >= 2
    wants_to_be_waited_for = want_more is not by_not_waiting  # or the transaction cannot be kept, whoever runs it
    assert await bench.status(ids[2]) == ("delivered" if wants_to_be_waited_for else "failed")
    more = [("more", 2)] if wants_to_be_waited_for else []
    assert await effects(bench) == [*more, *(("project", number) for number in (0, 1, 3, 4))]
    published = await bench.value("select count(*) from core.outbox where target = 'worlds'")
    assert published == (want_more is by_publishing)


async def test_who_waits_for_something_else_is_not_run_beside_others_again(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    inside, most = 0, [0]

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        nonlocal inside
        inside += 1
        most[-1] = max(most[-1], inside)
        if scan.number < WARM:
            await asyncio.sleep(0.01)
        await write_effect(tx, "project", scan.number)
        inside -= 1

    async with trusting(bench, platform):
        await bench.publish(*range(6))
        await until(lambda: bench.all_are("delivered"))
        before = len(round_trips)
        most.append(0)
        await bench.publish(*range(10, 16))
        await until(lambda: bench.all_are("delivered"))
    assert most == [6, 1]
    assert before >= 1
    assert len(round_trips) == before
    assert len(await effects(bench)) == 12


async def test_what_a_handler_has_given_up_is_not_kept(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    """It waits no longer for its statement, which is carried out all the same."""
    await bench.execute("create table public.held (number integer primary key)")
    await bench.execute("insert into public.held select generate_series(0, 3)")
    last: dict[int, str] = {}

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        try:
            async with asyncio.timeout(0.5):
                await tx.execute(
                    "with held as (update public.held set number = number where number = %s)"
                    " insert into public.effects (handler, number) values ('project', %s)",
                    [scan.number, scan.number],
                )
            last[scan.number] = "written"
        except TimeoutError:
            last[scan.number] = "given up"
            raise

    async with trusting(bench, platform), await psycopg.AsyncConnection.connect(bench.dsn) as other:
        await other.execute("select from public.held where number = 1 for update")
        await bench.publish(*range(3))
        await until(lambda: "given up" in last.values())
        await other.rollback()
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips[0] == 3
    assert {number for _, number in await effects(bench)} == {
        number for number, how in last.items() if how == "written" and number < WARM
    }


async def test_who_gives_up_and_returns_is_run_again(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    await bench.execute("create table public.held (number integer primary key)")
    await bench.execute("insert into public.held select generate_series(0, 3)")
    given_up: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await tx.execute("update public.held set number = number where number = %s", [scan.number])
                return
        given_up[scan.number] += 1

    async with trusting(bench, platform), await psycopg.AsyncConnection.connect(bench.dsn) as other:
        await other.execute("select from public.held where number = 1 for update")
        ids = await bench.publish(*range(3))
        await until(lambda: given_up[1])
        await until(lambda: bench.value(ALL_ENDED))
        await other.rollback()
    assert round_trips == [3]
    # Its statement was ended while it ran by itself, and whoever goes on after that has failed.
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]


async def test_who_cancels_himself_and_returns_has_failed(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        itself = asyncio.current_task()
        if scan.number == 1 and itself is not None:
            itself.cancel()

    async with trusting(bench, platform):
        ids = await bench.publish(*range(3))
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips[0] == 3
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]
    assert await effects(bench) == [("project", 0), ("project", 2)]


async def test_a_handler_with_a_loop_of_its_own_is_run_by_himself(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        if scan.number < WARM:
            await asyncio.to_thread(lambda: asyncio.run(write_effect(tx, "project", scan.number)))
        else:
            await write_effect(tx, "project", scan.number)

    async with trusting(bench, platform):
        await bench.publish(*range(3))
        await until(lambda: bench.all_are("delivered"))
        before = len(round_trips)
        await bench.publish(*range(10, 13))
        await until(lambda: bench.all_are("delivered"))
    assert len(round_trips) == before
    assert {number for _, number in await effects(bench)} == {0, 1, 2, 10, 11, 12}


async def test_who_runs_away_can_do_no_harm(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    go_on = asyncio.Event()
    refused: list[Exception] = []

    @platform.on(COMPLETED, retry=NEVER_AGAIN, timeout=timedelta(seconds=1))
    async def project(scan: Scan, tx: Transaction) -> None:
        if scan.number == 1:
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await go_on.wait()
        try:
            await write_effect(tx, "project", scan.number)
        except TransactionMisusedError as refusal:
            refused.append(refusal)

    async with trusting(bench, platform):
        ids = await bench.publish(*range(3))
        try:
            await until(lambda: bench.value(ALL_ENDED))
        finally:
            go_on.set()
        await until(lambda: len(refused) == 2)
    assert round_trips[:1] == [2], "the one that does not come to its statement"
    assert len(bench.notes.of(HandlerRanAway)) == 2
    assert sorted(await effects(bench)) == [("project", 0), ("project", 2)]
    assert await bench.status(ids[1]) == "failed"


async def test_who_ran_away_does_not_end_what_others_wait_for(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    await bench.execute("create table public.held (number integer primary key)")
    await bench.execute("insert into public.held select generate_series(0, 3)")
    go_on = asyncio.Event()
    came_back: list[int] = []

    @platform.on(COMPLETED, retry=NEVER_AGAIN, timeout=timedelta(seconds=1))
    async def run_away(scan: Scan, tx: Transaction) -> None:
        if scan.number < WARM:
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await go_on.wait()
            came_back.append(scan.number)
            raise TerminalHandlerError("too late")
        await write_effect(tx, "run_away", scan.number)

    @platform.on(STARTED, timeout=timedelta(seconds=25))
    async def wait(scan: Scan, tx: Transaction) -> None:
        await tx.execute("update public.held set number = number where number = %s", [scan.number])

    async with (
        trusting(bench, platform, COMPLETED, STARTED, times=shortened(lease=60)),
        await psycopg.AsyncConnection.connect(bench.dsn) as other,
    ):
        await other.execute("select from public.held where number = 2 for update")
        try:
            await bench.publish(1)
            await until(lambda: bench.value(ALL_ENDED))
            ids = await bench.publish(2, 3, event_type=STARTED)
            await until(lambda: bench.value("select count(*) = 1 from pg_stat_activity where wait_event_type = 'Lock'"))
        finally:
            go_on.set()
        await until(lambda: came_back == [1, 1])
        await other.rollback()
        await until(lambda: bench.value(ALL_ENDED))
    assert round_trips == [2]
    assert [await bench.status(each) for each in ids] == ["delivered", "delivered"]


@pytest.mark.parametrize("way", ["two", "many rows", "publish"])
async def test_who_does_more_from_the_beginning_is_never_run_beside_others(
    bench: Bench, platform: Consumer, round_trips: list[int], groups: list[int], way: str
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        if way == "two":
            await tx.execute("select 1")
        elif way == "many rows":
            await tx.execute("select generate_series(1, 11)")
            return
        else:
            await tx.publish(
                EventEnvelope(event_type=STARTED, source="platform", target="worlds", payload={"number": scan.number})
            )
            return
        await write_effect(tx, "project", scan.number)

    async with trusting_to_be_delivered(bench, platform):
        await bench.publish(*range(5))
        await until(
            lambda: bench.value("select count(*) = 6 from core.outbox where status = 'delivered' and source = 'worlds'")
        )
    assert round_trips == []
    assert groups[0] == 5


@asynccontextmanager
async def trusting_to_be_delivered(bench: Bench, consumer: Consumer) -> AsyncIterator[None]:
    """As `trusting`, for handlers whose own events nobody delivers."""
    async with bench.running(consumer, lanes=1):
        await bench.publish(WARM)
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where source = 'worlds'"))
        yield
