"""Stopping: claim no more, give back what was not begun, let the rest finish within the grace, then end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import pytest

from spectral.core.events import ConfigurationError, Consumer, Transaction
from spectral.core.events.delivery.health import State
from spectral.core.events.delivery.shift import Shift
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.infrastructure.postgres.script import Rows
from spectral.core.events.probe import Stopped, Stopping
from spectral.core.events.routes import Limit
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    shortened,
    soon,
    until,
    write_effect,
)


@pytest.mark.parametrize("transactional", [True, False])
async def test_what_was_not_begun_is_given_back_without_a_charge_and_what_runs_is_finished(
    bench: Bench, platform: Consumer, *, transactional: bool
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    runs: Counter[int] = Counter()

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            runs[scan.number] += 1
            began.set()
            await go_on.wait()
            await write_effect(tx, "project", scan.number)
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            runs[scan.number] += 1
            began.set()
            await go_on.wait()

    await bench.publish(*range(30))
    async with bench.running(platform, lanes=1, concurrency=1) as worker:
        await soon(began.wait())
        await until(lambda: worker.health().held > 1)
        worker.stop()
        await until(lambda: worker.health().state is State.DRAINING)
        go_on.set()
    assert len(runs) == 1
    assert await bench.statuses() == {"delivered": 1, "pending": 29}
    assert await bench.value("select max(attempts) from core.outbox where status = 'pending'") == 0
    assert worker.health().state is State.STOPPED
    await until(bench.is_left_alone)


async def test_after_a_stop_a_lane_that_waited_for_its_turn_does_not_take_it(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    let_go, waits = asyncio.Event(), asyncio.Event()
    enter = Limit.__aenter__

    async def seen(limit: Limit) -> None:
        if not limit.is_free:
            waits.set()
        await enter(limit)

    monkeypatch.setattr(Limit, "__aenter__", seen)

    @platform.on(COMPLETED, STARTED, concurrency=1)
    async def alone(scan: Scan, tx: Transaction) -> None:
        runs.append(scan.number)
        await let_go.wait()
        await write_effect(tx, "alone", scan.number)

    @platform.on(COMPLETED, concurrency=1)  # so that its rows are claimed apart from the others
    async def beside(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "beside", scan.number)

    await bench.publish(1)
    await bench.publish(2, event_type=STARTED)
    async with bench.running(platform, lanes=2) as worker:
        await soon(waits.wait())
        worker.stop()
        await until(lambda: worker.health().state is State.DRAINING)
        let_go.set()
    assert len(runs) == 1
    assert await bench.statuses() == {"delivered": 1, "pending": 1}
    assert await bench.value("select attempts from core.outbox where status = 'pending'") == 0


@pytest.mark.parametrize("commit_within", [timedelta(seconds=0.05), timedelta(seconds=10)])
async def test_after_a_stop_a_lane_does_not_begin_the_next_row_of_its_batch(
    bench: Bench, platform: Consumer, commit_within: timedelta
) -> None:
    """Neither in the same transaction nor in another."""
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await asyncio.sleep(0.2)
        await write_effect(tx, "project", scan.number)

    await bench.publish(*range(20))
    async with bench.running(platform, lanes=1, commit_within=commit_within) as worker:
        await until(lambda: runs)
        worker.stop()
    assert len(runs) <= 2
    assert (await bench.statuses())["pending"] >= 18
    assert await bench.value("select max(attempts) from core.outbox where status = 'pending'") == 0


@pytest.mark.parametrize("transactional", [True, False])
async def test_who_cancels_a_worker_that_stops_has_it_end_at_once_and_in_good_order(
    bench: Bench, platform: Consumer, *, transactional: bool
) -> None:
    began = asyncio.Event()

    async def hang() -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            await hang()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            assert scan.number >= 0
            await hang()

    await bench.publish(*range(10))
    worker = bench.worker(platform, times=shortened(stop=100))
    running = asyncio.create_task(worker.run())
    await soon(began.wait())
    worker.stop()
    await until(lambda: worker.health().state is State.DRAINING)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert await bench.statuses() == {"pending": 10}
    assert await bench.value("select max(attempts) from core.outbox") == 0
    assert await bench.effects() == []


async def test_who_cancels_a_worker_that_claims_no_more_has_it_end_in_good_order(
    bench: Bench, platform: Consumer
) -> None:
    began = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0
        began.set()
        await asyncio.get_running_loop().create_future()

    await bench.publish(*range(10))
    running = asyncio.create_task(bench.worker(platform).run("once"))
    await soon(began.wait())
    await until(lambda: _claims_no_more(bench))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(running)
    assert await bench.statuses() == {"pending": 10}


async def _claims_no_more(bench: Bench) -> bool:
    return not await bench.backends("claim")


@pytest.mark.parametrize("insists", ["stop", "cancel"])
async def test_what_the_last_claim_took_is_given_back_however_much_somebody_insists(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, insists: str
) -> None:
    claimed = asyncio.Event()
    answer = PostgresClaims._run

    async def late(claims: PostgresClaims, script: Sequence[bytes]) -> list[Rows]:
        rows = await answer(claims, script)
        if await bench.value("select exists (select from core.outbox where status = 'in_flight')"):
            claimed.set()
            await asyncio.sleep(0.1)  # on its way
        return rows

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    monkeypatch.setattr(PostgresClaims, "_run", late)
    await bench.publish(*range(10))
    worker = bench.worker(platform)
    running = asyncio.create_task(worker.run())
    await soon(claimed.wait())
    worker.stop()
    if insists == "stop":
        worker.stop()
        await soon(running)
    else:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(running)
    assert await bench.statuses() == {"pending": 10}
    assert await bench.value("select max(attempts) from core.outbox") == 0


@pytest.mark.parametrize("transactional", [True, False])
async def test_what_is_not_done_within_the_grace_is_cancelled_and_given_back(
    bench: Bench, platform: Consumer, *, transactional: bool
) -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            await hang()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            assert scan.number == 1
            await hang()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform) as worker:
        await soon(began.wait())
        worker.stop(timedelta(seconds=0.2))
    assert cancelled.is_set()
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 0, None)
    assert (await bench.effects(), await bench.keys()) == ([], [])
    assert [note.grace for note in bench.notes.of(Stopping)] == [timedelta(seconds=0.2)]
    await until(bench.is_left_alone)


async def test_a_second_stop_does_not_wait_for_the_grace(bench: Bench, platform: Consumer) -> None:
    began = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1
        began.set()
        await asyncio.get_running_loop().create_future()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform, times=shortened(stop=100)) as worker:
        await soon(began.wait())
        worker.stop()
        await until(lambda: worker.health().state is State.DRAINING)
        worker.stop()
        await until(lambda: worker.health().state is State.STOPPED)
    assert await bench.status(event_id) == "pending"


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_worker_from_ending(
    bench: Bench, platform: Consumer
) -> None:
    began, let_go, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        began.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        left.set()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform) as worker:
        await soon(began.wait())
        worker.stop(timedelta(0))
        await until(lambda: worker.health().state is State.STOPPED, within=10)
    assert await bench.status(event_id) == "pending"
    let_go.set()
    await soon(left.wait())
    assert await bench.effects() == []


async def test_an_idle_worker_ends_at_once_and_leaves_no_connection(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform, times=shortened(stop=100)) as worker:
        worker.stop()
        await until(lambda: worker.health().state is State.STOPPED, within=10)
    await until(bench.is_left_alone)
    assert len(bench.notes.of(Stopped)) == 1


async def test_it_ends_while_the_database_is_down(bench: Bench, platform: Consumer) -> None:
    """The grace is for handlers; none runs."""

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform, times=shortened(stop=100, answer=1)) as worker:
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
        async with bench.down():
            await until(lambda: not worker.health().listening)
            worker.stop()
            await until(lambda: worker.health().state is State.STOPPED, within=15)


async def test_it_ends_while_the_database_is_down_and_an_outcome_cannot_be_written(
    bench: Bench, platform: Consumer
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1
        began.set()
        await go_on.wait()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform, times=shortened(stop=100, answer=1)) as worker:
        await soon(began.wait())
        async with bench.down():
            go_on.set()
            worker.stop()
            await until(lambda: worker.health().state is State.STOPPED, within=20)
    assert await bench.status(event_id) == "in_flight", "the reaper's"


async def test_it_ends_while_it_waits_for_a_database_that_was_never_there(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    async with bench.down():
        worker = bench.worker(platform, times=shortened(answer=1))
        run = asyncio.create_task(worker.run())
        await until(lambda: bench.notes._told)
        worker.stop()
        await soon(run)
    assert worker.health().state is State.STOPPED


async def test_it_starts_when_the_database_comes_up(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1

    await bench.publish(1)
    async with bench.worker(platform):
        async with bench.down():
            await until(lambda: bench.notes._told)
        await until(lambda: bench.all_are("delivered"))


async def test_an_outage_costs_nothing_but_time(bench: Bench, platform: Consumer) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1

    async with bench.running(platform, times=shortened(answer=2)):
        for outage in range(3):
            await bench.publish(*range(outage * 100, outage * 100 + 100))
            await bench.publish(*range(outage * 100, outage * 100 + 100), event_type=STARTED)
            async with bench.down():
                await asyncio.sleep(0.3)
        await until(lambda: bench.all_are("delivered"), within=60)
    assert await bench.effects() == [("project", number) for number in range(300)]
    assert set(runs) == set(range(300))


@pytest.mark.parametrize("until_what", ["drained", "once"])
async def test_it_ends_by_itself_when_there_is_nothing_to_do(bench: Bench, platform: Consumer, until_what: str) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    worker = bench.worker(platform)
    await soon(worker.run(until=until_what))  # type: ignore[arg-type]
    assert worker.health().state is State.STOPPED
    await until(bench.is_left_alone)


async def test_once_delivers_all_that_its_one_claim_took(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    await bench.publish(*range(35))
    await bench.publish(*range(90), event_type=STARTED)
    await soon(bench.worker(platform, lanes=2, batch=10, concurrency=50).run(until="once"))
    assert await bench.all_are("delivered")


async def test_drained_does_not_end_before_it_has_claimed(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread beside says that it is open in the very moment between two looks of the claim loop."""

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1

    looks: list[Shift] = []

    def is_alive(shift: Shift) -> bool:
        looks.append(shift)
        return len(looks) > 1

    monkeypatch.setattr(Shift, "_is_alive", is_alive)
    await bench.publish(1)
    await bench.drain(platform)
    assert await bench.all_are("delivered")


async def test_drained_ends_though_a_row_waits_for_tomorrow(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1

    await bench.publish(2, delay=timedelta(days=1))
    await bench.publish(1)
    began = time.monotonic()
    await bench.drain(platform)
    assert time.monotonic() - began < 10
    assert await bench.statuses() == {"delivered": 1, "pending": 1}


async def test_a_worker_runs_once(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    worker = await bench.drain(platform)
    with pytest.raises(ConfigurationError, match="runs once"):
        await worker.run()


async def test_a_worker_that_runs_is_not_started_a_second_time(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    async with bench.worker(platform) as worker:
        await asyncio.sleep(0)  # it has begun to start, no more
        with pytest.raises(ConfigurationError, match="runs once"):
            await soon(worker.run())
