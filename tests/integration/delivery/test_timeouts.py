"""Handlers that do not return, do not obey, block the loop, or raise what is not theirs to raise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from spectral.core.events import Consumer, Transaction
from spectral.core.events.probe import HandlerRanAway
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

SHORT = timedelta(seconds=0.3)


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_handler_that_never_returns_fails_after_its_timeout_and_is_retried(
    bench: Bench, platform: Consumer, *, transactional: bool
) -> None:
    runs: list[int] = []

    async def hang_once(number: int) -> None:
        runs.append(number)
        if runs.count(1) == 1 and number == 1:
            await asyncio.get_running_loop().create_future()

    if transactional:

        @platform.on(COMPLETED, timeout=SHORT)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            await hang_once(scan.number)
    else:

        @platform.on(COMPLETED, timeout=SHORT)
        async def mail(scan: Scan) -> None:
            await hang_once(scan.number)

    ids = await bench.publish(1, 2)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.all_are("delivered"))
    assert sorted(runs) == [1, 1, 2]
    assert await bench.effects() == ([("project", 1), ("project", 2)] if transactional else [])
    first, second = [await bench.row(each) for each in ids]
    assert (first["attempts"], second["attempts"]) == (2, 1)
    name = "platform.project" if transactional else "platform.mail"
    assert first["last_error"] == f"HandlerTimeoutError: {name}: did not return within 0.3 s"


async def test_a_query_that_takes_too_long_is_cancelled_with_its_handler(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED, timeout=SHORT, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await tx.execute("select pg_sleep(60)")

    ids = await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]
    assert await bench.effects() == [("project", 1), ("project", 3)]
    assert await bench.value("select count(*) from pg_stat_activity where query like %s", "%pg_sleep(60)%") <= 1


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_handler_that_ignores_its_cancellation_is_left_behind_and_its_slot_is_free_again(
    bench: Bench, *, transactional: bool
) -> None:
    platform = Consumer("platform", retry=NEVER_AGAIN, timeout=SHORT)
    let_go, left = asyncio.Event(), asyncio.Event()

    async def refuse_to_end() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        left.set()

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            if scan.number == 2:
                await refuse_to_end()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            if scan.number == 2:
                await refuse_to_end()

    ids = await bench.publish(1, 2, 3, 4)
    async with bench.running(platform, lanes=1, concurrency=1):
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
        assert not left.is_set()
    let_go.set()
    await soon(left.wait())
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered", "delivered"]
    assert [note.delivery.event_id for note in bench.notes.of(HandlerRanAway)] == [ids[1]]
    assert await bench.effects() == ([("project", number) for number in (1, 3, 4)] if transactional else [])


async def test_what_a_handler_writes_after_it_was_left_behind_is_not_kept(bench: Bench) -> None:
    platform = Consumer("platform", retry=NEVER_AGAIN, timeout=SHORT)
    let_go = asyncio.Event()
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        connection = tx.connection
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        try:
            await connection.execute("insert into public.effects values ('late', %s)", [scan.number])
            await connection.commit()
            outcome.set_result(None)
        except Exception as error:  # noqa: BLE001  which, is the question
            outcome.set_result(error)

    await bench.publish(1)
    async with bench.running(platform):
        await until(lambda: bench.all_are("failed"))
        let_go.set()
        assert isinstance(await soon(outcome), Exception)
    assert await bench.effects() == []


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_is_delivered_once(
    bench: Bench, *, transactional: bool
) -> None:
    """The lease runs out three times while nothing moves but the thread beside; another worker would take it."""
    times = shortened(lease=1, reap=0.2, grace=0.5, heartbeat=0.5)

    def consumer() -> Consumer:
        made = Consumer("platform", retry=AT_ONCE)
        if transactional:

            @made.on(COMPLETED)
            async def project(scan: Scan, tx: Transaction) -> None:
                runs.append(scan.number)
                await write_effect(tx, "project", scan.number)
                time.sleep(3)  # noqa: ASYNC251  that is the fault
        else:

            @made.on(COMPLETED)
            async def mail(scan: Scan) -> None:
                runs.append(scan.number)
                time.sleep(3)  # noqa: ASYNC251  that is the fault

        return made

    runs: list[int] = []
    (event_id,) = await bench.publish(1)
    async with bench.running(consumer(), times=times) as blocked:
        await until(lambda: runs)
        async with bench.running(consumer(), times=times):
            await until(lambda: bench.all_are("delivered"))
        assert blocked.health().listening
    assert runs == [1]
    assert (await bench.row(event_id))["attempts"] == 1


async def test_the_ear_beats_while_a_handler_blocks_the_loop(bench: Bench, platform: Consumer) -> None:
    beats: list[object] = []

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1
        query = "select query_start from pg_stat_activity where application_name like 'spectral ear %'"
        with psycopg.connect(bench.dsn, autocommit=True) as watcher:
            for _ in range(4):
                beats.append(watcher.execute(query).fetchone())
                time.sleep(0.5)  # noqa: ASYNC251  that is the fault

    await bench.publish(1, event_type=STARTED)
    async with bench.running(platform, times=shortened(heartbeat=0.3)):
        await until(lambda: bench.all_are("delivered"))
    assert len(set(beats)) >= 3


def exits() -> None:
    raise SystemExit(3)


def is_interrupted() -> None:
    raise KeyboardInterrupt


def is_cancelled() -> None:
    raise asyncio.CancelledError


def ends_a_generator() -> None:
    raise GeneratorExit


def stops_an_iteration() -> None:
    raise StopAsyncIteration


def raises_what_is_no_exception() -> None:
    raise BaseException("anything")  # noqa: TRY002  that is the fault


def raises_a_group() -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), OSError("x"), KeyboardInterrupt()])


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize(
    "fault",
    [
        exits,
        is_interrupted,
        is_cancelled,
        ends_a_generator,
        stops_an_iteration,
        raises_what_is_no_exception,
        raises_a_group,
    ],
    ids=lambda fault: fault.__name__,
)
async def test_whatever_a_handler_raises_is_its_events_failure(
    bench: Bench, platform: Consumer, fault: Callable[[], None], *, transactional: bool
) -> None:
    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            if scan.number == 2:
                fault()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            if scan.number == 2:
                fault()

    ids = await bench.publish(1, 2, 3)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    rows = [await bench.row(each) for each in ids]
    assert [(row["status"], row["attempts"]) for row in rows] == [("delivered", 1), ("failed", 4), ("delivered", 1)]
