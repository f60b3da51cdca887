"""What the server refuses a handler: contention passes and leaves one effect, a broken constraint is for good."""

from __future__ import annotations

import asyncio
from collections import Counter

import psycopg
import pytest

from spectral.core.events import Consumer, DeliveryContext, Transaction
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, STARTED, Bench, Scan, until, write_effect


async def test_a_deadlock_between_two_lanes_leaves_one_effect_each(bench: Bench, platform: Consumer) -> None:
    await bench.execute("create table public.counters (id integer primary key, hits integer not null default 0)")
    await bench.execute("insert into public.counters (id) values (1), (2)")
    both_hold_one = asyncio.Barrier(2)
    first_time: set[int] = set()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        one, other = (1, 2) if scan.number == 1 else (2, 1)
        await tx.execute("update public.counters set hits = hits + 1 where id = %s", [one])
        if scan.number not in first_time:
            first_time.add(scan.number)
            await both_hold_one.wait()
        await tx.execute("update public.counters set hits = hits + 1 where id = %s", [other])
        await write_effect(tx, "project", scan.number)

    await bench.publish(1, 2)
    async with bench.running(platform, lanes=2):
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", 1), ("project", 2)]
    assert await bench.value("select array_agg(hits order by id) from public.counters") == [2, 2]


async def test_a_deadlock_that_comes_of_sharing_a_commit_is_not_charged_to_anybody(bench: Bench) -> None:
    """Two lanes lock a and b in opposite order, but only because they keep the lock of the row before."""
    await bench.execute("create table public.counters (id integer primary key, hits integer not null default 0)")
    await bench.execute("insert into public.counters (id) values (1), (2)")
    platform = Consumer("platform", retry=AT_ONCE)
    both_hold_one = asyncio.Barrier(2)
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        which = {1: 1, 2: 2, 3: 2, 4: 1}[scan.number]  # a lane takes the first half, the other the second
        await tx.execute("update public.counters set hits = hits + 1 where id = %s", [which])
        if scan.number in (1, 3) and runs[scan.number] == 1:
            await both_hold_one.wait()
        await write_effect(tx, "project", scan.number)

    ids = await bench.publish(1, 2, 3, 4)
    async with bench.running(platform, lanes=2):
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", number) for number in (1, 2, 3, 4)]
    assert await bench.value("select array_agg(hits order by id) from public.counters") == [2, 2]
    assert [(await bench.row(each))["attempts"] for each in ids] == [1, 1, 1, 1]


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03", "57014", "53300", "08006", "23503", "P0001"])
async def test_what_may_pass_is_retried_and_has_one_effect(bench: Bench, platform: Consumer, sqlstate: str) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction, context: DeliveryContext) -> None:
        await write_effect(tx, "project", scan.number)
        if context.attempt == 1 and scan.number == 2:
            await tx.execute(f"do $$ begin raise exception 'no' using errcode = '{sqlstate}'; end $$")

    ids = await bench.publish(1, 2, 3)
    async with bench.running(platform, lanes=1):
        # contention in a shared commit is tried again alone, and may not even be charged
        await until(lambda: bench.value("select bool_and(status <> 'in_flight') from core.outbox"))
        await until(
            lambda: bench.value("select count(*) >= 2 from core.outbox where status in ('delivered', 'failed')")
        )
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    attempts = [(await bench.row(each))["attempts"] for each in ids]
    assert attempts in ([1, 2, 1], [1, 4, 1])
    assert await bench.effects() == [("project", 1), ("project", 2), ("project", 3)]


@pytest.mark.parametrize("sqlstate", ["23505", "23502", "23514", "22012", "22P02", "42P01", "42501", "3F000", "42883"])
async def test_what_will_not_pass_goes_to_the_dlq_at_once(bench: Bench, platform: Consumer, sqlstate: str) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await tx.execute(f"do $$ begin raise exception 'no' using errcode = '{sqlstate}'; end $$")

    ids = await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    rows = [await bench.row(each) for each in ids]
    expected = 4 if sqlstate == "3F000" else 1
    assert [(row["status"], row["attempts"]) for row in rows] == [
        ("delivered", 1),
        ("failed", expected),
        ("delivered", 1),
    ]
    assert await bench.effects() == [("project", 1), ("project", 3)]


async def test_a_serialization_failure_of_the_handlers_own_passes(bench: Bench, platform: Consumer) -> None:
    await bench.execute("create table public.counters (id integer primary key, hits integer not null default 0)")
    await bench.execute("insert into public.counters (id) values (1)")

    @platform.on(STARTED)
    async def count(scan: Scan, context: DeliveryContext) -> None:
        async with await psycopg.AsyncConnection.connect(bench.dsn) as mine:
            await mine.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await mine.execute("select hits from public.counters")
            if context.attempt == 1:
                await bench.execute("update public.counters set hits = hits + 10")
            await mine.execute("update public.counters set hits = hits + %s", [scan.number])

    (event_id,) = await bench.publish(1, event_type=STARTED)
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"))
    row = await bench.row(event_id)
    assert (row["attempts"], row["last_error"].partition(":")[0]) == (2, "SerializationFailure")
    assert await bench.value("select hits from public.counters") == 11


async def test_a_unique_violation_is_terminal_and_does_not_quote_the_row(bench: Bench, platform: Consumer) -> None:
    await bench.execute("create table public.cards (name text primary key)")

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        for _ in range(2):
            await tx.execute("insert into public.cards values (%s)", [f"canary-{scan.number}"])

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert row["last_error"] == (
        'UniqueViolation: platform.project: duplicate key value violates unique constraint "cards_pkey" (23505)'
    )
