"""Workers slower than publishers: what is too much waits where it is, in the outbox, and in nobody's memory."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.broker_stage import RELAY, BrokerStage, broker, stage, total
from tests.faults.crew import eventually
from tests.faults.handlers import PLAIN

__all__ = ["broker", "stage"]

SLOW = 2_000
MOST = 50
HANDS = 5


def test_slow_handlers_hold_up_the_relay_and_nothing_else(stage: BrokerStage) -> None:
    relay = stage.relay(replace(RELAY, batch=20, most_waiting=MOST))
    worker = stage.work(concurrency=HANDS, batch=HANDS)
    stage.switched(relay, worker)
    stage.publish(SLOW, PLAIN, payload={"do": "sleep", "seconds": 60.0})
    worker.wait_for("Claimed")
    quick = stage.publish(20)
    worker.wait_for("Finished", count=20)
    done = stage.rows("select id from core.outbox where status = 'delivered'")
    assert {row for (row,) in done} == {each.event_id for each in quick}
    assert stage.waiting() <= MOST
    assert stage.statuses()["in_flight"] <= 4 * HANDS
    assert total(relay, "Relayed", "rows") < SLOW / 2
    held = stage.state(worker)
    assert held["running"] == HANDS
    assert held["held"] <= 4 * HANDS


def test_what_was_held_up_is_delivered_when_there_is_room(stage: BrokerStage) -> None:
    relay = stage.relay(replace(RELAY, batch=20, most_waiting=MOST))
    slow = stage.work(concurrency=2, batch=2)
    stage.switched(relay, slow)
    stage.publish(300, PLAIN, payload={"do": "sleep", "seconds": 0.2, "times": 1})
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, stage.waiting())
        return most >= MOST - 20

    eventually(look, "the lane is full")
    stage.work(concurrency=50)
    stage.assert_clean(delivered=300)
    assert most <= MOST
    stage.nothing_waits()
