"""Handlers of one statement run at the same time in one transaction, and what they do is as if they had not."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from psycopg.types.string import TextLoader

from spectral.core.events import Consumer, EventEnvelope, TerminalHandlerError, Transaction
from spectral.core.events.consumer import Handler
from spectral.core.events.delivery import trust
from spectral.core.events.failure import TransactionMisusedError
from spectral.core.events.infrastructure.postgres import lane
from spectral.core.events.infrastructure.postgres.errands import PostgresBriefTransaction, PostgresErrands
from spectral.core.events.lease import Delivery
from spectral.core.events.probe import Finished, HandlerRan, HandlerRanAway
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
from tests.integration.delivery.trusted import WARM, effects, project_scans, trusting

ALL_ENDED = "select count(*) = 0 from core.outbox where status in ('pending', 'in_flight') and source = 'worlds'"


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch, groups: list[int]) -> list[int]:  # noqa: ARG001  one run is enough
    """How many transactions were open whenever statements were carried out together."""
    carried: list[int] = []
    carry_out = PostgresErrands.carry_out

    async def counted(self: PostgresErrands, within: float) -> PostgresBriefTransaction | None:
        carried.append(len(self.waiting))
        return await carry_out(self, within)

    monkeypatch.setattr(PostgresErrands, "carry_out", counted)
    return carried


async def test_they_share_a_round_trip(bench: Bench, platform: Consumer, round_trips: list[int]) -> None:
    runs = project_scans(platform)

    async with trusting(bench, platform):
        await bench.publish(*range(8))
        await until(lambda: bench.all_are("delivered"))
    assert round_trips == [8]
    assert sorted(await effects(bench)) == [("project", number) for number in range(8)]
    assert set(runs.values()) == {1}
    assert len(bench.notes.of(HandlerRan)) == len(bench.notes.of(Finished)) == 9


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
    assert len(round_trips) <= 3
    assert [await bench.status(each) for each in ids] == 3 * ["delivered"] + ["failed", "delivered"]


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

    async def begin_and_stop(self: lane.PostgresLane, begun: Sequence[tuple[Delivery, Handler]]) -> bool:
        listener.stop()
        await until(lambda: listener._desk.stopping)
        return await begin(self, begun)

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
