"""An event that kills its workers is reported to Sentry by the worker that outlives them."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

from sentry_sdk.envelope import Envelope

from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope, WorkerSettings
from spectral.core.events.bootstrap import worker
from spectral.core.events.infrastructure.observability.standard import standard_watch
from spectral.core.events.settings import Identity, WorkerTimes
from tests.faults.crew import PATIENCE
from tests.faults.handlers import TRANSACTIONAL
from tests.faults.plan import SHORT_TIMES
from tests.faults.stage import Stage
from tests.unit.sentry_stage import Kept, sentry_everywhere


class Heard(Kept):
    """Says when the first report was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.one = threading.Event()

    def capture_envelope(self, envelope: Envelope) -> None:
        super().capture_envelope(envelope)
        self.one.set()


def bystanders() -> Consumer:
    """Another context: whoever claimed the pill here would take the tests along."""
    consumer = Consumer("worlds")

    @consumer.on("platform.scan.requested")
    async def never(_event: EventEnvelope) -> None:
        raise AssertionError("nobody publishes this")

    return consumer


async def test_a_poison_pill_is_reported_by_whoever_takes_its_last_claim_back(stage: Stage) -> None:
    (pill,) = await asyncio.to_thread(stage.publish, 1, TRANSACTIONAL, payload={"do": "exit"})
    short = {**SHORT_TIMES, "grace": 0.4, "reap": 0.1}
    times = WorkerTimes(**{name: timedelta(seconds=seconds) for name, seconds in short.items()})
    settings = WorkerSettings(generation=1, name="witness", times=times)
    watch, database = standard_watch(Identity(generation=1), "witness"), DatabaseSettings(dsn=stage.dsn)
    transport = Heard()
    with sentry_everywhere(transport):
        async with worker(bystanders(), settings=settings, database=database, probe=watch):
            for _ in range(2):
                prey = await asyncio.to_thread(stage.start, "prey", max_retries=1, times={"grace": 10.0})
                await asyncio.to_thread(prey.wait_for_end)
            assert await asyncio.to_thread(transport.one.wait, PATIENCE)
    await asyncio.to_thread(stage.assert_clean, delivered=0, dead_lettered=1)
    (report,) = transport.events
    ((error, attempts),) = stage.rows("select last_error, attempts from core.outbox where id = %s", pill.event_id)
    assert report["fingerprint"] == ["spectral", TRANSACTIONAL, "WorkerLostError"]
    assert (report["tags"]["source"], report["tags"]["target"]) == ("worlds", "platform")
    said = report["extra"]
    assert (report["tags"]["event_id"], said["worker"]) == (str(pill.event_id), "witness")
    assert (said["last_error"], said["attempts"]) == (error, attempts)
