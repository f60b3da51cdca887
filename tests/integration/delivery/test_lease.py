"""Leases: kept while a handler runs, given up when they are lost, taken over when their worker is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import pytest

from spectral.core.events import Consumer, RetryPolicy, Transaction
from spectral.core.events.probe import EventRef, Finished, LeaseWasLost, Quarantined, Reaped
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    shortened,
    soon,
    until,
    write_effect,
)

SHORT_LEASE = shortened(lease=1, reap=0.2, grace=0.5)


async def lose_by(bench: Bench, worker: str, times: int = 1) -> None:
    """Have a worker claim everything and die, so often."""
    for _ in range(times):
        await bench.execute("select core.outbox_claim(%s, 'platform', '{1}', '{outbox_gen_1}', null, 100)", worker)
        await bench.execute("select core.outbox_reap('0 s', '0 s')")


async def renewals(bench: Bench, event_id: UUID, times: int) -> None:
    """Wait until a row's lease has been renewed so often."""
    query = "select claimed_at from core.outbox where id = %s"
    for _ in range(times):
        before = await bench.value(query, event_id)
        await until(lambda before=before: _differs(bench, query, event_id, before))  # type: ignore[misc]


async def _differs(bench: Bench, query: str, event_id: UUID, then: object) -> bool:
    return bool(await bench.value(query, event_id) != then)


async def test_a_long_plain_handler_keeps_its_lease_far_beyond_the_ttl(bench: Bench) -> None:
    runs: Counter[str] = Counter()
    go_on = asyncio.Event()

    def consumer(name: str) -> Consumer:
        made = Consumer("platform", retry=AT_ONCE)

        @made.on(COMPLETED, name="platform.mail")
        async def mail(scan: Scan) -> None:
            runs[name] += scan.number
            await go_on.wait()

        return made

    (event_id,) = await bench.publish(1)
    async with bench.running(consumer("first"), times=SHORT_LEASE):
        await until(lambda: runs)
        async with bench.running(consumer("second"), times=SHORT_LEASE):
            first = await bench.value("select claimed_at from core.outbox where id = %s", event_id)
            await renewals(bench, event_id, 4)  # there are four to a lease of a second
            await until(lambda: bench.value("select clock_timestamp() - %s > interval '2 s'", first))
            go_on.set()
            await until(lambda: bench.all_are("delivered"))
    assert runs == {"first": 1}
    assert (await bench.row(event_id))["attempts"] == 1
    assert bench.notes.of(Reaped) == []


async def test_rows_that_wait_for_a_slot_keep_their_lease_too(bench: Bench, platform: Consumer) -> None:
    go_on = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number in (1, 2)
        await go_on.wait()

    ids = await bench.publish(1, 2)
    async with bench.running(platform, times=SHORT_LEASE, concurrency=1):
        await until(lambda: bench.value("select bool_and(status = 'in_flight') from core.outbox"))
        await until(lambda: bench.value("select bool_and(claimed_at > created_at + interval '2 s') from core.outbox"))
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert [(await bench.row(each))["attempts"] for each in ids] == [1, 1]


async def test_a_lost_lease_cancels_the_plain_handler_and_nothing_is_recorded(bench: Bench, platform: Consumer) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    (event_id,) = await bench.publish(1)
    async with bench.running(platform, times=SHORT_LEASE) as worker:
        await soon(began.wait())
        await bench.take_away(event_id)
        await soon(cancelled.wait())
        await until(lambda: bench.notes.of(LeaseWasLost))
        await until(lambda: worker.health().held == 0)
    assert await bench.keys() == []
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert bench.notes.of(Finished) == []


async def test_a_plain_handler_that_ends_after_its_lease_was_lost_records_nothing(
    bench: Bench, platform: Consumer
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1
        began.set()
        await go_on.wait()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform):
        await soon(began.wait())
        await bench.take_away(event_id)
        go_on.set()
        await until(lambda: bench.notes.of(LeaseWasLost))
    assert (await bench.keys(), await bench.status(event_id)) == ([], "pending")


async def test_a_row_that_waits_for_a_slot_is_not_run_when_its_lease_is_lost(bench: Bench, platform: Consumer) -> None:
    runs: Counter[int] = Counter()
    go_on = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1
        await go_on.wait()

    (first, second) = await bench.publish(1, 2)
    async with bench.running(platform, times=SHORT_LEASE, concurrency=1):
        await until(lambda: bench.value("select bool_and(status = 'in_flight') from core.outbox"))
        await bench.take_away(second)
        # The first may have been under way when the claim was taken, the second may not have been answered yet: with
        # the third the loss is known.
        await renewals(bench, first, 3)
        go_on.set()
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", first))
        await until(lambda: bench.notes.of(LeaseWasLost))
    assert runs == {1: 1}


