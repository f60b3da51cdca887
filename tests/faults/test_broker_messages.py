"""Messages that come twice, too late, or to nobody: the row in the database decides."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit
from uuid import uuid4

import nats

from spectral.core.events.broker_settings import BrokerKind
from spectral.core.events.infrastructure.nats.shape import MAX_DELIVER
from tests.faults.broker_stage import LANE, BrokerStage, broker, sent_all, stage, total
from tests.faults.crew import eventually
from tests.faults.handlers import PLAIN
from tests.integration.relay.nats_server import PASSWORD, USER
from tests.integration.relay.redis_server import running_redis

__all__ = ["broker", "stage"]

ROWS = 30


def test_a_reference_that_is_sent_again_and_again_is_void(stage: BrokerStage) -> None:
    relay = stage.relay()
    stage.switched(relay)
    stage.publish(ROWS)
    stage.publish(ROWS, PLAIN)
    sent_all(relay, 2 * ROWS)
    copies = stage.references()
    stage.send([each._replace(sent=number) for number in (1, 2) for each in copies])
    worker = stage.work()
    verdict = stage.assert_clean(delivered=2 * ROWS)
    assert verdict.external_duplicates == 0
    stage.nothing_waits()
    stage.send([each._replace(sent=3) for each in copies])  # when all is over
    stage.nothing_waits()
    eventually(lambda: total(worker, "ReferencesVoid", "references") >= 2 * ROWS, "the last copies are void")
    assert stage.one("select count(*) from public.spectral_effects") == 2 * ROWS


def test_references_to_earlier_attempts_claim_nothing(stage: BrokerStage) -> None:
    worker = stage.work()
    stage.switched(worker)
    stage.publish(ROWS, PLAIN, payload={"do": "fail", "times": 1})
    first = stage.references()
    stage.send(first)
    worker.wait_for("Finished", outcome="Retry", count=ROWS)
    due = "select count(*) from core.outbox where status = 'pending' and next_attempt_at <= clock_timestamp()"
    eventually(lambda: stage.one(due) == ROWS, "all are due again")
    stage.send([each._replace(sent=number) for number in (1, 2) for each in first])
    stage.nothing_waits()
    eventually(lambda: total(worker, "ReferencesVoid", "references") >= ROWS, "the old ones are void")
    assert stage.one(due) == ROWS
    stage.relay()
    verdict = stage.assert_clean(delivered=ROWS)
    assert verdict.external_duplicates == ROWS  # by the second attempt, and by nothing else


def test_references_from_before_a_replay_claim_nothing_after_it(stage: BrokerStage) -> None:
    relay, worker = stage.relay(), stage.work(max_retries=0)
    stage.switched(relay, worker)
    stage.publish(ROWS, payload={"do": "fail", "times": 1})
    eventually(lambda: stage.statuses() == {"failed": ROWS}, "all are in the DLQ")
    assert [relay.stop(), worker.stop()] == [0, 0]
    old = [each._replace(attempts=attempts, sent=1) for attempts in (0, 1) for each in stage.references()]
    later = stage.work()
    later.wait_for("BrokerBack")
    stage.rows("select core.outbox_replay(id, 1, 'ada') from core.outbox where status = 'failed'")
    stage.send(old)
    eventually(lambda: total(later, "ReferencesVoid", "references") >= 2 * ROWS, "the old ones are void")
    assert stage.statuses() == {"pending": ROWS}
    stage.relay()
    verdict = stage.assert_clean(delivered=ROWS)
    assert verdict.replayed == ROWS
    stage.send(old)
    stage.nothing_waits()
    assert stage.settle().clean


def test_forged_references_claim_nothing(stage: BrokerStage) -> None:
    relay, worker = stage.relay(), stage.work()
    stage.switched(relay, worker)
    stage.publish(ROWS)
    true = stage.references()
    stage.send([each._replace(replays=7) for each in true])
    stage.send([each._replace(attempts=99) for each in true])
    stage.send([each._replace(row_id=uuid4()) for each in true])
    stage.assert_clean(delivered=ROWS)
    stage.nothing_waits()
    eventually(lambda: total(worker, "ReferencesVoid", "references") >= 3 * ROWS, "the forged ones are void")


def test_a_message_that_was_handed_out_too_often_is_not_the_end_of_its_row(stage: BrokerStage) -> None:
    relay = stage.relay()
    stage.switched(relay)
    stage.publish(10)
    sent_all(relay, 10)
    take_and_forget(stage, 10)
    stage.work()
    stage.assert_clean(delivered=10)
    stage.nothing_waits()


def take_and_forget(stage: BrokerStage, count: int) -> None:
    """Be a consumer that takes everything, for good."""
    if stage.broker.kind is BrokerKind.NATS:
        asyncio.run(_wear_out(stage, count))
    else:
        key = f"{stage.prefix}:{LANE.generation}:{LANE.context}:{LANE.processing_class}"
        running_redis().command("XREADGROUP", "GROUP", "workers", "thief", "COUNT", str(count), "STREAMS", key, ">")


async def _wear_out(stage: BrokerStage, count: int) -> None:
    """Refuse every message as often as it is handed out, which is not for ever."""
    port = urlsplit(stage.server.url).port
    connection = await nats.connect(
        f"nats://127.0.0.1:{port}", user=USER, password=PASSWORD, allow_reconnect=False, max_reconnect_attempts=1
    )
    try:
        lane = await connection.jetstream().pull_subscribe_bind(
            durable=f"{LANE.context}-{LANE.processing_class}", stream=f"{stage.prefix}_{LANE.generation}"
        )
        for _ in range(MAX_DELIVER * count):
            (message,) = await lane.fetch(1, timeout=5)
            await message.nak()
        await connection.flush()
    finally:
        await connection.close()


def test_a_broadcast_waits_for_the_first_worker_of_its_generation(stage: BrokerStage) -> None:
    relay = stage.relay()
    stage.switched(relay)
    stage.publish(5, target=None)
    stage.publish(1)
    sent_all(relay, 1)  # it has looked at what is due, the broadcasts too
    stage.work()
    stage.assert_clean(delivered=6)
    assert stage.one("select count(*) from public.spectral_effects") == 6
