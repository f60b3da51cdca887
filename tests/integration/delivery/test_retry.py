"""Retries and delays: when a row is tried again, how often, and that nobody has to poll for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import pytest

from spectral.core.events import Consumer, DeliveryContext, RetryPolicy, TerminalHandlerError, Transaction
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.outcome import Retry
from spectral.core.events.ports import Along, ClaimAnswer, ClaimAsk, Outlook
from spectral.core.events.probe import Finished
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, Bench, Scan, until, write_effect

AFTER_A_MOMENT = RetryPolicy(max_retries=3, base=timedelta(seconds=0.6), cap=timedelta(seconds=0.6))


def without_jitter(worker: Listener) -> None:
    """Have retries wait as long as their policy allows."""
    worker._desk.random = lambda: 1.0


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_transient_failure_is_retried_after_its_delay_and_a_timer_wakes_for_it(
    bench: Bench, *, transactional: bool
) -> None:
    platform = Consumer("platform", retry=AFTER_A_MOMENT)
    tried: list[float] = []

    def fail_once() -> None:
        tried.append(time.monotonic())
        if len(tried) == 1:
            raise OSError("away")

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            fail_once()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            assert scan.number == 1
            fail_once()

    async with bench.running(platform) as worker:
        without_jitter(worker)
        (event_id,) = await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert len(tried) == 2
    assert tried[1] - tried[0] >= 0.6
    row = await bench.row(event_id)
    assert (row["attempts"], row["last_error"].partition(":")[0]) == (2, "OSError")


async def test_a_row_that_waits_for_its_retry_is_pending_with_its_error(bench: Bench) -> None:
    platform = Consumer("platform", retry=RetryPolicy(base=timedelta(hours=1), cap=timedelta(hours=1)))

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise OSError(f"away {scan.number}")

    async with bench.running(platform) as worker:
        without_jitter(worker)
        (event_id,) = await bench.publish(1)
        await until(lambda: bench.notes.of(Finished))
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 1, "OSError: platform.mail: away 1")
    assert row["first_failed_at"] is not None
    assert row["next_attempt_at"] - row["first_failed_at"] == timedelta(hours=1)


async def test_a_terminal_failure_goes_to_the_dlq_at_once(bench: Bench, platform: Consumer) -> None:
    tried: list[int] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        tried.append(scan.number)
        raise TerminalHandlerError("never")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (tried, row["status"], row["attempts"]) == ([1], "failed", 1)


@pytest.mark.parametrize("transactional", [True, False])
async def test_after_the_last_retry_the_row_goes_to_the_dlq(
    bench: Bench, platform: Consumer, *, transactional: bool
) -> None:
    attempts: list[tuple[int, bool]] = []

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction, context: DeliveryContext) -> None:
            await write_effect(tx, "project", scan.number)
            attempts.append((context.attempt, context.is_last_attempt))
            raise OSError("away")
    else:

        @platform.on(COMPLETED)
        async def mail(context: DeliveryContext) -> None:
            attempts.append((context.attempt, context.is_last_attempt))
            raise OSError("away")

    (event_id,) = await bench.publish(1)
    async with bench.running(platform):
        await until(lambda: bench.all_are("failed"))
    assert attempts == [(1, False), (2, False), (3, False), (4, True)]
    row = await bench.row(event_id)
    assert (row["attempts"], row["last_error"].partition(":")[0]) == (4, "OSError")
    assert await bench.effects() == []


async def test_a_delayed_event_is_delivered_on_time_and_not_before(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform):
        began = time.monotonic()
        (event_id,) = await bench.publish(1, delay=timedelta(seconds=0.8))
        await until(lambda: bench.all_are("delivered"), within=10)
        assert time.monotonic() - began >= 0.8
    row = await bench.row(event_id)
    assert row["delivered_at"] >= row["next_attempt_at"]


async def test_of_several_delayed_events_each_is_delivered_on_time(bench: Bench, platform: Consumer) -> None:
    order: list[int] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        order.append(scan.number)

    async with bench.running(platform):
        for number, seconds in ((3, 1.2), (1, 0.4), (2, 0.8)):
            await bench.publish(number, delay=timedelta(seconds=seconds))
        await until(lambda: bench.all_are("delivered"), within=10)
    assert order == [1, 2, 3]


async def test_a_worker_that_starts_later_is_on_time_for_a_delayed_event(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await bench.publish(1, delay=timedelta(seconds=1))
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"), within=10)


async def test_a_retry_that_is_settled_while_a_claim_is_under_way_is_on_time(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim's answer does not know of it and says that nothing waits; the timer must not believe it."""
    platform = Consumer("platform", retry=AFTER_A_MOMENT)
    failing = asyncio.Event()
    runs: list[int] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs.append(scan.number)
        if len(runs) == 1:
            await failing.wait()
            raise OSError("away")

    async with bench.running(platform) as worker:
        without_jitter(worker)
        claims = worker._connections.claims
        claim = claims.look_ahead_and_claim

        async def claim_slowly(asks: Sequence[ClaimAsk], along: Along) -> tuple[Outlook, list[ClaimAnswer]]:
            outlook, answers = await claim(asks, along)
            if runs == [1] and any(answer.deliveries for answer in answers):  # the delayed one has come
                failing.set()
                await until(lambda: any(isinstance(note.outcome, Retry) for note in bench.notes.of(Finished)))
            return outlook, answers

        monkeypatch.setattr(claims, "look_ahead_and_claim", claim_slowly)
        await bench.publish(1)
        await until(lambda: runs)
        await bench.publish(2, delay=timedelta(seconds=1.5))  # so long after the last look that its claim is another
        await until(lambda: bench.all_are("delivered"), within=10)
    assert sorted(runs) == [1, 1, 2]


async def test_rows_that_fall_due_while_the_worker_is_kept_awake_are_on_time(bench: Bench, platform: Consumer) -> None:
    """One of them falls due just when a claim has looked."""

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    async with bench.running(platform):
        for number in range(200):
            await bench.publish(number, delay=timedelta(milliseconds=500 + 7 * number))
        await until(lambda: _all_delivered_while_notified(bench), within=15)


async def _all_delivered_while_notified(bench: Bench) -> bool:
    await bench.execute("notify outbox_gen_1")
    return await bench.all_are("delivered")


async def test_retries_do_not_hold_up_what_is_new(bench: Bench) -> None:
    platform = Consumer("platform", retry=RetryPolicy(base=timedelta(hours=1), cap=timedelta(hours=1)))

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        if scan.number < 300:
            raise OSError("away")

    async with bench.running(platform) as worker:
        without_jitter(worker)
        await bench.publish(*range(300))
        (new,) = await bench.publish(300)
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", new))
    assert await bench.statuses() == {"pending": 300, "delivered": 1}


@pytest.mark.parametrize("kind", [COMPLETED, STARTED])
async def test_a_published_event_wakes_a_worker_that_sleeps(bench: Bench, platform: Consumer, kind: str) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1

    async with bench.running(platform):
        await bench.publish(1, event_type=kind)
        await until(lambda: bench.all_are("delivered"), within=10)
