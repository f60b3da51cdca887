"""A row of several handlers whose transaction is not kept stays alive while one that lost its work may be retried."""

from __future__ import annotations

from collections import Counter

from spectral.core.events import Consumer, DeliveryContext, TerminalHandlerError, Transaction
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, NEVER_AGAIN, Bench, Scan, write_effect
from tests.integration.delivery.test_conflicts import refuse


async def test_a_refused_commit_is_judged_by_who_wrote_in_it_and_not_by_who_is_used_up(bench: Bench) -> None:
    await refuse(bench, "57014", 1, at_commit=True)
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def first(scan: Scan, tx: Transaction, context: DeliveryContext) -> None:
        if context.attempt == 1:
            raise RuntimeError("not yet")
        await write_effect(tx, "first", scan.number)

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def second(_: Scan, tx: Transaction) -> None:
        await tx.execute("select 1")
        raise RuntimeError("never")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 3)
    assert await bench.effects() == [("first", 1)]
    assert await bench.keys() == ["platform.first"]


async def test_a_plain_handler_that_failed_is_retried_though_the_commit_beside_it_never_will_be(bench: Bench) -> None:
    await refuse(bench, "23514", 1, at_commit=True)
    platform = Consumer("platform", retry=AT_ONCE)
    mails: Counter[int] = Counter()
    errors: list[str] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan, context: DeliveryContext) -> None:
        mails[scan.number] += 1
        if context.attempt == 1:
            raise RuntimeError("busy")
        errors.append(await bench.value("select last_error from core.outbox"))

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], mails[1]) == ("failed", 2, 2)
    assert await bench.keys() == ["platform.mail"]
    (after_the_first,) = errors
    assert after_the_first == (
        "CheckViolation: platform.project: others were quicker (23514) (also: platform.mail RuntimeError)"
    )


async def test_one_that_ends_the_transaction_does_not_cost_the_others_of_its_row_their_work(bench: Bench) -> None:
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def first(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "first", scan.number)

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def second(_: Scan, tx: Transaction) -> None:
        await tx.connection.rollback()
        raise TerminalHandlerError("took everything down")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 2)
    assert await bench.effects() == [("first", 1)]
    assert await bench.keys() == ["platform.first"]


async def test_where_all_that_wrote_fail_for_good_the_row_does(bench: Bench) -> None:
    await refuse(bench, "23514", 1, at_commit=True)
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def first(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "first", scan.number)

    @platform.on(COMPLETED)
    async def second(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "second", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert row["last_error"] == "CheckViolation: platform.second: others were quicker (23514)"
    assert await bench.effects() == []
