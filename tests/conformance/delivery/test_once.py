"""What is committed reaches every handler it is for, and takes effect once; what is not committed never happened."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import psycopg

from spectral.core.events import Consumer, EventEnvelope, Transaction
from spectral.core.events.probe import FannedOut
from tests.conformance.delivery.stage import Stage
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, STARTED, Scan, soon, until, write_effect


async def test_what_a_transactional_handler_writes_is_written_once(stage: Stage, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with stage.running(platform):
        ids = await stage.publish(1, 2, 3)
        await until(lambda: stage.all_are("delivered"))
    assert await stage.effects() == [("project", number) for number in (1, 2, 3)]
    assert await stage.keys() == ["platform.project"] * 3
    rows = [await stage.row(each) for each in ids]
    assert [(row["attempts"], row["last_error"], row["claim_token"]) for row in rows] == [(1, None, None)] * 3


async def test_a_plain_handler_runs_once(stage: Stage, platform: Consumer) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1

    async with stage.running(platform):
        await stage.publish(*range(20))
        await until(lambda: stage.all_are("delivered"))
    assert runs == Counter(range(20))
    assert await stage.keys() == ["platform.mail"] * 20


async def publish_and_regret(stage: Stage, number: int) -> None:
    """Publish in a transaction, or in a part of one, that is rolled back."""
    async with stage.connection.transaction():
        await stage.publish(number)
        raise psycopg.Rollback


async def test_what_was_rolled_back_is_never_delivered(stage: Stage, platform: Consumer) -> None:
    seen: list[int] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        seen.append(scan.number)

    async with stage.running(platform):
        await publish_and_regret(stage, 1)
        async with stage.connection.transaction():
            await stage.publish(2)
            await publish_and_regret(stage, 3)
        await until(lambda: stage.all_are("delivered"))
    assert seen == [2]


async def test_every_handler_of_a_context_takes_effect_once(stage: Stage, platform: Consumer) -> None:
    mailed: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(COMPLETED)
    async def index(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        mailed[scan.number] += 1

    async with stage.running(platform):
        await stage.publish(1, 2)
        await until(lambda: stage.all_are("delivered"))
    assert await stage.effects() == [("index", 1), ("index", 2), ("project", 1), ("project", 2)]
    assert mailed == {1: 1, 2: 1}


async def test_of_two_events_with_one_key_one_takes_effect(stage: Stage, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with stage.running(platform):
        await stage.publish(7, idempotency_key="scan 7")
        await stage.publish(7, idempotency_key="scan 7")
        await until(lambda: stage.all_are("delivered"))
    assert await stage.effects() == [("project", 7)]
    assert await stage.statuses() == {"delivered": 2}


async def test_a_handler_gets_the_envelope_and_the_trace_that_were_published(stage: Stage, platform: Consumer) -> None:
    seen: dict[UUID, EventEnvelope] = {}
    traces = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]

    @platform.on(COMPLETED)
    async def mail(envelope: EventEnvelope) -> None:
        seen[envelope.event_id] = envelope

    async with stage.running(platform):
        ids = [(await stage.publish(5, trace_context=trace, event_version=3))[0] for trace in traces]
        await until(lambda: stage.all_are("delivered"))
    assert [seen[each].trace_context for each in ids] == traces
    assert [(each.payload, each.event_version, each.source, each.target) for each in seen.values()] == [
        ({"number": 5}, 3, "worlds", "platform")
    ] * 2


async def test_a_broadcast_reaches_every_subscribed_context_under_its_own_id(stage: Stage) -> None:
    seen: list[tuple[str, UUID]] = []

    def noting(context: str) -> Consumer:
        consumer = Consumer(context, retry=AT_ONCE)

        @consumer.on(COMPLETED)
        async def note(envelope: EventEnvelope) -> None:
            seen.append((context, envelope.event_id))

        return consumer

    async with stage.running(noting("platform")), stage.running(noting("worlds")):
        (parent,) = await stage.publish(1, target=None)
        await until(lambda: stage.value("select count(*) = 3 from core.outbox where status = 'delivered'"))
    assert sorted(seen) == [("platform", parent), ("worlds", parent)]
    told = [*stage.notes.of(FannedOut), *stage.relayed.of(FannedOut)]
    assert [(note.event.event_id, note.contexts) for note in told] == [(parent, ("platform", "worlds"))]


async def test_what_a_handler_publishes_is_delivered_with_its_effect_or_not_at_all(
    stage: Stage, platform: Consumer
) -> None:
    tries: list[int] = []

    @platform.on(COMPLETED)
    async def go_on(scan: Scan, tx: Transaction) -> None:
        await tx.publish(
            EventEnvelope(event_type=STARTED, source="platform", target="platform", payload={"number": scan.number + 1})
        )
        tries.append(scan.number)
        if len(tries) == 1:
            raise ConnectionError("not yet")

    @platform.on(STARTED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with stage.running(platform):
        await stage.publish(1)
        await until(lambda: stage.value("select count(*) = 2 from core.outbox where status = 'delivered'"))
    assert (tries, await stage.effects()) == ([1, 1], [("project", 2)])
    assert await stage.all_are("delivered")


async def test_a_backlog_of_hundreds_is_worked_off(stage: Stage, platform: Consumer) -> None:
    runs: Counter[int] = Counter()
    gate = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1
        await gate.wait()

    async with stage.running(platform, concurrency=10):
        for start in range(0, 300, 100):
            await stage.publish(*range(start, start + 100))
        await until(lambda: len(runs) == 10)
        gate.set()
        await until(lambda: stage.all_are("delivered"))
    assert runs == Counter(range(300))
    assert await stage.value("select max(attempts) from core.outbox") == 1


async def test_rows_of_several_months_are_delivered_together(stage: Stage, platform: Consumer) -> None:
    done = asyncio.Event()
    seen: set[int] = set()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        seen.add(scan.number)
        if len(seen) == 3:
            done.set()

    async with stage.running(platform):
        for number in (0, 1, 2):
            await stage.execute(
                "insert into core.outbox (event_type, source, target, generation, channel, payload, created_at)"
                " values (%s, 'worlds', 'platform', 1, 'outbox_gen_1', jsonb_build_object('number', %s::integer),"
                " clock_timestamp() - make_interval(months => %s))",
                COMPLETED,
                number,
                number,
            )
        await soon(done.wait())
        await until(lambda: stage.all_are("delivered"))
    assert await stage.effects() == [("project", 0), ("project", 1), ("project", 2)]
