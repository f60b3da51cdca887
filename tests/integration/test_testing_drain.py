"""`drain`: a real worker, run by a test until nothing is due."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from pydantic import BaseModel

from spectral.core.events import (
    ConfigurationError,
    Consumer,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    TerminalHandlerError,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.outcome import DeadLetter, Handled, Retry
from spectral.core.events.probe import Finished, Started
from spectral.core.events.testing import Drained, drain

NO_DELAY = RetryPolicy(max_retries=2, base=timedelta(0))


class Scan(BaseModel):
    number: int


def scan(number: int, target: str | None = "platform") -> EventEnvelope:
    return EventEnvelope(event_type="worlds.scan.completed", source="worlds", target=target, payload={"number": number})


def publish(dsn: str, publishing: Publishing, *envelopes: EventEnvelope) -> None:
    with psycopg.connect(dsn) as connection, connection.transaction():
        publisher_for(connection, publishing).publish_many(envelopes)


async def test_runs_handlers_with_everything_they_ask_for(database: str, publishing: Publishing) -> None:
    platform = Consumer("platform")
    seen: list[tuple[int, str, int]] = []

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan, envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await tx.execute("select 1")
        seen.append((scan.number, envelope.event_type, delivery.attempt))

    event = scan(7)
    publish(database, publishing, event)
    drained = await drain(platform, dsn=database)
    drained.assert_all_handled(times=1)
    assert seen == [(7, "worlds.scan.completed", 1)]
    assert drained.outcomes == {event.event_id: [Handled()]}


async def test_tells_retries_and_dead_letters_apart(database: str, publishing: Publishing) -> None:
    platform = Consumer("platform", retry=NO_DELAY)

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan, delivery: DeliveryContext) -> None:
        if scan.number == 1:
            raise TerminalHandlerError("no use")
        if delivery.attempt == 1:
            raise ConnectionError("not yet")

    bad, slow = scan(1), scan(2)
    publish(database, publishing, bad, slow)
    drained = await drain(platform, dsn=database)
    assert [type(each) for each in drained.outcomes[bad.event_id]] == [DeadLetter]
    assert [type(each) for each in drained.outcomes[slow.event_id]] == [Retry, Handled]
    assert [each.delivery.event_id for each in drained.dead_letters] == [bad.event_id]
    assert [each.delivery.event_id for each in drained.retries] == [slow.event_id]
    with pytest.raises(AssertionError, match=rf"{bad.event_id}: TerminalHandlerError: platform\.project: no use"):
        drained.assert_all_handled()


async def test_leaves_retries_that_are_not_due_pending(
    database: str, publishing: Publishing, connection: psycopg.Connection[tuple[str]]
) -> None:
    platform = Consumer("platform", retry=RetryPolicy(base=timedelta(hours=1), cap=timedelta(hours=1)))

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan) -> None:
        raise ConnectionError(scan.number)

    publish(database, publishing, scan(1))
    drained = await drain(platform, dsn=database)
    assert len(drained.retries) == 1
    assert connection.execute("select status from core.outbox").fetchall() == [("pending",)]


async def test_gives_every_context_its_share_of_a_broadcast(database: str, publishing: Publishing) -> None:
    consumers = Consumer("platform"), Consumer("worlds")
    seen: list[str] = []

    async def note(delivery: DeliveryContext) -> None:
        seen.append(delivery.handler_name)

    for consumer in consumers:
        consumer.on("worlds.scan.completed")(note)
    publish(database, publishing, scan(1, target=None))
    drained = await drain(*consumers, dsn=database)
    drained.assert_all_handled(times=2)
    assert sorted(seen) == ["platform.note", "worlds.note"]


async def test_says_so_when_there_was_nothing_to_do(database: str) -> None:
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan) -> None:
        raise AssertionError(scan)

    drained = await drain(platform, dsn=database)
    drained.assert_all_handled(times=0)
    with pytest.raises(AssertionError, match="nothing was due: is the event committed"):
        drained.assert_all_handled()
    with pytest.raises(AssertionError, match="nothing was due"):
        drained.assert_all_handled(times=1)


async def test_counts_what_was_handled(database: str, publishing: Publishing) -> None:
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan) -> None:
        assert scan.number

    publish(database, publishing, scan(1), scan(2))
    drained = await drain(platform, dsn=database)
    drained.assert_all_handled()
    with pytest.raises(AssertionError, match=r"2 events were handled, not 3: worlds\.scan\.completed"):
        drained.assert_all_handled(times=3)


async def test_drains_the_generation_it_is_told(database: str, publishing: Publishing) -> None:
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan) -> None:
        assert scan.number

    publish(database, publishing, scan(1))
    (await drain(platform, dsn=database, generation=2)).assert_all_handled(times=0)
    (await drain(platform, dsn=database, settings=WorkerSettings(generation=1, lanes=1))).assert_all_handled(times=1)


async def test_a_handler_may_publish_as_its_own_context(database: str) -> None:
    billing = Consumer("billing")
    seen: list[str] = []

    @billing.on("billing.invoice.wanted")
    async def invoice(tx: Transaction) -> None:
        await tx.publish(EventEnvelope(event_type="billing.invoice.sent", source="billing", target="billing"))

    @billing.on("billing.invoice.sent")
    async def note(envelope: EventEnvelope) -> None:
        seen.append(envelope.event_type)

    with psycopg.connect(database) as connection:
        connection.execute(
            "insert into core.outbox (event_type, source, target, generation, channel)"
            " values ('billing.invoice.wanted', 'billing', 'billing', 1, 'outbox_gen_1')"
        )
    (await drain(billing, dsn=database)).assert_all_handled(times=2)
    assert seen == ["billing.invoice.sent"]


async def test_replaces_what_an_earlier_test_subscribed(database: str, publishing: Publishing) -> None:
    for name in ("platform.first", "platform.second"):
        platform = Consumer("platform")

        @platform.on("worlds.scan.completed", name=name)
        async def project(scan: Scan) -> None:
            assert scan.number

        publish(database, publishing, scan(1))
        drained = await drain(platform, dsn=database)
        assert [each.handlers for each in drained.finished] == [(name,)]


async def test_keeps_every_note(database: str) -> None:
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(scan: Scan) -> None:
        assert scan.number

    drained = await drain(platform, dsn=database)
    assert [type(note) for note in drained.notes if isinstance(note, Started | Finished)] == [Started]
    assert drained.finished == Drained(()).finished == []


async def test_refuses_consumers_without_handlers(database: str) -> None:
    with pytest.raises(ConfigurationError, match="there are no handlers"):
        await drain(Consumer("platform"), dsn=database)
