"""A real worker and the table it worked on: what the recorder counted is what the rows say."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any

import psycopg
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from spectral.core.events import (
    Consumer,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    TerminalHandlerError,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.bootstrap import publisher_for, worker
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.infrastructure.observability.health_samples import health_samples, trouble_samples
from spectral.core.events.infrastructure.observability.prometheus import exposition
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.metrics import ACK_DURATION, OPERATION_DURATION, PROCESS_DURATION
from spectral.core.events.probe import Unhandled
from spectral.core.events.settings import DatabaseSettings, PublishSettings, WorkerTimes
from spectral.core.events.testing.notes import RecordingProbe
from spectral_workers.health import Address, health_endpoint

COMPLETED, FAILED, NOBODYS = "worlds.scan.completed", "worlds.scan.failed", "worlds.scan.forgotten"
WELL, TWICE, NEVER = "well", "twice", "never"


class Scan(BaseModel):
    goes: str


def scan(goes: str, event_type: str = COMPLETED, target: str | None = "platform") -> EventEnvelope:
    return EventEnvelope(event_type=event_type, source="worlds", target=target, payload={"goes": goes})


def consumers() -> tuple[Consumer, Consumer]:
    """One context with a handler in its transaction and one without, another with one of them."""
    platform = Consumer("platform", retry=RetryPolicy(max_retries=3, base=timedelta(0)))
    worlds = Consumer("worlds")

    async def handle(scan: Scan, delivery: DeliveryContext) -> None:
        if scan.goes == NEVER:
            raise TerminalHandlerError("no use")
        if scan.goes == TWICE and delivery.attempt < 3:
            raise ConnectionError("not yet")

    @platform.on(COMPLETED)
    async def project(scan: Scan, delivery: DeliveryContext, tx: Transaction) -> None:
        await tx.execute("select 1")
        await handle(scan, delivery)

    @platform.on(FAILED)
    async def mail(scan: Scan, delivery: DeliveryContext) -> None:
        await handle(scan, delivery)

    @worlds.on(COMPLETED)
    async def note(scan: Scan) -> None:
        assert scan.goes

    return platform, worlds


async def test_the_recorder_agrees_with_the_table(
    database: str, publishing: Publishing, connection: psycopg.Connection[Any]
) -> None:
    recorder = Recorder()
    watch = Watch({}, {"recorder": recorder})
    watched = Publishing(PublishSettings(generation=1), publishing.current_trace, watch)
    events = [scan(goes, kind) for goes in (WELL, TWICE, NEVER) for kind in (COMPLETED, FAILED) for _ in range(5)]
    events += [scan(WELL, target=None) for _ in range(4)]
    with connection.transaction():
        publisher_for(connection, watched).publish_many(events)
    settings = WorkerSettings(generation=1, replace_subscriptions=True)
    listener = worker(*consumers(), settings=settings, database=DatabaseSettings(dsn=database), probe=watch)
    await listener.run(until="drained")

    def metrics() -> bytes:
        samples = [*recorder.samples(), *health_samples(listener.health()), *trouble_samples(watch.troubles())]
        return exposition(samples, recorder.distributions())

    with health_endpoint(Address("127.0.0.1", 0), listener.health, metrics) as served:
        scraped = _scrape(served)

    # The broadcasts themselves were never claimed: their copies were.
    rows = connection.execute(
        "select target, event_type, status, attempts from core.outbox where target is not null"
    ).fetchall()
    delivered = Counter(target for target, _, status, _ in rows if status == "delivered")
    failed = Counter((target, kind) for target, kind, status, _ in rows if status == "failed")
    assert (delivered.total(), failed.total()) == (28, 10), "the table is as this test meant it to be"
    attempts = sum(attempts for *_, attempts in rows)
    assert _by(scraped, "spectral_outcomes_total", "context", outcome="delivered") == delivered
    assert _by(scraped, "spectral_ack_duration_seconds_count", "context") == delivered
    assert _by(scraped, "spectral_dead_letters_total", "context", "event_type") == failed
    assert sum(_by(scraped, "spectral_retries_total", "event_type").values()) == attempts - len(rows)
    assert sum(_by(scraped, "messaging_client_consumed_messages_total").values()) == attempts
    assert sum(_by(scraped, "messaging_process_duration_seconds_count").values()) == attempts
    assert _by(scraped, "messaging_client_sent_messages_total", "messaging_destination_name") == Counter(
        event.event_type for event in events
    )
    assert _by(scraped, "spectral_fanned_out_total") == {(): 4}
    assert _by(scraped, "spectral_worker_state", "state")["stopped"] == 1
    assert _by(scraped, "spectral_probe_failed_total", "tool")["recorder"] == 0
    found = {each.metric: each for each in recorder.distributions()}
    assert {ACK_DURATION, OPERATION_DURATION, PROCESS_DURATION} == set(found)
    assert all(each.total > 0 for each in recorder.distributions())


async def test_what_nobody_handles_is_counted_as_a_dead_letter(
    database: str, publishing: Publishing, connection: psycopg.Connection[Any]
) -> None:
    platform = Consumer("platform")

    @platform.on(COMPLETED)
    async def project(scan: Scan) -> None:
        assert scan.goes

    with connection.transaction():
        publisher_for(connection, publishing).publish_many([scan(WELL, NOBODYS), scan(WELL, NOBODYS)])
    recorder, notes = Recorder(), RecordingProbe()
    times = WorkerTimes(unhandled_after=timedelta(seconds=0.1))
    settings = WorkerSettings(generation=1, replace_subscriptions=True, times=times)
    watch = Watch({}, {"recorder": recorder, "notes": notes})
    async with worker(platform, settings=settings, database=DatabaseSettings(dsn=database), probe=watch):
        await notes.wait_for(Unhandled)
    statuses = connection.execute("select status, count(*) from core.outbox group by 1").fetchall()
    counted = {(each.metric.name, *each.labels): each.value for each in recorder.samples() if each.value}
    assert statuses == [("failed", 2)]
    assert counted == {
        ("spectral.unhandled", "platform"): 2,
        ("spectral.dead_letters", "platform", NOBODYS): 2,
    }


Scraped = list[tuple[str, dict[str, str], float]]


def _scrape(served: Address) -> Scraped:
    connection = HTTPConnection(served.host, served.port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    families = text_string_to_metric_families(text)
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def _by(scraped: Scraped, name: str, *labels: str, **having: str) -> Counter[Any]:
    """Sums by these labels; by the only one's value if it is one."""
    sums: Counter[Any] = Counter()
    for found, said, value in scraped:
        if found == name and having.items() <= said.items():
            key = tuple(said[label] for label in labels)
            sums[key[0] if len(labels) == 1 else key] += int(value)
    return sums
