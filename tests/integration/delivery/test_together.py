"""Rows of handlers that have earned it share a transaction without savepoints, and nobody notices but the clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from spectral.core.events import Consumer, TerminalHandlerError, Transaction
from spectral.core.events.delivery import trust
from spectral.core.events.failure import TransactionMisusedError
from spectral.core.events.infrastructure.postgres import lane
from spectral.core.events.outcome import AlreadyHandled
from spectral.core.events.probe import Finished, HandlerRan, KeptApart, SettlementWritten
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
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


@pytest.fixture(autouse=True)
def _one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a driver that is not known; those that run at the same time have tests of their own."""
    monkeypatch.setattr(lane, "KNOWS_DRIVER", False)


async def test_rows_of_a_trusted_handler_are_begun_and_committed_together(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    project_scans(platform)

    async with trusting(bench, platform):
        assert groups == []
        await bench.publish(*range(8))
        await until(lambda: bench.all_are("delivered"))
    assert groups == [8]
    assert bench.notes.of(SettlementWritten)[-1].rows == 8
    assert sorted(await effects(bench)) == [("project", number) for number in range(8)]
    assert await bench.value("select count(*) from core.event_handled") == 9


async def test_one_that_fails_does_so_alone_and_its_neighbours_take_effect_once(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            raise TerminalHandlerError("no")

    async with trusting(bench, platform):
        ids = await bench.publish(*range(5))
        await until(
            lambda: bench.value(
                "select count(*) = 4 from core.outbox where status = 'delivered' and id <> %s"
                " and (payload ->> 'number')::int < 1000",
                ids[2],
            )
        )
        await until(lambda: bench.value("select status = 'failed' from core.outbox where id = %s", ids[2]))
    assert groups[0] == 5
    assert sorted(await effects(bench)) == [("project", number) for number in (0, 1, 3, 4)]
    # It and those before it have to be done again, behind their own gates; those behind it had not begun.
    assert [runs[number] for number in range(5)] == [2, 2, 2, 1, 1]
    row = await bench.row(ids[2])
    assert row["attempts"] == 1
    assert "TerminalHandlerError" in row["last_error"]


@pytest.mark.parametrize("at_commit", [False, True])
async def test_after_a_failure_groups_grow_from_the_beginning(
    bench: Bench, platform: Consumer, groups: list[int], *, at_commit: bool
) -> None:
    await bench.execute("create table public.seats (number integer unique deferrable initially deferred)")
    await bench.execute("grant insert on public.seats to public")
    bad = {35}

    @platform.on(COMPLETED, retry=AT_ONCE)
    async def project(scan: Scan, tx: Transaction) -> None:
        is_bad = scan.number in bad
        await tx.execute("insert into public.seats values (%s)", (0 if is_bad and at_commit else scan.number,))
        bad.discard(scan.number)
        if is_bad and not at_commit:
            raise ConnectionError("not now")

    async with trusting(bench, platform):
        for numbers in (range(10), range(10, 30), range(30, 60), range(60, 90)):
            await bench.publish(*numbers)
            await until(lambda: bench.all_are("delivered"))
    grown = groups.index(30)
    assert groups[:grown] == [10, 20]
    assert groups[grown + 1] <= 10
    assert max(groups[grown + 1 :]) > 10, "and they do grow again"


async def test_after_a_failure_each_row_has_its_savepoint_until_trust_is_earned_again(
    bench: Bench, platform: Consumer, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "ENOUGH", 3)
    failing = {13}

    @platform.on(COMPLETED, retry=AT_ONCE)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number in failing:
            failing.clear()
            raise ConnectionError("not now")

    async with bench.running(platform, lanes=1):
        for numbers in (range(3), range(10, 15), range(20, 23), range(30, 35)):
            await bench.publish(*numbers)
            await until(lambda: bench.all_are("delivered"))
    assert groups[0] == 5
    assert groups[-1] == 5
    assert sorted(number for _, number in await effects(bench)) == [
        *range(3),
        *range(10, 15),
        *range(20, 23),
        *range(30, 35),
    ]


async def test_a_statement_that_fails_and_a_timeout_fail_alone_too(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 1:
            await tx.execute("insert into public.nowhere values (1)")

    @platform.on(STARTED, retry=NEVER_AGAIN, timeout=timedelta(seconds=0.5))
    async def wait(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "wait", scan.number)
        if scan.number == 11:
            await asyncio.Event().wait()  # which nobody sets

    async with trusting(bench, platform, COMPLETED, STARTED):
        await bench.publish(0, 1, 2)
        await bench.publish(10, 11, 12, event_type=STARTED)
        await until(lambda: bench.value("select count(*) = 2 from core.outbox where status = 'failed'"))
        await until(lambda: bench.value("select count(*) = 6 from core.outbox where status = 'delivered'"))
    assert max(groups) >= 2
    assert sorted(await effects(bench)) == [("project", 0), ("project", 2), ("wait", 10), ("wait", 12)]


async def test_two_rows_of_one_key_in_one_group_have_one_effect(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    project_scans(platform)

    async with trusting(bench, platform):
        async with bench.connection.transaction():
            await bench.publish(1)
            await bench.publish(2, idempotency_key="twice")
            await bench.publish(2, idempotency_key="twice")
            await bench.publish(3)
        await until(lambda: bench.all_are("delivered"))
    assert groups[0] == 4
    assert sorted(await effects(bench)) == [("project", 1), ("project", 2), ("project", 3)]
    assert AlreadyHandled() in [note.outcome for note in bench.notes.of(Finished)]
    assert bench.notes.of(KeptApart) == [], "a key is no lock"


async def test_two_rows_of_one_key_in_one_group_do_not_fail_by_each_other(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    await bench.execute("create unique index on public.effects (handler, number)")

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with trusting(bench, platform):
        async with bench.connection.transaction():
            await bench.publish(1)
            await bench.publish(2, idempotency_key="twice")
            await bench.publish(2, idempotency_key="twice")
        await until(
            lambda: bench.value("select count(*) = 0 from core.outbox where status in ('pending', 'in_flight')")
        )
        assert await bench.all_are("delivered")
    assert groups[0] == 3
    assert await effects(bench) == [("project", 1), ("project", 2)]


async def test_a_row_that_fails_because_it_was_handled_elsewhere_meanwhile_is_handled(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    await bench.execute("create unique index on public.effects (handler, number)")

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        if scan.number == 1:
            entered.set()
            await go_on.wait()
        await write_effect(tx, "project", scan.number)

    async with trusting(bench, platform):
        async with bench.connection.transaction():
            await bench.publish(1)
            (late,) = await bench.publish(2, idempotency_key="scan")
        await soon(entered.wait())
        async with bench.connection.transaction():
            await bench.execute("insert into public.effects (handler, number) values ('project', 2)")
            await bench.execute(
                "insert into core.event_handled (handler_name, idempotency_key, event_id)"
                " values ('platform.project', 'scan', gen_random_uuid())"
            )
        go_on.set()
        await until(
            lambda: bench.value("select status in ('delivered', 'failed') from core.outbox where id = %s", late)
        )
        assert await bench.status(late) == "delivered"
    assert groups[0] == 2
    assert await effects(bench) == [("project", 1), ("project", 2)]


async def test_the_first_of_a_group_has_passed_its_gate_and_fails_at_once(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if scan.number == 0:
            raise TerminalHandlerError("no")

    async with trusting(bench, platform):
        ids = await bench.publish(0, 1)
        await until(lambda: bench.value("select status = 'failed' from core.outbox where id = %s", ids[0]))
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", ids[1]))
    assert groups[0] == 2
    assert [runs[0], runs[1]] == [1, 1]


@pytest.mark.parametrize("way", ["runs away", "rolls back", "closes"])
async def test_who_takes_the_transaction_along_is_trusted_no_more(
    bench: Bench, platform: Consumer, groups: list[int], way: str
) -> None:
    """Its neighbours would be done again each time."""
    go_on = asyncio.Event()
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN, timeout=timedelta(seconds=0.2))
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if scan.number < WARM and scan.number % 2:
            if way == "rolls back":
                await tx.connection.rollback()
            elif way == "closes":
                await tx.connection.close()
            while way == "runs away" and not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await go_on.wait()

    async with trusting(bench, platform):
        await bench.publish(*range(4))
        await until(lambda: bench.value("select count(*) = 2 from core.outbox where status = 'failed'"))
        await until(lambda: bench.value("select count(*) = 3 from core.outbox where status = 'delivered'"))
        go_on.set()
    assert groups[0] == 4
    assert len(groups) == 1
    assert runs[0] <= 3


async def test_a_row_whose_key_is_known_is_not_run_again(bench: Bench, platform: Consumer, groups: list[int]) -> None:
    runs = project_scans(platform)

    async with trusting(bench, platform):
        await bench.publish(1, idempotency_key="scan")
        await until(lambda: bench.all_are("delivered"))
        async with bench.connection.transaction():
            await bench.publish(2)
            await bench.publish(1, idempotency_key="scan")
        await until(lambda: bench.all_are("delivered"))
    assert groups == [1, 1]  # the claim has seen it
    assert runs[1] == runs[2] == 1
    assert sorted(await effects(bench)) == [("project", 1), ("project", 2)]


async def test_a_key_that_somebody_takes_meanwhile_undoes_the_group_and_not_the_effects_of_others(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    """Between the gate and the settlement another transaction has handled the row's key."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 1:
            entered.set()
            await go_on.wait()

    async with trusting(bench, platform):
        async with bench.connection.transaction():
            await bench.publish(1)
            await bench.publish(2, idempotency_key="taken")
        await soon(entered.wait())
        await bench.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " values ('platform.project', 'taken', gen_random_uuid())"
        )
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert groups[0] == 2
    assert await effects(bench) == [("project", 1)]


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_row_that_was_taken_away_is_not_run(
    bench: Bench, platform: Consumer, groups: list[int], taken: int
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()
    runs = project_scans(platform)

    @platform.on(STARTED)
    async def hold(scan: Scan) -> None:
        assert scan.number
        entered.set()
        await go_on.wait()

    @platform.on(STARTED)
    async def keep(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "keep", scan.number)

    async with trusting(bench, platform):
        await bench.publish(1, event_type=STARTED)  # the only lane waits for it
        await soon(entered.wait())
        ids = await bench.publish(2, 3)
        await until(lambda: bench.value("select count(*) = 3 from core.outbox where status = 'in_flight'"))
        async with bench.connection.transaction():
            await bench.execute(
                "select core.outbox_release(array_agg(id), array_agg(claim_token)) from core.outbox where id = %s",
                ids[taken],
            )
            await bench.execute(
                "update core.outbox set next_attempt_at = next_attempt_at + interval '1 hour' where id = %s", ids[taken]
            )
        go_on.set()
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", ids[1 - taken]))
    assert groups[0] == 2
    assert runs == {WARM: 1, 3 - taken: 1}
    assert await bench.status(ids[taken]) == "pending"


@pytest.mark.parametrize("way", ["statement", "connection", "cursor"])
async def test_what_one_handler_leaves_in_the_session_the_next_one_does_not_find(
    bench: Bench, platform: Consumer, groups: list[int], way: str
) -> None:
    found: dict[int, str | None] = {}

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        cursor: Any = await tx.execute("select 1")
        if scan.number < WARM:
            if way == "statement":
                cursor = await tx.execute("select current_setting('app.tenant', true)")
                await tx.execute("select set_config('app.tenant', %s, true)", [str(scan.number)])
            else:
                connection = tx.connection if way == "connection" else cursor.connection
                cursor = await connection.execute("select current_setting('app.tenant', true)")
                await connection.execute("select set_config('app.tenant', %s, true)", [str(scan.number)])
            ((found[scan.number],),) = await cursor.fetchall()

    async with trusting(bench, platform):
        await bench.publish(*range(5))
        await until(lambda: bench.all_are("delivered"))
    assert groups == [5]  # and never again
    assert set(found.values()) <= {None, ""}


async def test_a_cursor_ends_with_its_handler(bench: Bench, platform: Consumer, groups: list[int]) -> None:
    """Whoever keeps it would write into the next one's row, and nobody would reset what he leaves there."""
    kept: list[Any] = []
    refused: list[Exception] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        for cursor in kept:
            assert await cursor.fetchall() == [(1,)]
            for use in ("execute", "executemany", "stream", "copy", "connection"):
                try:
                    getattr(cursor, use)("select 2")
                except TransactionMisusedError as refusal:
                    refused.append(refusal)
        kept[:] = [await tx.execute("select 1")]
        await write_effect(tx, "project", scan.number)

    async with trusting(bench, platform):
        await bench.publish(*range(3))
        await until(lambda: bench.all_are("delivered"))
    assert groups == [3]
    assert len(refused) == 15
    assert sorted(await effects(bench)) == [("project", number) for number in range(3)]


async def test_a_handler_that_commits_is_refused_and_its_neighbours_take_effect_once(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await tx.connection.commit()

    async with trusting(bench, platform):
        ids = await bench.publish(*range(4))
        await until(
            lambda: bench.value("select count(*) = 0 from core.outbox where status in ('pending', 'in_flight')")
        )
    assert groups[0] == 4
    assert sorted(await effects(bench)) == [("project", number) for number in (0, 1, 3)]
    assert [await bench.status(each) for each in ids] == ["delivered", "delivered", "failed", "delivered"]


async def test_a_connection_that_is_lost_in_the_middle_has_done_nothing(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    cut = {2}

    @platform.on(COMPLETED, retry=AT_ONCE)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number in cut:
            cut.clear()
            await bench.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'spectral lane%'"
            )

    async with trusting(bench, platform):
        await bench.publish(*range(5))
        await until(lambda: bench.all_are("delivered"))
    assert groups[0] == 5
    assert sorted(await effects(bench)) == [("project", number) for number in range(5)]


async def test_a_commit_that_is_refused_finds_the_guilty_one(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    await bench.execute("create table public.parents (id integer primary key)")
    await bench.execute(
        "create table public.children (id integer references public.parents deferrable initially deferred)"
    )
    await bench.execute("insert into public.parents select generate_series(0, 2000)")
    await bench.execute("delete from public.parents where id = 2")

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute("insert into public.children values (%s)", [scan.number])

    async with trusting(bench, platform):
        ids = await bench.publish(*range(4))
        await until(
            lambda: bench.value("select count(*) = 0 from core.outbox where status in ('pending', 'in_flight')")
        )
    assert groups[0] == 4
    assert await bench.value("select array_agg(id order by id) from public.children where id < 1000") == [0, 1, 3]
    assert [await bench.status(each) for each in ids] == ["delivered", "delivered", "failed", "delivered"]


async def test_slow_ones_are_committed_when_it_is_time_and_the_others_run_later(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    entered: asyncio.Queue[int] = asyncio.Queue()
    go_on = asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number < WARM:
            entered.put_nowait(scan.number)
            if scan.number == 1:
                await go_on.wait()

    async with trusting(bench, platform, commit_within=timedelta(0)):
        await bench.publish(*range(4))
        assert await soon(entered.get()) == 0
        assert await soon(entered.get()) == 1
        assert await bench.value("select array_agg(number) from public.effects where number < 1000") == [0]
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert groups[:2] == [4, 1]
    assert sorted(await effects(bench)) == [("project", number) for number in range(4)]


async def test_rows_do_not_wait_locked_for_a_handler_that_may_outlast_their_lease(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    """Who is locked is not renewed, and would be taken for lost when the group is through."""

    @platform.on(COMPLETED, timeout=timedelta(seconds=3))
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await asyncio.sleep(2.5 if scan.number == 0 else 0.3)

    async with trusting(bench, platform, commit_within=timedelta(milliseconds=20), times=shortened(lease=2)):
        ids = await bench.publish(*range(4))
        await until(lambda: bench.all_are("delivered"))
    assert groups == []
    assert [(await bench.row(each))["attempts"] for each in ids] == [1, 1, 1, 1]


async def test_who_cannot_be_committed_is_not_trusted(bench: Bench, platform: Consumer, groups: list[int]) -> None:
    await bench.execute("create table public.parents (id integer primary key)")
    await bench.execute(
        "create table public.children (id integer references public.parents deferrable initially deferred)"
    )

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute("insert into public.children values (%s)", [scan.number])

    async with bench.running(platform, lanes=1):
        await bench.publish(1)
        await until(lambda: bench.all_are("failed"))
        (second,) = await bench.publish(2)
        await until(lambda: bench.value("select status = 'failed' from core.outbox where id = %s", second))
    assert groups == []


async def test_types_that_have_to_be_run_one_by_one_have_their_turn(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    project_scans(platform)

    @platform.on(STARTED)
    async def lock(scan: Scan, tx: Transaction) -> None:
        await tx.connection.execute("select pg_advisory_xact_lock(1)")
        await write_effect(tx, "lock", scan.number)

    async with trusting(bench, platform, COMPLETED, STARTED):
        async with bench.connection.transaction():
            for number in range(0, 20, 2):
                await bench.publish(number, event_type=STARTED)
                await bench.publish(number + 1)
        await until(lambda: bench.all_are("delivered"))
    assert groups
    assert sorted(await effects(bench)) == [
        *(("lock", number) for number in range(0, 20, 2)),
        *(("project", number) for number in range(1, 20, 2)),
    ]


async def test_one_that_has_to_wait_for_a_group_does_not_wait_for_what_is_left_of_it(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    runs: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs.append(scan.number)
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def lock(scan: Scan, tx: Transaction) -> None:
        runs.append(scan.number)
        await tx.connection.execute("select pg_advisory_xact_lock(1)")

    async with trusting(bench, platform, COMPLETED, STARTED, commit_within=timedelta(0)):
        async with bench.connection.transaction():
            await bench.publish(0, event_type=STARTED)
            await bench.publish(1, 2, 3, 4)
        await until(lambda: bench.all_are("delivered"))
    assert groups[0] == 4
    assert [number for number in runs if number < WARM] == [1, 0, 2, 3, 4]


async def test_a_group_in_which_nothing_failed_tells_of_every_row_once(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    project_scans(platform)

    async with trusting(bench, platform):
        ids = await bench.publish(*range(6))
        await until(lambda: bench.all_are("delivered"))
    assert groups == [6]
    assert Counter(note.act.delivery.event_id for note in bench.notes.of(HandlerRan))[ids[3]] == 1
    assert {note.delivery.event_id for note in bench.notes.of(Finished)} >= set(ids)


async def test_a_cancelled_worker_leaves_nothing_of_an_open_group(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    entered = asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            entered.set()
            await asyncio.Event().wait()  # which nobody sets

    listener = bench.worker(platform, lanes=1)
    running = asyncio.create_task(listener.run())
    await bench.publish(WARM)
    await until(lambda: bench.all_are("delivered"))
    ids = await bench.publish(*range(4))
    await soon(entered.wait())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert groups == [4]
    assert await effects(bench) == []
    assert [(await bench.row(each))["attempts"] for each in ids] == [0, 0, 0, 0]
    assert {await bench.status(each) for each in ids} == {"pending"}


async def test_two_workers_and_two_rows_of_one_key_have_one_effect(bench: Bench, groups: list[int]) -> None:
    """Both are past the gate before either writes its key."""
    inside: asyncio.Queue[None] = asyncio.Queue()
    go_on = asyncio.Event()

    def consumer(event_type: str) -> Consumer:
        made = Consumer("platform", retry=AT_ONCE)

        @made.on(event_type)
        async def project(scan: Scan, tx: Transaction) -> None:
            if scan.number == 0:
                inside.put_nowait(None)
                await go_on.wait()
            await write_effect(tx, "project", scan.number)

        return made

    first, second = consumer(COMPLETED), consumer(STARTED)
    async with trusting(bench, first, COMPLETED), trusting(bench, second, STARTED):
        for event_type in (COMPLETED, STARTED):
            async with bench.connection.transaction():
                await bench.publish(0, event_type=event_type)  # keeps its group open
                await bench.publish(1, event_type=event_type, idempotency_key="scan")
            await soon(inside.get())
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert groups[:2] == [2, 2]
    assert sorted(await effects(bench)) == [("project", 0), ("project", 0), ("project", 1)]


async def test_a_group_that_meets_a_locked_row_runs_each_by_itself(
    bench: Bench, platform: Consumer, groups: list[int]
) -> None:
    """The gate of the group is refused after its lock timeout; the row that is free is delivered all the same."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    project_scans(platform)

    @platform.on(STARTED, concurrency=1)
    async def hold(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "hold", scan.number)
        entered.set()
        await go_on.wait()

    async with trusting(bench, platform):
        await bench.publish(1, event_type=STARTED)
        await soon(entered.wait())
        ids = await bench.publish(2, 3)
        await until(lambda: bench.value("select count(*) = 3 from core.outbox where status = 'in_flight'"))
        async with await psycopg.AsyncConnection.connect(bench.dsn) as other:
            await other.execute("select from core.outbox where id = %s for update", [ids[0]])
            go_on.set()
            await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", ids[1]))
        await until(lambda: bench.all_are("delivered"))
    assert groups[0] == 2
    assert sorted(await effects(bench)) == [("hold", 1), ("project", 2), ("project", 3)]
