"""Handlers that write to rows which others want too: a deadlock once, and not again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg
import pytest

from spectral.core.events import Consumer, Transaction
from spectral.core.events.delivery import trust
from spectral.core.events.probe import Conflicted, KeptApart, SettlementWritten
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, STARTED, Bench, Scan, until
from tests.integration.delivery.trusted import trusting

BRIEF = pytest.mark.parametrize("is_brief", [True, False], ids=["abreast", "one by one"])
GROUP = "select pg_advisory_xact_lock(hashtextextended('spectral.group.' || %s, 0))"


@pytest.fixture(autouse=True)
async def _counters(bench: Bench) -> None:
    await bench.execute("create table public.counters (number integer primary key, seen integer not null default 0)")
    await bench.execute("insert into public.counters select generate_series(0, 9)")
    # A session looks once, after so long, whether it waits in a circle: whoever is to close that needs the time.
    await bench.execute(f"alter database {bench.connection.info.dbname} set deadlock_timeout = '1500ms'")


def counting(consumer: Consumer, *, is_brief: bool) -> str:
    """A handler that counts by the last digit; answers its name."""

    @consumer.on(COMPLETED, retry=AT_ONCE)
    async def count(scan: Scan, tx: Transaction) -> None:
        if not is_brief:
            await tx.execute("select 1")
        await tx.execute("update public.counters set seen = seen + 1 where number = %s", (scan.number % 10,))

    return "platform.count"


@asynccontextmanager
async def stranger(bench: Bench) -> AsyncIterator[psycopg.AsyncConnection]:
    """Somebody else, whom the server does not choose when it has to end a deadlock."""
    async with await psycopg.AsyncConnection.connect(bench.dsn) as connection:
        await connection.execute("set deadlock_timeout = '1min'")
        await connection.commit()
        yield connection


@pytest.fixture
def all_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once."""
    monkeypatch.setattr(trust, "_UNTIL_ALL_KNOW", 0.0)


@dataclass
class Meeting:
    """With somebody else, of one row."""

    begun: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


async def meet(
    bench: Bench,
    other: psycopg.AsyncConnection,
    numbers: Sequence[int],
    last: int | None = None,
    meeting: Meeting | None = None,
) -> None:
    """Have a group of these meet a transaction that wants what the last of them counts, and then the first's."""
    update = "update public.counters set seen = seen where number = %s"
    await other.execute(update, (numbers[-1] % 10 if last is None else last,))
    await bench.publish(*numbers)
    await until(lambda: bench.value("select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock'"))
    if meeting is not None:
        meeting.begun = True
    await other.execute(update, (numbers[0] % 10,))
    await other.commit()
    if meeting is not None:
        meeting.over.set()
    await until(lambda: all_are_through(bench))


async def meet_twice(bench: Bench, other: psycopg.AsyncConnection, groups: list[int]) -> list[bool]:
    """And go on; answers of each time it is kept apart whether it may have one group."""
    await meet(bench, other, range(1, 5))
    await meet(bench, other, range(1, 5))
    groups.clear()
    await bench.publish(*range(5))
    await until(lambda: all_are_through(bench))
    return [apart.one_group for apart in bench.notes.of(KeptApart)]


async def all_are_through(bench: Bench) -> bool:
    """Delivered, and told of."""
    told = sum(note.rows for note in bench.notes.of(SettlementWritten))
    return await bench.all_are("delivered") and told >= await bench.value("select count(*) from core.outbox")


async def seen(bench: Bench) -> int:
    return int(await bench.value("select sum(seen) from public.counters"))


@BRIEF
async def test_after_a_deadlock_there_is_one_group_at_a_time(
    bench: Bench, platform: Consumer, groups: list[int], *, is_brief: bool
) -> None:
    name = counting(platform, is_brief=is_brief)

    async with trusting(bench, platform), stranger(bench) as other:
        await meet(bench, other, range(1, 5))
        (apart,) = bench.notes.of(KeptApart)
        assert (apart.handler_name, apart.one_group) == (name, True)
        assert groups[0] == 4

        groups.clear()
        await bench.publish(*range(5))
        await until(lambda: all_are_through(bench))
        assert groups == [5], "alone, it may have its group"

        groups.clear()
        written = len(bench.notes.of(SettlementWritten))
        await other.execute(GROUP, (name,))
        await bench.publish(*range(5))
        await until(lambda: all_are_through(bench))
        assert [each.rows for each in bench.notes.of(SettlementWritten)[written:]] == [1] * 5, "else none"
        await other.commit()
    assert await seen(bench) == 1 + 4 + 5 + 5
    assert await bench.value("select max(attempts) from core.outbox") == 1


@BRIEF
async def test_who_does_not_know_yet_does_not_end_all_sharing(
    bench: Bench, platform: Consumer, groups: list[int], *, is_brief: bool
) -> None:
    counting(platform, is_brief=is_brief)

    async with trusting(bench, platform), stranger(bench) as other:
        assert await meet_twice(bench, other, groups) == [True]
    assert groups == [5]


