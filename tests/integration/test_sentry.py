"""Sentry and delivery: whatever becomes of reports, events are delivered, and dead letters are reported once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from spectral.core.events import (
    Consumer,
    DatabaseSettings,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.bootstrap import publisher_for, worker
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.infrastructure.observability.sentry import SentryTool
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.settings import Identity, WorkerTimes
from spectral.core.events.testing import EFFECTS_SCHEMA, Ledger, check, record_effect, settle_down
from tests.unit.sentry_stage import sentry_everywhere

CANARY = "canary8472"
COUNT = 40


class Stubborn(Transport):
    """Does what it is told with every report, and keeps it."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act
        self.reports: list[dict[str, Any]] = []
        self.text = ""

    def capture_envelope(self, envelope: Envelope) -> None:
        self.text += envelope.serialize().decode()
        self.reports += [dict(event) for item in envelope.items if (event := item.get_event()) is not None]
        self._act()


def failing_every_other() -> Consumer:
    """Half of the events are handled, half fail for good, with a message and variables that tell all."""
    consumer = Consumer("platform", retry=RetryPolicy(max_retries=0))

    @consumer.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        on_the_stack = envelope.payload
        await record_effect(tx, delivery, envelope.idempotency_key)
        if on_the_stack["number"] % 2:
            raise RuntimeError(f"cannot handle {on_the_stack}")

    return consumer


def publish_all(connection: psycopg.Connection[Any], publishing: Publishing) -> Ledger:
    connection.execute(EFFECTS_SCHEMA)
    ledger = Ledger()
    for number in range(COUNT):
        envelope = EventEnvelope(
            event_type="worlds.scan.completed",
            source="worlds",
            target="platform",
            payload={"number": number, "name": CANARY},
        )
        with ledger.attempt_of(envelope, generation=1), connection.transaction():
            publisher_for(connection, publishing).publish(envelope)
    return ledger


async def drain_with(dsn: str, transport: Transport) -> Watch:
    """Deliver everything while reports go this way."""
    with sentry_everywhere(transport, attach_stacktrace=True):
        return await drain(dsn)


async def drain(dsn: str) -> Watch:
    """Deliver everything."""
    watch = Watch({"sentry": SentryTool(Identity(generation=1), "worker-1")})
    settings = WorkerSettings(generation=1, replace_subscriptions=True)
    listener = worker(failing_every_other(), settings=settings, database=DatabaseSettings(dsn=dsn), probe=watch)
    await listener.run(until="drained")
    return watch


async def assert_all_settled(dsn: str, ledger: Ledger) -> None:
    assert await settle_down(dsn, timedelta(minutes=1))
    verdict = await check(dsn, ledger)
    verdict.assert_clean(at_least=COUNT)
    assert verdict.as_dict()["dead_lettered"] == COUNT // 2


@pytest.fixture
def ledger(connection: psycopg.Connection[Any], publishing: Publishing) -> Ledger:
    """Events are published."""
    return publish_all(connection, publishing)


async def test_dead_letters_of_a_real_worker_are_reported_without_what_is_in_them(
    database: str, connection: psycopg.Connection[Any], ledger: Ledger
) -> None:
    transport = Stubborn(lambda: None)
    watch = await drain_with(database, transport)
    watch.flush(10)
    (report,) = transport.reports  # and the others of the same kind are held back
    stored = connection.execute(
        "select id::text, last_error, attempts from core.outbox where id::text = %s", [report["tags"]["event_id"]]
    ).fetchone()
    said = {**report["tags"], **report["extra"]}
    assert stored == tuple(said[name] for name in ("event_id", "last_error", "attempts"))
    assert stored[1] == "RuntimeError: platform.project: cannot handle {'[payload]}"
    assert report["tags"]["handler_name"] == "platform.project"
    assert CANARY not in transport.text
    await assert_all_settled(database, ledger)


async def test_what_the_program_reports_after_them_shows_dead_letters(database: str, ledger: Ledger) -> None:
    transport = Stubborn(lambda: None)
    with sentry_everywhere(transport):
        watch = await drain(database)
        sentry_sdk.capture_message("the end")
        watch.flush(10)
        await assert_all_settled(database, ledger)
    (own,) = [report for report in transport.reports if report.get("message") == "the end"]
    lost = {crumb["data"]["event_id"] for crumb in own["breadcrumbs"]["values"] if crumb["category"] == "spectral"}
    assert len(lost) == COUNT // 2


async def test_a_row_that_nobody_handles_is_reported_by_a_real_worker(
    database: str, connection: psycopg.Connection[Any], publishing: Publishing
) -> None:
    reported = threading.Event()
    transport = Stubborn(reported.set)
    event = EventEnvelope(event_type="worlds.scan.forgotten", source="worlds", target="platform")
    with connection.transaction():
        publisher_for(connection, publishing).publish(event)
    settings = WorkerSettings(
        generation=1, replace_subscriptions=True, times=WorkerTimes(unhandled_after=timedelta(seconds=0.1))
    )
    watch = Watch({"sentry": SentryTool(Identity(generation=1), "worker-1")})
    with sentry_everywhere(transport):
        async with worker(
            failing_every_other(), settings=settings, database=DatabaseSettings(dsn=database), probe=watch
        ):
            assert await asyncio.to_thread(reported.wait, 30)
    (report,) = transport.reports
    assert report["fingerprint"] == ["spectral", "worlds.scan.forgotten", "NoHandlerError"]
    assert report["tags"]["event_id"] == str(event.event_id)
    assert (report["tags"]["source"], report["tags"]["target"]) == ("worlds", "platform")


async def test_reports_that_hang_hold_nothing_up(database: str, ledger: Ledger) -> None:
    released = threading.Event()
    transport = Stubborn(lambda: bool(released.wait(60)))
    try:
        watch = await drain_with(database, transport)
        assert not released.is_set()
        await assert_all_settled(database, ledger)
    finally:
        released.set()
    watch.flush(10)
    assert watch.troubles()["sentry"] == (0, 0)


async def test_reports_that_raise_are_counted_and_break_nothing(database: str, ledger: Ledger) -> None:
    def refuse() -> None:
        raise OSError("no route to Sentry")

    watch = await drain_with(database, Stubborn(refuse))
    watch.flush(10)
    assert watch.troubles()["sentry"] == (0, 1)
    await assert_all_settled(database, ledger)
