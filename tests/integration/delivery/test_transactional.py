"""A handler that takes the transaction: its writes, its dedup record and the ack commit together, or none of them."""

from __future__ import annotations

import asyncio

from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, TerminalHandlerError, Transaction
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import Finished
from tests.integration.delivery.platform_worker import COMPLETED, Bench, Scan, soon, until, write_effect


async def test_effect_key_and_delivered_are_there_together(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert await bench.effects() == [("project", 1)]
    assert await bench.keys() == ["platform.project"]
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("delivered", 1, None)


async def test_while_the_handler_runs_nobody_else_sees_effect_key_or_ack(bench: Bench, platform: Consumer) -> None:
    wrote, go_on = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        wrote.set()
        await go_on.wait()

    (event_id,) = await bench.publish(1)
    async with bench.running(platform):
        await soon(wrote.wait())
        assert (await bench.effects(), await bench.keys(), await bench.status(event_id)) == ([], [], "in_flight")
        go_on.set()
        await until(lambda: bench.all_are("delivered"))


async def test_a_failure_rolls_back_its_row_alone_and_its_neighbours_share_a_commit(
    bench: Bench, platform: Consumer
) -> None:
    transactions: dict[int, int] = {}

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        row = await (await tx.execute("select txid_current()")).fetchone()
        transactions[scan.number] = row[0] if row else 0
        if scan.number == 3:
            raise TerminalHandlerError("three is bad")

    ids = await bench.publish(*range(1, 7))
    await bench.drain(platform, lanes=1)
    assert await bench.effects() == [("project", number) for number in (1, 2, 4, 5, 6)]
    assert await bench.keys() == ["platform.project"] * 5
    assert [await bench.status(each) for each in ids].count("delivered") == 5
    failed = await bench.row(ids[2])
    assert (failed["status"], failed["last_error"]) == (
        "failed",
        "TerminalHandlerError: platform.project: three is bad",
    )
    assert transactions[2] == transactions[4], "the test wants neighbours that share a transaction"


async def test_a_failed_statement_of_one_row_does_not_harm_its_neighbours(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await tx.execute("select 1 / 0")

    ids = await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    assert await bench.effects() == [("project", 1), ("project", 3)]
    assert await bench.status(ids[1]) == "failed"


async def test_an_event_is_delivered_once_to_a_running_worker_that_was_asleep(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform):
        for number in range(5):
            await bench.publish(number)
            await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", number) for number in range(5)]


async def test_a_rolled_back_publish_is_never_delivered(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with bench.running(platform):
        async with bench.connection.transaction(force_rollback=True):
            await bench.publish(1)
        await bench.publish(2)
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", 2)]


async def test_the_handler_sees_the_event_as_it_was_published(bench: Bench, platform: Consumer) -> None:
    seen: list[tuple[EventEnvelope, DeliveryContext]] = []

    @platform.on(COMPLETED)
    async def project(envelope: EventEnvelope, context: DeliveryContext, tx: Transaction) -> None:
        assert tx.connection.info.dbname
        seen.append((envelope, context))

    (event_id,) = await bench.publish(7, idempotency_key="scan-7")
    await bench.drain(platform, name="worker-a")
    ((envelope, context),) = seen
    assert (envelope.event_id, envelope.event_type, envelope.source, envelope.target) == (
        event_id,
        COMPLETED,
        "worlds",
        "platform",
    )
    assert (envelope.payload, envelope.idempotency_key) == ({"number": 7}, "scan-7")
    assert (context.attempt, context.max_attempts, context.generation, context.worker, context.handler_name) == (
        1,
        4,
        1,
        "worker-a",
        "platform.project",
    )


async def test_what_was_delivered_is_told_with_its_handler(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    (finished,) = bench.notes.of(Finished)
    assert (finished.delivery.event_id, finished.outcome, finished.handlers) == (
        event_id,
        Handled(),
        ("platform.project",),
    )


async def test_a_follow_up_is_published_in_the_handlers_transaction(bench: Bench, platform: Consumer) -> None:
    published, go_on = asyncio.Event(), asyncio.Event()

    @platform.on(COMPLETED)
    async def project(envelope: EventEnvelope, tx: Transaction) -> None:
        await tx.publish(EventEnvelope(event_type="platform.card.projected", source="platform", target="worlds"))
        assert envelope.source == "worlds"
        published.set()
        await go_on.wait()

    await bench.publish(1)
    count = "select count(*) from core.outbox where event_type = 'platform.card.projected' and generation = 1"
    async with bench.running(platform):
        await soon(published.wait())
        assert await bench.value(count) == 0
        go_on.set()
        await until(lambda: bench.value(count))
    assert await bench.value(count) == 1


async def test_a_follow_up_of_a_handler_that_fails_is_not_published(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.publish(EventEnvelope(event_type="platform.card.projected", source="platform", target="worlds"))
        raise TerminalHandlerError(str(scan.number))

    await bench.publish(1)
    await bench.drain(platform)
    assert await bench.statuses() == {"failed": 1}


async def test_a_follow_up_to_the_handlers_own_context_is_delivered_too(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.publish(
            EventEnvelope(
                event_type="platform.card.projected",
                source="platform",
                target="platform",
                payload={"number": scan.number + 1},
            )
        )

    @platform.on("platform.card.projected")
    async def announce(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "announce", scan.number)

    async with bench.running(platform):
        await bench.publish(1)
        await until(bench.effects)
    assert await bench.effects() == [("announce", 2)]


async def test_the_handlers_own_nested_transaction_may_be_rolled_back(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        async with tx.connection.transaction(force_rollback=True):
            await write_effect(tx, "tried", scan.number)
        async with tx.connection.transaction():
            await write_effect(tx, "project", scan.number)

    await bench.publish(1, 2)
    await bench.drain(platform)
    assert await bench.effects() == [("project", 1), ("project", 2)]
    assert await bench.all_are("delivered")