@pytest.mark.usefixtures("groups")
async def test_others_do_not_wait_for_one_whose_group_is_elsewhere(bench: Bench, platform: Consumer) -> None:
    name = counting(platform, is_brief=True)

    @platform.on(STARTED)
    async def note(_: Scan, tx: Transaction) -> None:
        await tx.execute("insert into public.effects values ('note', 1)")

    async with trusting(bench, platform, COMPLETED, STARTED), stranger(bench) as other:
        await meet(bench, other, range(1, 5))
        written = len(bench.notes.of(SettlementWritten))
        await other.execute(GROUP, (name,))
        async with bench.connection.transaction():
            await bench.publish(*range(4))
            await bench.publish(*range(6), event_type=STARTED)
        await until(lambda: all_are_through(bench))
        await other.commit()
    rows = [each.rows for each in bench.notes.of(SettlementWritten)[written:]]
    assert sorted(rows) == [1, 1, 1, 1, 6]
    assert rows[:2] == [6, 1] or rows[:2] == [1, 6], "they had their turn, although the others' rows came first"


async def test_a_group_that_is_elsewhere_is_asked_for_once_in_a_turn(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    """However soon it may be asked for again: the rows get on one by one meanwhile."""
    name = counting(platform, is_brief=True)

    async with trusting(bench, platform, commit_within=timedelta(0)), stranger(bench) as other:
        await meet(bench, other, range(1, 5))
        groups.clear()
        await other.execute(GROUP, (name,))
        await bench.publish(*range(5))
        await until(lambda: all_are_through(bench))
        await other.commit()
    assert 1 <= len(groups) <= 5
    assert await seen(bench) == 1 + 4 + 5


@pytest.mark.usefixtures("all_know")
async def test_what_meets_one_alone_while_it_is_apart_is_not_charged_at_once(bench: Bench, platform: Consumer) -> None:
    """Its handler locks two rows, beside others who do it the other way round."""
    meetings = {number: Meeting() for number in (5, 6)}

    @platform.on(COMPLETED, retry=AT_ONCE)
    async def move(scan: Scan, tx: Transaction) -> None:
        meeting = meetings.get(scan.number)
        if meeting is not None and meeting.begun:
            await meeting.over.wait()  # else it may be quicker than the other, and meet it again
        for number in [scan.number] if meeting is None else [scan.number, 9]:
            await tx.execute("update public.counters set seen = seen + 1 where number = %s", (number,))

    async with bench.running(platform, lanes=1), stranger(bench) as other:
        await meet(bench, other, range(1, 5))
        for number, meeting in meetings.items():
            await meet(bench, other, [number], last=9, meeting=meeting)
    assert [apart.one_group for apart in bench.notes.of(KeptApart)] == [True, False]
    assert [note.times for note in bench.notes.of(Conflicted)] == [1, 1]
    assert await bench.value("select max(attempts) from core.outbox") == 1
    assert await seen(bench) == 4 + 2 * 2


@BRIEF
@pytest.mark.usefixtures("all_know")
async def test_after_a_deadlock_in_the_only_group_there_is_none(
    bench: Bench, platform: Consumer, groups: list[int], *, is_brief: bool
) -> None:
    counting(platform, is_brief=is_brief)

    async with trusting(bench, platform), stranger(bench) as other:
        assert await meet_twice(bench, other, groups) == [True, False]
    assert groups == []
    assert await seen(bench) == 1 + 4 + 4 + 5
    assert await bench.value("select max(attempts) from core.outbox") == 1


async def test_a_deadlock_behind_savepoints_keeps_it_apart_too(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spectral.core.events.delivery.trust.ENOUGH", 1_000)
    counting(platform, is_brief=True)

    async with bench.running(platform, lanes=1), stranger(bench) as other:
        await meet(bench, other, range(1, 5))
        assert [apart.one_group for apart in bench.notes.of(KeptApart)] == [True]
        written = len(bench.notes.of(SettlementWritten))
        await bench.publish(*range(5))
        await until(lambda: all_are_through(bench))
        assert [each.rows for each in bench.notes.of(SettlementWritten)[written:]] == [1] * 5
    assert await seen(bench) == 4 + 5


async def test_lanes_that_want_the_same_rows_in_any_order_get_done(bench: Bench, platform: Consumer) -> None:
    counting(platform, is_brief=True)
    numbers = [(each * 7_919) % 1_009 for each in range(600)]
    await bench.publish(*numbers)

    async with asyncio.timeout(60):
        await bench.drain(platform, lanes=4)
    assert await bench.statuses() == {"delivered": 600}
    assert await seen(bench) == 600
    assert len(bench.notes.of(KeptApart)) <= 2
    assert await bench.value("select max(attempts) from core.outbox") == 1
