"""Handlers of one statement run at the same time in one transaction, and what they do is as if they had not."""

from __future__ import annotations

import gc
import uuid
import weakref
from collections import Counter
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from spectral.core.events import Consumer, Transaction
from spectral.core.events.infrastructure.postgres import lane
from spectral.core.events.probe import Finished, HandlerRan
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
from tests.integration.delivery.trusted import ALL_ENDED, WARM, effects, project_scans, trusting


async def test_they_share_a_round_trip(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    runs = project_scans(platform)

    async with trusting(bench, platform):
        await bench.publish(*range(8))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == [8]
    assert sorted(await effects(bench)) == [("project", number) for number in range(8)]
    assert set(runs.values()) == {1}
    assert len(bench.notes.of(HandlerRan)) == len(bench.notes.of(Finished)) == 9


async def test_what_a_handler_was_given_does_not_wait_for_the_garbage_collector(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    given: list[weakref.ref[object]] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        cursor = await tx.execute("select %s", [scan.number])
        given.extend((weakref.ref(tx), weakref.ref(cursor)))

    async with trusting(bench, platform):
        gc.collect()
        gc.disable()
        try:
            await bench.publish(*range(8))
            await until(lambda: bench.all_are("delivered"))
            left = [each() for each in given[-16:]]
        finally:
            gc.enable()
    assert round_trips == [8]
    assert left == [None] * 16


async def test_groups_grow_and_statements_are_prepared(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    project_scans(platform)

    async with trusting(bench, platform):
        for first in (0, 100, 200):
            await bench.publish(*range(first, first + 60))
            await until(lambda: bench.all_are("delivered"))
    assert max(round_trips) > 10
    assert len(await effects(bench)) == 180


async def test_each_gets_its_own_answer(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    answers: dict[int, Any] = {}
    given = uuid.uuid4()
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        cursor: Any
        if scan.number == 0:
            cursor = await tx.execute("select %s::int, %s::text, %s::uuid", (2**40 % 7, None, given))
            answers[0] = await cursor.fetchone()
        elif scan.number == 1:
            cursor = await tx.execute("select n from generate_series(1, %(last)s) as n", {"last": 3})
            answers[1] = [row async for row in cursor]
        elif scan.number == 2:
            cursor = await tx.execute("insert into public.effects (handler, number) values ('a', 2), ('b', 2)")
            answers[2] = cursor.rowcount
        elif scan.number == 3:
            cursor = await tx.execute("select %s, %s, %s, %s", [Jsonb({"a": [1]}), at, Decimal("1.5"), [1, 2]])
            answers[3] = (await cursor.fetchall(), [column.name for column in cursor.description])
        elif scan.number == 4:
            cursor = await tx.execute("select '100%'")
            answers[4] = (await cursor.fetchmany(5), cursor.statusmessage)
        elif scan.number == 5:
            cursor = await tx.execute("update public.effects set number = 1 where number = -1 returning number")
            answers[5] = (cursor.rowcount, await cursor.fetchall())
        else:
            await tx.execute("select 1")

    async with trusting(bench, platform):
        await bench.publish(*range(6))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == [6]
    assert answers[0] == (2**40 % 7, None, given)
    assert answers[1] == [(1,), (2,), (3,)]
    assert answers[2] == 2
    rows, names = answers[3]
    assert rows == [({"a": [1]}, at, Decimal("1.5"), [1, 2])]
    assert len(names) == 4
    assert answers[4] == ([("100%",)], "SELECT 1")
    assert answers[5] == (0, [])


async def test_a_value_that_needs_a_larger_type_is_another_statement(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    """The driver chooses the type of a number by its size, and a statement is prepared for its types."""
    found: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        cursor: Any = await tx.execute("select %s", [scan.number if scan.number % 2 else scan.number + 2**40])
        found.append((await cursor.fetchone())[0])

    async with trusting(bench, platform):
        for _ in range(3):
            await bench.publish(*range(8))
            await until(lambda: bench.all_are("delivered"))
    assert len(round_trips) == 3
    assert Counter(number for number in found if number not in (WARM, WARM + 2**40)) == Counter(
        3 * [number if number % 2 else number + 2**40 for number in range(8)]
    )


async def test_what_was_prepared_in_vain_is_not_prepared_again_and_again(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    await bench.execute("create unique index on public.effects (handler, number)")
    await bench.execute("insert into public.effects (handler, number) values ('project', -1)")
    prepared: list[int] = []

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute(
            "insert into public.effects (handler, number) values ('project', %s)", [min(scan.number, 10**6) % 10**6]
        )

    @platform.on(STARTED)
    async def look(scan: Scan, tx: Transaction) -> None:
        cursor = await tx.connection.execute("select count(*) from pg_prepared_statements where name like 'spectral%'")
        row = await cursor.fetchone()
        prepared.append(row[0] + 0 * scan.number)

    async with trusting(bench, platform, COMPLETED, STARTED):
        for first in range(0, 60, 10):
            await bench.publish(first, first + 1, first + 2, first)  # the last of them is refused
            await until(lambda: bench.value(ALL_ENDED))
            await bench.publish(*range(first + 3, first + 6))
            await until(lambda: bench.value(ALL_ENDED))
            await bench.publish(first, event_type=STARTED)
            await until(lambda: bench.value(ALL_ENDED))
    assert len(round_trips) >= 6
    assert max(prepared) <= 2


async def test_handlers_of_several_types_share_a_round_trip(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    project_scans(platform)

    @platform.on(STARTED)
    async def begin(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "begin", scan.number)

    async with trusting(bench, platform, COMPLETED, STARTED):
        async with bench.connection.transaction():
            await bench.publish(0, 1)
            await bench.publish(2, 3, event_type=STARTED)
        await until(lambda: bench.all_are("delivered"))
    assert sum(round_trips) == 4
    assert sorted(await effects(bench)) == [("begin", 2), ("begin", 3), ("project", 0), ("project", 1)]


async def test_each_has_a_context_of_its_own(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    whose: ContextVar[int] = ContextVar("whose", default=-1)
    found: dict[int, tuple[int, int]] = {}

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        before = whose.get()
        whose.set(scan.number)
        await write_effect(tx, "project", scan.number)
        found[scan.number] = before, whose.get()

    async with trusting(bench, platform):
        await bench.publish(*range(5))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == [5]
    assert found == {number: (-1, number) for number in (WARM, *range(5))}


async def test_much_to_send_and_much_to_read_do_not_wait_for_each_other(
    bench: Bench, platform: Consumer, round_trips: list[int]
) -> None:
    """More than the buffers of both sides hold."""
    lengths: list[int] = []

    @platform.on(COMPLETED, timeout=timedelta(seconds=25))
    async def project(scan: Scan, tx: Transaction) -> None:
        text = "x" * (1 if scan.number == WARM else 1_000_000)
        cursor: Any = await tx.execute("select %s::text || %s::text", [text, text])
        lengths.append(len((await cursor.fetchone())[0]))

    async with trusting(bench, platform, times=shortened(lease=60)):
        await bench.publish(*range(10))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == [10]
    assert Counter(lengths) == {2: 1, 2_000_000: 10}


@pytest.mark.parametrize("change", ["deallocate all", "alter table public.wide add column b integer"])
async def test_statements_that_were_prepared_are_prepared_again_when_they_have_to_be(
    bench: Bench, platform: Consumer, round_trips: list[int], change: str
) -> None:
    await bench.execute("create table public.wide (a integer)")
    await bench.execute("insert into public.wide values (1)")
    widths: list[int] = []

    @platform.on(COMPLETED)
    async def read(scan: Scan, tx: Transaction) -> None:
        cursor: Any = await tx.execute("select * from public.wide where %s = %s", [scan.number, scan.number])
        widths.append(len(await cursor.fetchone()))

    @platform.on(STARTED)
    async def alter(scan: Scan, tx: Transaction) -> None:
        if scan.number < WARM:
            await tx.connection.execute(change.encode(), prepare=False)

    async def deliver(*numbers: int, event_type: str = COMPLETED) -> None:
        await bench.publish(*numbers, event_type=event_type)
        await until(lambda: bench.all_are("delivered"))

    async with trusting(bench, platform, COMPLETED, STARTED):
        await deliver(*range(4))
        await deliver(*range(4))
        await deliver(0, event_type=STARTED)
        for _ in range(4):
            await deliver(*range(4))
    assert round_trips[-1] == 4, "trusted again"
    assert len(widths) >= 25
    assert widths[-4:] == [2 if "alter" in change else 1] * 4


async def test_with_a_driver_that_is_not_known_they_run_one_after_the_other(
    bench: Bench, platform: Consumer, round_trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane, "KNOWS_DRIVER", False)
    project_scans(platform)

    async with trusting(bench, platform):
        await bench.publish(*range(5))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == []
    assert len(await effects(bench)) == 5