async def test_a_zombies_transaction_is_fenced(bench: Bench, platform: Consumer) -> None:
    """The claim is taken away between the claim and the begin: the handler does not even run."""
    runs: Counter[int] = Counter()
    block = asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        await block.wait()

    (first, second) = await bench.publish(1, 2)
    async with bench.running(platform, lanes=1) as worker:
        await until(lambda: bench.value("select bool_and(status = 'in_flight') from core.outbox"))
        await until(lambda: runs[1])
        await bench.take_away(second)
        block.set()
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", first))
        await until(lambda: bench.notes.of(LeaseWasLost))
        assert worker.health().held == 0
    assert runs == {1: 1}


async def test_a_row_that_is_lost_and_claimed_again_by_the_same_worker_is_delivered_once_and_leaves_nothing_held(
    bench: Bench, platform: Consumer
) -> None:
    began: asyncio.Queue[int] = asyncio.Queue()
    ends = [asyncio.Event(), asyncio.Event()]
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1
        turn = runs[scan.number] - 1
        began.put_nowait(turn)
        await ends[turn].wait()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform) as worker:
        await soon(began.get())
        await bench.take_away(event_id, for_good=False)
        await bench.execute("notify outbox_gen_1")
        await soon(began.get())  # the same row again, under another lease, while the first run goes on
        ends[0].set()
        await until(lambda: bench.notes.of(LeaseWasLost))
        assert (await bench.status(event_id), worker.health().held) == ("in_flight", 1)
        ends[1].set()
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)


async def test_rows_of_a_dead_worker_are_taken_over_well_before_the_ttl(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    ids = await bench.publish(1, 2, 3)
    await bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null)")
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", number) for number in (1, 2, 3)]
    rows = [await bench.row(each) for each in ids]
    assert [(row["attempts"], row["last_error"]) for row in rows] == [(2, "WorkerLostError: worker gone is gone")] * 3
    assert {(note.worker, note.reason) for note in bench.notes.of(Reaped)} == {("gone", "orphaned")}


async def test_a_row_of_a_broadcast_that_is_taken_back_is_told_of_by_its_event(
    bench: Bench, platform: Consumer
) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1

    await bench.drain(platform)  # it subscribes
    (parent,) = await bench.publish(1, target=None)
    await bench.execute("select core.outbox_fan_out('{1}', '{outbox_gen_1}')")
    await bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null)")
    child = await bench.value("select id from core.outbox where parent_id is not null")
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"))
    event = EventRef(parent, COMPLETED, "worlds", "platform", None, None)
    assert bench.notes.of(Reaped) == [Reaped(child, "pending", "orphaned", "gone", 1, event)]


async def test_hundreds_of_rows_of_a_dead_worker_are_taken_over_at_once(bench: Bench, platform: Consumer) -> None:
    """More than one call of the reaper takes, but it does not wait for its next turn to go on."""

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    await bench.publish(*range(350))
    await bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null, 1000)")
    async with bench.running(platform, times=shortened(reap=2, grace=0.2)):
        await until(lambda: bench.notes.of(Reaped))
        await until(lambda: len(bench.notes.of(Reaped)) == 350, within=1.5)


async def test_a_row_that_was_lost_twice_runs_while_its_worker_holds_nothing_else(bench: Bench) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    running: set[int] = set()
    beside: dict[int, set[int]] = {}

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        running.add(scan.number)
        for each in running:
            beside.setdefault(each, set()).update(running - {each})
        await asyncio.sleep(0.05)
        running.discard(scan.number)

    (pill,) = await bench.publish(0)
    await lose_by(bench, "gone", times=2)
    await bench.publish(*range(1, 40))
    async with bench.running(platform, concurrency=5):
        await bench.publish(*range(40, 60))
        await until(lambda: bench.all_are("delivered"))
    assert beside[0] == set()
    assert [note.delivery.event_id for note in bench.notes.of(Quarantined)] == [pill]
    assert any(beside.values()), "the others did run side by side"


async def test_a_dangerous_row_of_lanes_runs_alone_too(bench: Bench) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    held: dict[int, int] = {}

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        held[scan.number] = worker.health().held
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        held[-scan.number] = worker.health().held

    await bench.publish(0)
    await lose_by(bench, "gone", times=2)
    await bench.publish(*range(1, 30))
    await bench.publish(*range(1, 30), event_type=STARTED)
    async with bench.running(platform) as worker:
        await until(lambda: bench.all_are("delivered"))
    assert held[0] == 1
    assert len(await bench.effects()) == 30


async def test_a_quarantined_row_that_fails_is_retried_like_any_other(bench: Bench) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5, base=AT_ONCE.base, cap=AT_ONCE.cap))
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1
        if runs[scan.number] == 1:
            raise OSError("away")

    (event_id,) = await bench.publish(1)
    await lose_by(bench, "gone", times=2)
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"))
    assert runs == {1: 2}
    assert (await bench.row(event_id))["attempts"] == 4


@pytest.mark.parametrize("losses", [3, 4])
async def test_a_row_that_is_lost_too_often_goes_to_the_dlq(bench: Bench, losses: int) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=losses - 1))

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    await bench.worker(platform).run(until="once")
    (event_id,) = await bench.publish(1)
    await lose_by(bench, "gone", times=losses)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", losses)
    assert row["last_error"].startswith("WorkerLostError: ")
