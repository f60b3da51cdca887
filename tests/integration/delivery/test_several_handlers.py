"""Several handlers of one context for one event: each takes effect once, a retry runs only those that have not."""

from __future__ import annotations

import asyncio
from collections import Counter

from spectral.core.events import Consumer, RetryPolicy, TerminalHandlerError, Transaction
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    NEVER_AGAIN,
    STARTED,
    Bench,
    Scan,
    soon,
    until,
    write_effect,
)


async def test_all_of_them_take_effect(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def index(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)

    await bench.publish(1)
    await bench.drain(platform)
    assert await bench.effects() == [("index", 1), ("project", 1)]
    assert await bench.keys() == ["platform.index", "platform.project"]
    assert await bench.all_are("delivered")


async def test_a_retry_runs_only_the_transactional_one_that_failed(bench: Bench, platform: Consumer) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def index(scan: Scan, tx: Transaction) -> None:
        runs["index"] += 1
        await write_effect(tx, "index", scan.number)
        if runs["index"] < 3:
            raise OSError("the index is away")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"project": 1, "index": 3}
    assert await bench.effects() == [("index", 1), ("project", 1)]
    assert (await bench.row(event_id))["attempts"] == 3


async def test_a_retry_runs_only_the_plain_one_that_failed(bench: Bench, platform: Consumer) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    @platform.on(COMPLETED)
    async def call(scan: Scan) -> None:
        runs["call"] += scan.number
        if runs["call"] < 3:
            raise OSError("the line is busy")

    await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"mail": 1, "call": 3}
    assert await bench.keys() == ["platform.call", "platform.mail"]


async def test_the_first_ones_failure_does_not_keep_the_second_from_running(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await tx.execute("select 1 / 0")

    @platform.on(COMPLETED)
    async def index(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert await bench.effects() == [("index", 1)]
    assert await bench.status(event_id) == "failed"


async def test_the_error_names_the_handler_that_failed(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def index(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)
        raise TerminalHandlerError("no such index")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert (await bench.row(event_id))["last_error"] == "TerminalHandlerError: platform.index: no such index"


async def test_the_error_names_all_handlers_that_failed(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan) -> None:
        raise TerminalHandlerError(f"no card {scan.number}")

    @platform.on(COMPLETED)
    async def index(scan: Scan) -> None:
        raise ValueError(scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert (await bench.row(event_id))["last_error"] == (
        "TerminalHandlerError: platform.project: no card 1 (also: platform.index ValueError)"
    )


async def test_a_plain_and_a_transactional_handler_of_one_event_both_take_effect_once(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"project": 1, "mail": 1}
    assert await bench.keys() == ["platform.mail", "platform.project"]
    assert await bench.all_are("delivered")


async def test_a_plain_handler_that_succeeded_is_not_run_again_when_its_transactional_neighbour_failed(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)
        if runs["project"] < 3:
            raise OSError("away")

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"project": 3, "mail": 1}
    assert await bench.effects() == [("project", 1)]


async def test_a_transactional_handler_that_succeeded_is_not_run_again_when_its_plain_neighbour_failed(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number
        if runs["mail"] < 3:
            raise OSError("away")

    await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"project": 1, "mail": 3}
    assert await bench.effects() == [("project", 1)]


async def test_a_plain_handler_that_succeeded_is_not_run_again_when_its_neighbour_lost_the_transaction(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)
        if runs["project"] == 1:
            await tx.connection.rollback()

    await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"project": 2, "mail": 1}
    assert await bench.effects() == [("project", 1)]


async def test_an_exhausted_handler_is_not_run_again_because_another_one_is_more_patient(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def pay(scan: Scan) -> None:
        runs["pay"] += scan.number
        raise OSError("perhaps it went through")

    @platform.on(COMPLETED, retry=AT_ONCE)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number
        if runs["mail"] < 3:
            raise OSError("away")

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"pay": 1, "mail": 3}
    row = await bench.row(event_id)
    assert row["status"] == "failed"
    assert "platform.pay" in row["last_error"]
    assert await bench.keys() == ["platform.mail"]


async def test_every_handler_has_its_own_policy(bench: Bench, platform: Consumer) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED, retry=RetryPolicy(max_retries=1, base=AT_ONCE.base, cap=AT_ONCE.cap))
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)
        raise OSError("away")

    @platform.on(STARTED, retry=RetryPolicy(max_retries=4, base=AT_ONCE.base, cap=AT_ONCE.cap))
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number
        raise OSError("away")

    await bench.publish(1)
    await bench.publish(1, event_type=STARTED)
    await bench.drain(platform)
    assert runs == {"project": 2, "mail": 5}
    assert await bench.all_are("failed")


async def test_a_terminal_error_of_one_type_is_terminal_for_the_handler_that_says_so(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED, retry=RetryPolicy(base=AT_ONCE.base, cap=AT_ONCE.cap, terminal_errors=(KeyError,)))
    async def project(scan: Scan) -> None:
        runs["project"] += scan.number
        raise KeyError("card")

    await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"project": 1}
    assert await bench.all_are("failed")


async def test_at_most_as_many_of_a_handler_run_at_once_as_it_says(bench: Bench, platform: Consumer) -> None:
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def enter(name: str) -> None:
        now[name] += 1
        most[name] = max(most[name], now[name])

    @platform.on(STARTED, concurrency=3)
    async def mail(scan: Scan) -> None:
        enter("mail")
        await asyncio.sleep(0.01 * scan.number)
        now["mail"] -= 1

    @platform.on(COMPLETED, concurrency=1)
    async def project(scan: Scan, tx: Transaction) -> None:
        enter("project")
        await write_effect(tx, "project", scan.number)
        await asyncio.sleep(0.01)
        now["project"] -= 1

    await bench.publish(*[1] * 20, event_type=STARTED)
    await bench.publish(*[1] * 10)
    await bench.drain(platform, lanes=4)
    assert most == {"mail": 3, "project": 1}
    assert await bench.all_are("delivered")


async def test_plain_handlers_run_at_once_up_to_the_workers_limit(bench: Bench, platform: Consumer) -> None:
    running: set[int] = set()
    enough = asyncio.Event()
    go_on = asyncio.Event()

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        running.add(scan.number)
        if len(running) == 5:
            enough.set()
        await go_on.wait()

    await bench.publish(*range(20), event_type=STARTED)
    async with bench.running(platform, concurrency=5) as worker:
        await soon(enough.wait())
        assert worker.health().running == 5
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert len(running) == 20
