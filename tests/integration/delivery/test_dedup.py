"""One effect for each handler and idempotency key, however many rows, workers and replays there are."""

from __future__ import annotations

import asyncio
from collections import Counter

from spectral.core.events import Consumer, TerminalHandlerError, Transaction
from spectral.core.events.outcome import AlreadyHandled, Released
from spectral.core.events.probe import Finished
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    soon,
    until,
    write_effect,
)


async def test_of_two_rows_with_one_key_one_takes_effect_and_both_are_delivered(
    bench: Bench, platform: Consumer
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await bench.publish(1, idempotency_key="scan")
    await bench.publish(1, idempotency_key="scan")
    await bench.drain(platform)
    assert await bench.effects() == [("project", 1)]
    assert await bench.statuses() == {"delivered": 2}
    assert AlreadyHandled() in [note.outcome for note in bench.notes.of(Finished)]


async def test_two_workers_with_two_rows_of_one_key_have_one_effect(bench: Bench) -> None:
    entered: asyncio.Queue[str] = asyncio.Queue()
    go_on = asyncio.Event()

    def consumer() -> Consumer:
        made = Consumer("platform", retry=AT_ONCE)

        @made.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            entered.put_nowait("project")
            await go_on.wait()

        return made

    async with bench.running(consumer()), bench.running(consumer(), classes=("hot",)):
        await bench.publish(1, idempotency_key="scan")
        await soon(entered.get())
        await bench.publish(1, idempotency_key="scan", processing_class="hot")
        # the second worker has claimed the second row, and waits at the gate for the first to commit
        await until(lambda: bench.value("select count(*) = 2 from core.outbox where status = 'in_flight'"))
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", 1)]
    assert entered.empty()


async def test_a_row_whose_key_is_held_for_long_by_another_worker_is_delivered_without_a_charge(bench: Bench) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    def consumer() -> Consumer:
        made = Consumer("platform", retry=AT_ONCE)

        @made.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            entered.set()
            await go_on.wait()

        return made

    async with bench.running(consumer()), bench.running(consumer(), classes=("hot",)):
        await bench.publish(1, idempotency_key="scan")
        await soon(entered.wait())
        (second,) = await bench.publish(1, idempotency_key="scan", processing_class="hot")
        await until(lambda: Released() in [note.outcome for note in bench.notes.of(Finished)])
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", 1)]
    assert (await bench.row(second))["attempts"] == 1


async def test_a_key_is_one_for_each_handler(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def index(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)

    await bench.publish(1, idempotency_key="scan")
    await bench.publish(1, event_type=STARTED, idempotency_key="scan")
    await bench.drain(platform)
    assert await bench.effects() == [("index", 1), ("project", 1)]


async def test_a_failed_row_does_not_hold_its_key(bench: Bench, platform: Consumer) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if scan.number == 1:
            raise TerminalHandlerError("no")

    await bench.publish(1, idempotency_key="scan")
    await bench.drain(platform)
    await bench.publish(2, idempotency_key="scan")
    platform_again = Consumer("platform")
    platform_again.on(COMPLETED)(project)
    await bench.drain(platform_again)
    assert await bench.effects() == [("project", 2)]
    assert runs == {1: 1, 2: 1}


async def test_a_replay_of_a_handled_event_has_no_effect_and_ends_delivered(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def index(scan: Scan) -> None:
        raise TerminalHandlerError(f"no index {scan.number}")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert await bench.status(event_id) == "failed"

    mended = Consumer("platform")

    @mended.on(COMPLETED, name="platform.index")
    async def index_again(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)

    mended.on(COMPLETED)(project)
    await bench.execute("select core.outbox_replay(%s, 1, 'ada')", event_id)
    await bench.drain(mended)
    assert await bench.effects() == [("index", 1), ("project", 1)]
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], len(row["failure_history"])) == ("delivered", 1, 1)


async def test_a_replayed_row_of_which_everything_is_handled_runs_nothing(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    (handled,) = await bench.publish(1, idempotency_key="scan")
    await bench.drain(platform)
    (lost,) = await bench.publish(2, idempotency_key="scan")
    await bench.execute(
        "select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null)",
    )
    await bench.execute(
        "select core.outbox_settle(array[id], array[claim_token], '{dead_letter}', '{OSError: x}', '{null}')"
        " from core.outbox where id = %s",
        lost,
    )
    await bench.execute("select core.outbox_replay(%s, 1, 'ada')", lost)
    again = Consumer("platform")
    again.on(COMPLETED)(project)
    await bench.drain(again)
    assert await bench.effects() == [("project", 1)]
    assert [await bench.status(each) for each in (handled, lost)] == ["delivered", "delivered"]


async def test_a_plain_handler_does_not_run_for_a_known_key(bench: Bench, platform: Consumer) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1

    async with bench.running(platform):
        await bench.publish(1, idempotency_key="scan")
        await until(lambda: bench.all_are("delivered"))
        await bench.publish(2, idempotency_key="scan")
        await until(lambda: bench.all_are("delivered"))
    assert runs == {1: 1}
