"""What is told of handlers that wrote in a transaction: once, and what came of it, however often they had to be run."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest

from spectral.core.events import Consumer, TerminalHandlerError, Transaction
from spectral.core.events.outcome import Released
from spectral.core.events.probe import Finished, HandlerRan
from tests.integration.delivery.platform_worker import COMPLETED, NEVER_AGAIN, STARTED, Bench, Scan, until, write_effect
from tests.integration.delivery.trusted import ALL_ENDED, WARM, trusting


@pytest.fixture
async def deferred(bench: Bench) -> None:
    """That a number is there already is found when it is committed."""
    await bench.execute("alter table public.effects add constraint once unique (number) deferrable initially deferred")


def told(bench: Bench) -> Counter[tuple[str, str | None]]:
    """How often each event was told of, by its payload and the kind of its failure."""
    return Counter(
        (note.act.delivery.payload, None if note.failure is None else note.failure.kind)
        for note in bench.notes.of(HandlerRan)
        if f'"number": {WARM}' not in note.act.delivery.payload
    )


def payload(number: int) -> str:
    return f'{{"number": {number}}}'


@pytest.mark.usefixtures("deferred")
async def test_a_handler_whose_commit_is_refused_has_failed(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await write_effect(tx, "again", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert await bench.status(event_id) == "failed"
    assert told(bench) == {(payload(1), "UniqueViolation"): 1}
    assert len(bench.notes.of(Finished)) == 1


@pytest.mark.usefixtures("deferred")
async def test_whoever_shared_a_transaction_that_was_refused_is_told_of_once(bench: Bench, platform: Consumer) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await write_effect(tx, "again", scan.number)
        if scan.number == 3:
            raise TerminalHandlerError("no")

    await bench.publish(*range(5))
    await bench.drain(platform, lanes=1)
    assert max(runs.values()) > 1
    failures = {2: "UniqueViolation", 3: "TerminalHandlerError"}
    assert told(bench) == {(payload(number), failures.get(number)): 1 for number in range(5)}


@pytest.mark.usefixtures("round_trips")
async def test_whoever_ran_beside_one_that_fails_is_told_of_once(bench: Bench, platform: Consumer) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if scan.number == 3:
            raise TerminalHandlerError("no")

    async with trusting(bench, platform):
        await bench.publish(*range(6))
        await until(lambda: bench.value(ALL_ENDED))
    assert max(runs.values()) > 1
    failures = {3: "TerminalHandlerError"}
    assert told(bench) == {(payload(number), failures.get(number)): 1 for number in range(6)}


async def test_of_several_handlers_of_a_row_the_one_that_failed_is_told_as_failed(
    bench: Bench, platform: Consumer
) -> None:
    @platform.on(STARTED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED, retry=NEVER_AGAIN)
    async def refuse(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "refuse", scan.number)
        raise TerminalHandlerError("no")

    await bench.publish(1, event_type=STARTED)
    await bench.drain(platform)
    ran = {note.act.handler_name: note.failure and note.failure.kind for note in bench.notes.of(HandlerRan)}
    assert ran == {"platform.project": None, "platform.refuse": "TerminalHandlerError"}
    assert await bench.effects() == [("project", 1)]


async def test_a_failure_that_is_not_charged_because_the_row_was_given_back_is_told_once(
    bench: Bench, platform: Consumer
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def note(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "note", scan.number)

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def refuse(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "refuse", scan.number)
        raise TerminalHandlerError("no")

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def wait(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "wait", scan.number)

    (event_id,) = await bench.publish(1)
    async with await psycopg.AsyncConnection.connect(bench.dsn) as somebody:
        await somebody.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " values ('platform.wait', %s::text, %s)",
            [event_id, event_id],
        )
        async with bench.running(platform, lanes=1):
            await until(lambda: Released() in [note.outcome for note in bench.notes.of(Finished)])
            await somebody.rollback()
            await until(lambda: bench.value(ALL_ENDED))
    assert await bench.status(event_id) == "failed"
    ran = [(note.act.handler_name, note.failure and note.failure.kind) for note in bench.notes.of(HandlerRan)]
    assert ran == [("platform.note", None), ("platform.refuse", "TerminalHandlerError"), ("platform.wait", None)]
