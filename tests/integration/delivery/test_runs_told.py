"""What is told of handlers that wrote in a transaction: once, and what came of it, however often they had to be run."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from uuid import UUID

import psycopg
import pytest

from spectral.core.events import Consumer, TerminalHandlerError, Transaction
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
from spectral.core.events.outcome import Released
from spectral.core.events.probe import Finished, HandlerRan
from tests.integration.delivery.platform_worker import (
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
from tests.integration.delivery.trusted import ALL_ENDED, WARM, project_scans, trusting


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


def slow(monkeypatch: pytest.MonkeyPatch, where: type, name: str, by: float) -> None:
    """It takes so many seconds more."""
    call = getattr(where, name)

    async def slowed(self: object, *given: object) -> object:
        await asyncio.sleep(by)
        return await call(self, *given)

    monkeypatch.setattr(where, name, slowed)


def compare_times(bench: Bench, *, numbers: int, at_least: float, less_than: float) -> None:
    """What is told of rows that were settled is for how long their handlers ran, and so is what is told of those."""
    ran: dict[UUID, float] = defaultdict(float)
    for note in bench.notes.of(HandlerRan):
        ran[note.act.delivery.event_id] += note.seconds
    settled = {note.delivery.event_id: note.seconds for note in bench.notes.of(Finished)}
    assert len(settled) == numbers
    for event_id, seconds in settled.items():
        assert at_least <= seconds < less_than
        assert seconds == pytest.approx(ran[event_id], abs=0.5)


async def test_a_row_s_duration_is_its_handlers_and_not_that_of_gates_and_settlements(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await asyncio.sleep(0.1)

    @platform.on(COMPLETED)
    async def index(_: Scan, __: Transaction) -> None:
        await asyncio.sleep(0.1)

    @platform.on(STARTED)
    async def mail(_: Scan) -> None:
        await asyncio.sleep(0.2)

    for where, name in ((PostgresLane, "begin"), (PostgresLane, "commit"), (PostgresSettlements, "settle")):
        slow(monkeypatch, where, name, 2.0)
    await bench.publish(0)
    await bench.publish(1, event_type=STARTED)
    await bench.drain(platform, lanes=1)
    compare_times(bench, numbers=2, at_least=0.19, less_than=2.0)


@pytest.mark.usefixtures("round_trips")
async def test_so_it_is_of_rows_that_ran_beside_each_other(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_scans(platform)
    async with trusting(bench, platform):
        for name in ("begin_together", "commit_together"):
            slow(monkeypatch, PostgresLane, name, 2.0)
        bench.notes.forget()
        await bench.publish(*range(5))
        await until(lambda: bench.value(ALL_ENDED))
        await until(lambda: len(bench.notes.of(Finished)) == 5)
    compare_times(bench, numbers=5, at_least=0.0, less_than=2.0)


@pytest.mark.parametrize("event_type", [COMPLETED, STARTED])
async def test_a_run_that_the_end_of_the_worker_cuts_off_is_told_with_its_duration(
    bench: Bench, platform: Consumer, event_type: str
) -> None:
    began = asyncio.Event()

    async def waits() -> None:
        began.set()
        await asyncio.Event().wait()

    @platform.on(COMPLETED)
    async def project(_: Scan, __: Transaction) -> None:
        await waits()

    @platform.on(STARTED)
    async def mail(_: Scan) -> None:
        await waits()

    await bench.publish(0, event_type=event_type)
    async with bench.running(platform, lanes=1, times=shortened(stop=0.3)):
        await soon(began.wait())
    (note,) = bench.notes.of(Finished)
    assert isinstance(note.outcome, Released)
    assert note.seconds >= 0.25


async def test_what_is_not_run_again_with_a_transaction_is_part_of_the_row_s_duration(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def mail(_: Scan) -> None:
        runs["mail"] += 1
        await asyncio.sleep(0.2)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += 1
        await write_effect(tx, "project", scan.number)
        if runs["project"] == 1:
            raise psycopg.errors.SerializationFailure

    await bench.publish(0)
    await bench.drain(platform, lanes=1)
    assert runs == {"mail": 1, "project": 2}
    (note,) = bench.notes.of(Finished)
    assert note.seconds >= 0.19
