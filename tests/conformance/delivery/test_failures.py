"""What becomes of an event whose handler fails: tried again, each handler for itself, and in the end a dead letter."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from spectral.core.database import connect
from spectral.core.events import Consumer, DeliveryContext, RetryPolicy, TerminalHandlerError, Transaction
from spectral.core.events.probe import Unhandled
from spectral.core.operations.replay import replay
from tests.conformance.delivery.stage import Stage
from tests.integration.delivery.platform_worker import COMPLETED, Scan, shortened, until, write_effect

BACKING_OFF = RetryPolicy(max_retries=3, base=timedelta(seconds=0.3), cap=timedelta(seconds=0.3))
FORGOTTEN = "worlds.scan.forgotten"


async def test_a_transient_failure_is_tried_again_when_its_time_has_come(stage: Stage) -> None:
    platform = Consumer("platform", retry=BACKING_OFF)
    attempts: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction, context: DeliveryContext) -> None:
        await write_effect(tx, "project", scan.number)
        attempts.append(context.attempt)
        if context.attempt < 3:
            raise ConnectionError("not yet")

    async with stage.running(platform):
        (event_id,) = await stage.publish(1)
        await until(lambda: stage.all_are("delivered"))
    row = await stage.row(event_id)
    assert (attempts, row["attempts"]) == ([1, 2, 3], 3)
    assert await stage.effects() == [("project", 1)]
    assert row["last_error"] == "ConnectionError: platform.project: not yet"
    assert row["first_failed_at"] < row["next_attempt_at"] <= row["delivered_at"]


async def test_a_retry_runs_only_the_handlers_that_have_not_taken_effect(stage: Stage, platform: Consumer) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    @platform.on(COMPLETED)
    async def call(scan: Scan) -> None:
        runs["call"] += scan.number
        if runs["call"] < 3:
            raise ConnectionError("the line is busy")

    async with stage.running(platform):
        (event_id,) = await stage.publish(1)
        await until(lambda: stage.all_are("delivered"))
    assert runs == {"project": 1, "mail": 1, "call": 3}
    assert await stage.effects() == [("project", 1)]
    assert (await stage.row(event_id))["attempts"] == 3


async def test_a_terminal_failure_is_a_dead_letter_at_once(stage: Stage, platform: Consumer) -> None:
    tried: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        tried.append(scan.number)
        if scan.number == 2:
            raise TerminalHandlerError("never")

    async with stage.running(platform):
        ids = await stage.publish(1, 2, 3)
        await until(lambda: stage.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    rows = [await stage.row(each) for each in ids]
    assert [row["status"] for row in rows] == ["delivered", "failed", "delivered"]
    assert (rows[1]["attempts"], rows[1]["last_error"]) == (1, "TerminalHandlerError: platform.project: never")
    assert await stage.effects() == [("project", 1), ("project", 3)]
    assert sorted(set(tried)) == [1, 2, 3]


async def test_after_the_last_attempt_it_is_a_dead_letter(stage: Stage, platform: Consumer) -> None:
    attempts: list[tuple[int, bool]] = []

    @platform.on(COMPLETED)
    async def mail(context: DeliveryContext) -> None:
        attempts.append((context.attempt, context.is_last_attempt))
        raise ConnectionError("away")

    async with stage.running(platform):
        (event_id,) = await stage.publish(1)
        await until(lambda: stage.all_are("failed"))
    row = await stage.row(event_id)
    assert attempts == [(1, False), (2, False), (3, False), (4, True)]
    assert (row["attempts"], row["last_error"]) == (4, "ConnectionError: platform.mail: away")
    assert await stage.keys() == []


async def test_a_payload_that_does_not_fit_is_a_dead_letter_and_its_neighbours_are_not(
    stage: Stage, platform: Consumer
) -> None:
    seen: list[int] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        seen.append(scan.number)

    async with stage.running(platform):
        good = [await stage.insert(payload='{"number": 1}')]
        bad = await stage.insert(payload='{"number": "two"}')
        good += [await stage.insert(payload='{"number": 3}')]
        await until(lambda: stage.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    assert [await stage.status(each) for each in [*good, bad]] == ["delivered", "delivered", "failed"]
    assert sorted(seen) == [1, 3]
    assert (await stage.row(bad))["attempts"] == 1


async def test_a_handler_that_takes_too_long_is_ended_and_tried_again(stage: Stage, platform: Consumer) -> None:
    runs: list[int] = []

    @platform.on(COMPLETED, timeout=timedelta(seconds=0.1))
    async def mail(scan: Scan) -> None:
        runs.append(scan.number)
        if len(runs) == 1:
            await asyncio.get_running_loop().create_future()

    async with stage.running(platform):
        (event_id,) = await stage.publish(1)
        await until(lambda: stage.all_are("delivered"))
    row = await stage.row(event_id)
    assert (runs, row["attempts"]) == ([1, 1], 2)
    assert row["last_error"].startswith("HandlerTimeoutError: platform.mail")


async def test_a_type_that_nobody_handles_is_a_dead_letter_after_a_while(stage: Stage, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number == 1

    async with stage.running(platform, times=shortened(unhandled_after=0.3)):
        (handled,) = await stage.publish(1)
        (forgotten,) = await stage.publish(2, event_type=FORGOTTEN)
        await until(lambda: stage.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    assert await stage.status(handled) == "delivered"
    row = await stage.row(forgotten)
    assert (row["status"], row["attempts"]) == ("failed", 0)
    assert row["last_error"] == f"NoHandlerError: no handler of platform is subscribed to {FORGOTTEN} in generation 1"
    told = [each for note in stage.notes.of(Unhandled) for each in note.dead]
    assert [(each.event_id, each.event_type) for each in told] == [(forgotten, FORGOTTEN)]


async def test_a_replayed_dead_letter_is_delivered_and_both_lives_are_on_record(
    stage: Stage, platform: Consumer
) -> None:
    mended = asyncio.Event()
    attempts: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction, context: DeliveryContext) -> None:
        attempts.append(context.attempt)
        if not mended.is_set():
            raise TerminalHandlerError("not yet")
        await write_effect(tx, "project", scan.number)

    async with stage.running(platform), connect(stage.dsn, "test") as operator:
        (event_id,) = await stage.publish(1)
        await until(lambda: stage.all_are("failed"))
        mended.set()
        await replay(operator, [event_id], by="ada", reason="mended")
        await until(lambda: stage.all_are("delivered"))
        entries = await operator.tuples(
            "select action, actor, reason, event_ids from core.audit where action = 'replay'"
        )
    row = await stage.row(event_id)
    assert (attempts, row["attempts"]) == ([1, 1], 1)  # each life counts its own
    assert await stage.effects() == [("project", 1)]
    assert [(cycle["attempts"], cycle["last_error"], cycle["replayed_by"]) for cycle in row["failure_history"]] == [
        (1, "TerminalHandlerError: platform.project: not yet", "ada")
    ]
    assert entries == [("replay", "ada", "mended", [event_id])]


async def test_a_replay_runs_only_the_handlers_that_have_not_taken_effect(stage: Stage, platform: Consumer) -> None:
    mended = asyncio.Event()
    calls: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def call(scan: Scan) -> None:
        calls.append(scan.number)
        if not mended.is_set():
            raise TerminalHandlerError("not yet")

    async with stage.running(platform), connect(stage.dsn, "test") as operator:
        (event_id,) = await stage.publish(1)
        await until(lambda: stage.all_are("failed"))
        mended.set()
        await replay(operator, [event_id], by="ada")
        await until(lambda: stage.all_are("delivered"))
    assert (calls, await stage.effects()) == ([1, 1], [("project", 1)])


async def test_what_is_still_about_from_an_earlier_life_does_not_run_it_twice(stage: Stage, platform: Consumer) -> None:
    """With a broker: messages of the first life wait there, for a worker that knew none was quicker."""
    failing, runs = Consumer("platform"), list[int]()

    @failing.on(COMPLETED, name="platform.mail")
    async def fail(scan: Scan) -> None:
        raise TerminalHandlerError(f"not {scan.number}")

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs.append(scan.number)

    ids = await stage.publish(1, 2)
    await until(lambda: stage.broker is None or stage.value("select count(relayed_at) = 2 from core.outbox"))
    await stage.drain(failing)
    assert await stage.statuses() == {"failed": 2}
    async with connect(stage.dsn, "test") as operator:
        await replay(operator, ids, by="ada")
    async with stage.running(platform):
        await stage.publish(3)
        await until(lambda: stage.all_are("delivered"))
    assert sorted(runs) == [1, 2, 3]
    assert [(await stage.row(each))["attempts"] for each in ids] == [1, 1]
