"""Relays and workers beside a broker, killed at the worst moment, and several relays at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.faults.broker_stage import RELAY, BrokerStage, broker, go_on, sends_on, sent_all, stage, total
from tests.faults.crew import eventually
from tests.faults.handlers import PLAIN
from tests.faults.plan import Trap
from tests.faults.publishers import Publisher, publishing_on

__all__ = ["broker", "stage"]

ROWS = 30
LEASE = {"lease": 1.2}
TAKEN = Trap(at="relay.taken", action="kill")
SENT = Trap(at="relay.sent", action="kill")
PATIENT = replace(RELAY, grace=timedelta(seconds=30))
"""What nobody has lost is not to be taken for lost because the machine is slow."""


def test_what_a_relay_took_and_never_sent_is_sent_by_the_next(stage: BrokerStage) -> None:
    stage.switch()
    stage.publish(ROWS)
    victim = stage.relay(trap=TAKEN)
    assert victim.wait_for_end() == -signal.SIGKILL
    assert stage.one("select count(relayed_at) from core.outbox") == ROWS
    assert stage.waiting() == 0
    relay = stage.relay()
    eventually(lambda: total(relay, "Relayed", "resent") >= ROWS, "all are sent again")
    stage.work()
    stage.assert_clean(delivered=ROWS)
    stage.nothing_waits()


def test_what_a_relay_sent_and_never_counted_is_not_sent_again(stage: BrokerStage) -> None:
    stage.switch()
    stage.publish(ROWS)
    victim = stage.relay(trap=SENT)
    assert victim.wait_for_end() == -signal.SIGKILL
    assert stage.waiting() == ROWS
    relay = stage.relay(PATIENT)
    relay.wait_for("BrokerBack")
    stage.publish(ROWS)
    sent_all(relay, ROWS)
    stage.work()
    stage.assert_clean(delivered=2 * ROWS)
    assert total(relay, "Relayed", "resent") == 0
    stage.nothing_waits()


def test_relays_that_are_killed_again_and_again_lose_nothing(stage: BrokerStage) -> None:
    stage.switch()
    worker = stage.work()
    worker.wait_for("BrokerBack")
    with publishing_on(Publisher(stage, 1, pause=0.005), Publisher(stage, 2, pause=0.005)):
        for number in range(4):
            relay = stage.relay(trap=replace(TAKEN if number % 2 else SENT, nth=5))
            assert relay.wait_for_end() == -signal.SIGKILL
        sends_on(stage.relay())
    stage.settle().assert_clean(at_least=40)
    stage.nothing_waits()


def test_two_relays_share_the_work_and_send_nothing_twice(stage: BrokerStage) -> None:
    relays = [stage.relay(replace(PATIENT, batch=5)) for _ in range(2)]
    workers = [stage.work() for _ in range(2)]
    stage.switched(*relays, *workers)
    with publishing_on(Publisher(stage, 1, pause=0.005), Publisher(stage, 2, pause=0.005)):
        for relay in relays:
            sends_on(relay, by=40)
    stage.settle().assert_clean(at_least=80)
    stage.nothing_waits()
    assert [total(relay, "Relayed", "resent") for relay in relays] == [0, 0]
    sent = sum(total(relay, "Relayed", "rows") for relay in relays)
    attempts = stage.one("select sum(attempts) from core.outbox where target is not null")
    assert sent <= attempts  # once for each life at most: what was late for the switch was not sent at all
    relays[0].kill()
    with publishing_on(Publisher(stage, 3)):
        go_on(*workers)
    stage.settle().assert_clean(at_least=120)


def publish_until(stage: BrokerStage, comes: Callable[[float], object]) -> int:
    """Until somebody comes to a trap; answers how many rows it took.

    A claim that was under way at the switch may take the first ones without any message.
    """
    for number in range(1, 10):
        stage.publish(ROWS)
        with suppress(AssertionError):
            comes(5.0)
            return number * ROWS
    raise AssertionError("nobody came to the trap")


@pytest.mark.parametrize("at", ["acknowledge.before", "acknowledge.after"])
def test_a_worker_that_is_killed_after_it_claimed_by_reference_is_replaced(stage: BrokerStage, at: str) -> None:
    relay, victim = stage.relay(), stage.work("victim", trap=Trap(at=at, action="kill"))
    stage.switched(relay, victim)
    published = publish_until(stage, victim.wait_for_end)
    assert victim.wait_for_end() == -signal.SIGKILL
    assert stage.waiting() or at != "acknowledge.before"
    stage.work("rescuer").wait_for("BrokerBack")
    stage.publish(ROWS, PLAIN)
    verdict = stage.assert_clean(delivered=published + ROWS)
    assert verdict.external_duplicates == 0
    stage.nothing_waits()


def test_a_worker_that_stands_still_before_it_acknowledges_harms_nobody(stage: BrokerStage) -> None:
    trap = Trap(at="acknowledge.before", action="stop")
    relay, victim = stage.relay(), stage.work("victim", trap=trap, times=LEASE)
    stage.switched(relay, victim)
    published = publish_until(stage, lambda seconds: victim.wait_for("Trapped", seconds=seconds))
    rescuer = stage.work("rescuer", times=LEASE)
    rescuer.wait_for("BrokerBack")
    stage.assert_clean(delivered=published)
    victim.signal(signal.SIGCONT)
    victim.wait_for("WentOn")
    stage.publish(ROWS)
    stage.assert_clean(delivered=published + ROWS)
    stage.nothing_waits()
    assert [each.stop() for each in (relay, victim, rescuer)] == [0, 0, 0]
