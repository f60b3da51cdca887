"""A broker goes away, hangs, or comes back with nothing: workers claim from the database meanwhile, and return."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from spectral.core.migrations import up
from tests.faults.broker_stage import (
    Broker,
    BrokerStage,
    broker,
    go_on,
    playing,
    sends_on,
    sent_all,
    stage,
    total,
)
from tests.faults.crew import Crew, eventually
from tests.faults.durable import durable_server, restart_at_once
from tests.faults.publishers import Publisher, publishing_on

__all__ = ["broker", "stage"]


def test_an_outage_in_the_middle_of_everything_costs_time_and_no_event(stage: BrokerStage) -> None:
    relay = stage.relay()
    workers = [stage.work(times={"degraded_after": 0.1}) for _ in range(2)]
    stage.switched(relay, *workers)
    with publishing_on(Publisher(stage, 1), Publisher(stage, 2)):
        sends_on(relay)
        stage.server.kill()
        for each in (relay, *workers):
            each.wait_for("BrokerLost")
        stage.until(workers[0], state="degraded", has_fallen_back=True, takes_from="postgres", is_ready=True)
        stage.until(relay, state="degraded", connected=False)
        go_on(*workers)
        stage.server.start()
        for each in (relay, *workers):
            each.wait_for("BrokerBack", count=2)
        sends_on(relay)
        stage.until(workers[0], takes_from=stage.broker.kind, has_fallen_back=False, is_ready=True)
    stage.settle().assert_clean(at_least=80)
    assert [each.stop() for each in (relay, *workers)] == [0, 0, 0]


def test_what_waited_at_a_broker_that_comes_back_empty_is_sent_again(stage: BrokerStage) -> None:
    relay = stage.relay()
    stage.switched(relay)
    stage.publish(200)
    sent_all(relay, 200)
    stage.server.kill()
    stage.server.start(empty=True)
    eventually(lambda: total(relay, "Relayed", "resent") >= 200, "everything is sent again")
    worker = stage.work()
    stage.assert_clean(delivered=200)
    stage.nothing_waits()
    assert worker.said("BrokerBack")
    assert not worker.said("BrokerLost")  # what it did, it did by reference


def test_what_was_taken_from_a_broker_that_comes_back_empty_is_handled_once(stage: BrokerStage) -> None:
    relay, worker = stage.relay(), stage.work(batch=2, concurrency=2)
    stage.switched(relay, worker)
    stage.publish(60, payload={"do": "sleep", "seconds": 0.02})
    worker.wait_for("Finished")
    stage.server.kill()
    stage.server.start(empty=True)
    stage.publish(20)
    stage.assert_clean(delivered=80)
    worker.wait_for("BrokerBack", count=2)
    stage.nothing_waits()


def test_a_broker_that_hangs_is_left_for_the_database_and_found_again(stage: BrokerStage) -> None:
    stage.broker.settings = replace(stage.broker.settings, answer=timedelta(seconds=0.8))
    relay, worker = stage.relay(), stage.work()
    stage.switched(relay, worker)
    stage.publish(20)
    worker.wait_for("Finished", count=20)
    stage.server.pause()
    stage.publish(20)
    worker.wait_for("Finished", count=40)
    stage.until(worker, has_fallen_back=True, takes_from="postgres", is_ready=True)
    for each in (relay, worker):
        each.wait_for("BrokerLost")
    stage.server.resume()
    for each in (relay, worker):
        each.wait_for("BrokerBack", count=2)
    sent = total(relay, "Relayed", "rows")
    stage.publish(20)
    sent_all(relay, sent + 20)
    stage.assert_clean(delivered=60)
    assert [relay.stop(), worker.stop()] == [0, 0]


def test_events_survive_an_immediate_restart_of_the_database_under_a_relay(crew: Crew, broker: Broker) -> None:
    with durable_server() as durable:
        up(durable.tcp_dsn)
        with playing(durable.tcp_dsn, crew, broker) as stage:
            relay = stage.relay()
            # An outage is nobody's failure, but plain handlers here keep their effects in the same server.
            workers = [stage.work(max_retries=100) for _ in range(2)]
            stage.switched(relay, *workers)
            with publishing_on(Publisher(stage, 1)):
                go_on(*workers)
                restart_at_once(durable)
                sends_on(relay)
                go_on(*workers)
            verdict = stage.settle()
            verdict.assert_clean(at_least=80)
            assert verdict.dead_lettered == 0
            stage.nothing_waits()
            assert [each.stop() for each in (relay, *workers)] == [0, 0, 0]
