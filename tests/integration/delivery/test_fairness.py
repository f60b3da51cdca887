"""Nobody waits for everybody else: not for a slow type, a heap of another tenant, a limit, or a dangerous row."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from spectral.core.events import Consumer, EventEnvelope, RetryPolicy, Transaction
from spectral.core.events.delivery import quarantine
from spectral.core.events.probe import Quarantined
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    soon,
    until,
    write_effect,
)

UNCLAIMED = "worlds.scan.ignored"

HEAP = """\
insert into core.outbox (event_type, source, target, generation, channel, payload, workspace_id)
select %s, 'worlds', 'platform', 1, 'outbox_gen_1', jsonb_build_object('number', number), %s
from generate_series(1, %s) as heap (number)"""


async def heap(bench: Bench, event_type: str, count: int, workspace: UUID | None = None) -> None:
    """Many rows, and nobody is woken for each."""
    await bench.execute("alter table core.outbox disable trigger outbox_notify")
    await bench.execute(HEAP, event_type, workspace, count)
    await bench.execute("alter table core.outbox enable trigger outbox_notify")


async def age(bench: Bench, event_type: str, by: str) -> None:
    """Have these been due for longer."""
    await bench.execute(
        "update core.outbox set next_attempt_at = next_attempt_at - %s::interval where event_type = %s", by, event_type
    )


async def test_a_slow_plain_type_with_a_backlog_does_not_keep_a_fast_one_waiting(
    bench: Bench, platform: Consumer
) -> None:
    let_go = asyncio.Event()
    begun: list[int] = []
    fast: set[int] = set()

    @platform.on(COMPLETED)
    async def slow(scan: Scan) -> None:
        begun.append(scan.number)
        await let_go.wait()

    @platform.on(STARTED)
    async def quick(scan: Scan) -> None:
        fast.add(scan.number)

    await heap(bench, COMPLETED, 300)
    await bench.publish(*range(100), event_type=STARTED)
    async with bench.running(platform, concurrency=10):
        await until(lambda: len(fast) == 100, within=10)
        await until(lambda: begun)
        let_go.set()
        await until(lambda: bench.all_are("delivered"))


async def test_a_slow_plain_type_that_comes_later_does_not_keep_a_fast_one_waiting_either(
    bench: Bench, platform: Consumer
) -> None:
    let_go = asyncio.Event()
    begun: list[int] = []
    fast: set[int] = set()

    @platform.on(COMPLETED)
    async def slow(scan: Scan) -> None:
        begun.append(scan.number)
        await let_go.wait()

    @platform.on(STARTED)
    async def quick(scan: Scan) -> None:
        fast.add(scan.number)

    async with bench.running(platform, concurrency=10):
        await bench.publish(*range(300))
        await until(lambda: begun)
        await bench.publish(*range(100), event_type=STARTED)
        await until(lambda: len(fast) == 100, within=10)
        let_go.set()
        await until(lambda: bench.all_are("delivered"))


async def test_a_slow_plain_type_does_not_keep_lanes_waiting(bench: Bench, platform: Consumer) -> None:
    let_go = asyncio.Event()

    @platform.on(COMPLETED)
    async def slow(scan: Scan) -> None:
        assert scan.number >= 0
        await let_go.wait()

    @platform.on(STARTED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await heap(bench, COMPLETED, 300)
    await bench.publish(*range(100), event_type=STARTED)
    async with bench.running(platform, concurrency=10):
        await until(lambda: bench.value("select count(*) = 100 from public.effects"))
        let_go.set()
        await until(lambda: bench.all_are("delivered"))


async def test_a_slow_transactional_type_of_one_place_leaves_the_other_lane_to_a_fast_one(
    bench: Bench, platform: Consumer
) -> None:
    let_go = asyncio.Event()
    begun: list[int] = []

    @platform.on(COMPLETED, concurrency=1)
    async def slow(scan: Scan, tx: Transaction) -> None:
        begun.append(scan.number)
        await let_go.wait()
        await write_effect(tx, "slow", scan.number)

    @platform.on(STARTED)
    async def quick(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "quick", scan.number)

    await heap(bench, COMPLETED, 50)
    await bench.publish(*range(60), event_type=STARTED)
    async with bench.running(platform, lanes=2):
        await until(lambda: bench.value("select count(*) = 60 from public.effects where handler = 'quick'"))
        await until(lambda: begun)  # by then both lanes may have had nothing but fast ones
        assert len(begun) == 1
        let_go.set()
        await until(lambda: bench.all_are("delivered"))


async def test_a_slow_row_in_one_lane_leaves_the_other_lane_to_all_that_come_later(
    bench: Bench, platform: Consumer
) -> None:
    let_go = asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        if scan.number == 0:
            await let_go.wait()
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform, lanes=2) as worker:
        await bench.publish(0)
        await until(lambda: worker.health().running == 1)
        for first in range(1, 100, 25):
            await bench.publish(*range(first, first + 25))
        await until(lambda: bench.value("select count(*) = 100 from public.effects where number > 0"), within=10)
        assert worker.health().held == 1
        let_go.set()
        await until(lambda: bench.all_are("delivered"))


async def test_rows_of_a_type_that_nobody_here_handles_hide_nothing_behind_them(
    bench: Bench, platform: Consumer
) -> None:
    """Several windows full of them, before and between those that are handled."""
    done: set[int] = set()

    @platform.on(STARTED)
    async def quick(scan: Scan) -> None:
        done.add(scan.number)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await heap(bench, UNCLAIMED, 2_500)
    await bench.publish(1, 2, 3, event_type=STARTED)
    await heap(bench, UNCLAIMED, 2_500)
    await bench.publish(4, 5, event_type=STARTED)
    await bench.publish(6)
    await heap(bench, UNCLAIMED, 1_500)
    await bench.drain(platform)
    assert done == {1, 2, 3, 4, 5}
    assert await bench.effects() == [("project", 6)]
    assert await bench.statuses() == {"pending": 6_500, "delivered": 6}


async def test_rows_of_one_instant_that_nobody_here_handles_are_got_past(bench: Bench, platform: Consumer) -> None:
    """As a delay that many publishers share makes them: no window of a thousand ends after them."""
    done: set[int] = set()

    @platform.on(STARTED)
    async def quick(scan: Scan) -> None:
        done.add(scan.number)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await heap(bench, UNCLAIMED, 3_000)
    await bench.execute("update core.outbox set next_attempt_at = now() - interval '1 h'")
    await bench.publish(1, 2, event_type=STARTED)
    await bench.drain(platform)
    assert done == {1, 2}


async def test_a_heap_of_a_type_whose_handlers_are_all_busy_hides_nothing_behind_it(
    bench: Bench, platform: Consumer
) -> None:
    let_go = asyncio.Event()
    done: set[int] = set()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await let_go.wait()
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def quick(scan: Scan) -> None:
        done.add(scan.number)

    await heap(bench, COMPLETED, 2_500)
    async with bench.running(platform, lanes=2, batch=10):
        await bench.publish(*range(5), event_type=STARTED)
        await until(lambda: len(done) == 5)
        await bench.execute("delete from core.outbox where status = 'pending'")  # enough is shown
        let_go.set()
        await until(lambda: bench.all_are("delivered"))


async def test_a_workspace_with_thousands_of_old_rows_does_not_keep_another_waiting_for_all_of_them(
    bench: Bench, platform: Consumer
) -> None:
    crowd, few = uuid4(), uuid4()
    order: list[UUID | None] = []

    @platform.on(COMPLETED)
    async def quick(envelope: EventEnvelope) -> None:
        order.append(envelope.workspace_id)
        await asyncio.sleep(0)

    await heap(bench, COMPLETED, 3_000, crowd)
    await age(bench, COMPLETED, "1 h")
    await bench.publish(*range(5), workspace_id=few)
    await bench.execute(
        "update core.outbox set next_attempt_at = next_attempt_at - interval '30 min' where workspace_id = %s", few
    )
    worker = bench.worker(platform, concurrency=10)
    worker._desk.random = random.Random(7).random  # noqa: S311  where it looks next, the same every time
    await soon(worker.run(until="drained"))
    assert len(order) == 3_005
    places = [number for number, workspace in enumerate(order) if workspace == few]
    assert len(places) == 5
    assert max(places) < 2_700, places


async def test_what_one_worker_has_no_place_for_another_one_gets(bench: Bench) -> None:
    let_go = asyncio.Event()
    first: list[int] = []
    second: list[int] = []

    def consumer(seen: list[int], *, blocks: bool) -> Consumer:
        made = Consumer("platform")

        @made.on(COMPLETED, name="platform.mail", concurrency=1)
        async def mail(scan: Scan) -> None:
            seen.append(scan.number)
            if blocks:
                await let_go.wait()

        return made

    await bench.publish(*range(20))
    async with bench.running(consumer(first, blocks=True)) as one:
        await until(lambda: first)
        assert one.health().held == 1
        async with bench.running(consumer(second, blocks=False)):
            await until(lambda: len(second) == 19)
            assert len(first) == 1
        let_go.set()
        await until(lambda: bench.all_are("delivered"))
    assert sorted(first + second) == list(range(20))


# the quarantine


async def lose_twice(bench: Bench) -> None:
    """Have a worker claim everything and die, twice."""
    for _ in range(2):
        await bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null, 100)")
        await bench.execute("select core.outbox_reap('0 s', '0 s')")


async def test_a_dangerous_row_does_not_wait_for_a_long_handler_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_LONGEST", 0.3)
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    let_go = asyncio.Event()
    pill = asyncio.Event()
    long = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 0
        pill.set()

    @platform.on(STARTED)
    async def take_long(scan: Scan) -> None:
        assert scan.number == 1
        long.set()
        await let_go.wait()

    (event_id,) = await bench.publish(0)
    await lose_twice(bench)
    await bench.publish(1, event_type=STARTED)
    await age(bench, STARTED, "1 h")
    async with bench.running(platform):
        await soon(long.wait())
        await soon(pill.wait())
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", event_id))
        assert not let_go.is_set()
        await bench.publish(0)  # and it goes on
        await until(lambda: bench.value("select count(*) = 2 from core.outbox where status = 'delivered'"))
        let_go.set()
        await until(lambda: bench.all_are("delivered"))
    assert [note.delivery.event_id for note in bench.notes.of(Quarantined)] == [event_id]


async def test_a_worker_that_runs_a_dangerous_row_for_long_goes_on_claiming(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_LONGEST", 0.3)
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    let_go = asyncio.Event()
    pill = asyncio.Event()
    done: set[int] = set()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        if scan.number == 0:
            pill.set()
            await let_go.wait()
        done.add(scan.number)

    await bench.publish(0)
    await lose_twice(bench)
    async with bench.running(platform):
        await soon(pill.wait())
        await bench.publish(*range(1, 31))
        await until(lambda: done == set(range(1, 31)))
        assert not let_go.is_set()
        let_go.set()
        await until(lambda: bench.all_are("delivered"))
    assert done == set(range(31))
    assert len(bench.notes.of(Quarantined)) == 1


async def test_several_dangerous_rows_run_one_after_the_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_LONGEST", 0.3)
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    held: dict[int, int] = {}

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        held[scan.number] = worker.health().held

    await bench.publish(0, 1, 2)
    for _ in range(2):  # each is claimed alone after the first loss
        for _ in range(3):
            await bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null, 100)")
        await bench.execute("select core.outbox_reap('0 s', '0 s')")
    async with bench.running(platform) as worker:
        await until(lambda: bench.all_are("delivered"))
    assert held == {0: 1, 1: 1, 2: 1}
    assert len(bench.notes.of(Quarantined)) == 3


def is_delivered(bench: Bench, event_id: UUID) -> Callable[[], Awaitable[object]]:
    return lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", event_id)


async def lost_twice(bench: Bench) -> UUID:
    """A dangerous row that is not due yet."""
    (event_id,) = await bench.publish(0)
    await lose_twice(bench)
    await bench.execute("update core.outbox set next_attempt_at = now() + interval '1 h'")
    return event_id


async def test_of_several_busy_workers_one_waits_with_a_dangerous_row_and_the_others_go_on(bench: Bench) -> None:
    let_go, pill = asyncio.Event(), asyncio.Event()

    def crew() -> Consumer:
        platform = Consumer("platform", retry=RetryPolicy(max_retries=5))

        @platform.on(COMPLETED, name="platform.mail")
        async def mail(scan: Scan) -> None:
            if scan.number == 0:
                pill.set()

        @platform.on(STARTED, name="platform.take_long", concurrency=1)
        async def take_long(scan: Scan) -> None:
            assert scan.number < 0
            await let_go.wait()

        return platform

    event_id = await lost_twice(bench)
    async with bench.running(crew()) as one, bench.running(crew()) as two, bench.running(crew()) as three:
        await bench.publish(-1, -2, -3, event_type=STARTED)
        await until(lambda: all(each.health().held for each in (one, two, three)))
        await bench.execute("update core.outbox set next_attempt_at = now() where id = %s", event_id)
        # All of them are woken, and find it, again and again.
        for number in range(1, 31):
            (quick,) = await bench.publish(number)
            await until(is_delivered(bench, quick), within=3)
        await until(lambda: bench.value("select next_attempt_at > now() from core.outbox where id = %s", event_id))
        assert not pill.is_set()
        let_go.set()
        await soon(pill.wait())
        await until(lambda: bench.all_are("delivered"))
    assert [note.delivery.event_id for note in bench.notes.of(Quarantined)] == [event_id]
    assert (await bench.row(event_id))["attempts"] == 3, "to be set aside is not charged"


async def test_a_dangerous_row_that_has_ended_is_not_waited_for_because_of_what_it_ran_beside(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_LONGEST", 4)
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    let_go, long = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    @platform.on(STARTED)
    async def take_long(scan: Scan) -> None:
        assert scan.number < 0
        long.set()
        await let_go.wait()

    event_id = await lost_twice(bench)
    async with bench.running(platform):
        await bench.publish(-1, event_type=STARTED)
        await soon(long.wait())
        await bench.execute("update core.outbox set next_attempt_at = now() where id = %s", event_id)
        await bench.publish(1)
        await until(is_delivered(bench, event_id))
        (quick,) = await bench.publish(2)
        await until(is_delivered(bench, quick), within=2)
        let_go.set()


async def test_while_another_one_waits_a_dangerous_row_is_put_off_and_then_runs_beside_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_LONGEST", 0.5)
    monkeypatch.setattr(quarantine, "_ASIDE", timedelta(seconds=0.2))
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    let_go, long, pill = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        if scan.number == 0:
            pill.set()

    @platform.on(STARTED)
    async def take_long(scan: Scan) -> None:
        assert scan.number < 0
        long.set()
        await let_go.wait()

    event_id = await lost_twice(bench)
    await bench.execute("select pg_advisory_lock(core.worker_quarantine_key('platform'))")
    async with bench.running(platform):
        await bench.publish(-1, event_type=STARTED)
        await soon(long.wait())
        await bench.execute("update core.outbox set next_attempt_at = now() where id = %s", event_id)
        await bench.publish(1)
        await soon(pill.wait())
        await until(is_delivered(bench, event_id))
        assert (await bench.row(event_id))["attempts"] == 3
        let_go.set()
        await until(lambda: bench.all_are("delivered"))
    assert bench.notes.of(Quarantined) == []


async def test_a_dangerous_row_is_not_lost_with_the_connection_of_the_worker_that_waits_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "_LONGEST", 2)
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    let_go, long = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    @platform.on(STARTED)
    async def take_long(scan: Scan) -> None:
        assert scan.number < 0
        long.set()
        await let_go.wait()

    event_id = await lost_twice(bench)
    entered = "select count(*) = 1 from pg_locks where locktype = 'advisory' and granted and mode = 'ExclusiveLock'"
    async with bench.running(platform):
        await bench.publish(-1, event_type=STARTED)
        await soon(long.wait())
        await bench.execute("update core.outbox set next_attempt_at = now() where id = %s", event_id)
        await bench.publish(1)
        await until(lambda: bench.value(entered))
        await bench.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'spectral claim %%'"
        )
        let_go.set()
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: bench.value(f"select not ({entered})"))
    assert (await bench.row(event_id))["attempts"] == 3
