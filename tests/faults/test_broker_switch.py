"""From Postgres to a broker, to the other one and back, while everybody publishes: nothing lost, nothing twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.broker_stage import BrokerStage, finished, nats, playing, redis, sends_on, total
from tests.faults.crew import Crew, eventually
from tests.faults.publishers import Publisher, publishing_on
from tests.faults.stage import Stage

SPECTRAL = str(Path(sys.executable).with_name("spectral"))
UNSENT = "select count(*) from core.outbox where status in ('pending', 'in_flight')"


@contextmanager
def everybody(dsn: str, crew: Crew) -> Iterator[tuple[BrokerStage, BrokerStage]]:
    """One play on both brokers, with one ledger."""
    with playing(dsn, crew, nats()) as on_nats, playing(dsn, crew, redis()) as on_redis:
        on_redis.ledger = on_nats.ledger
        yield on_nats, on_redis


def goes_on(stage: Stage, by: int = 40) -> None:
    """Wait until so many more are delivered, by whomever."""
    query = "select count(*) from core.outbox where status = 'delivered'"
    wanted = stage.one(query) + by
    eventually(lambda: stage.one(query) >= wanted, f"{by} more are delivered")


def test_switching_from_one_to_the_other_and_back_under_load_loses_nothing(database: str, crew: Crew) -> None:
    with everybody(database, crew) as (on_nats, on_redis):
        plain = on_nats.start("plain")
        relays = [on_nats.relay(), on_redis.relay()]
        workers = [on_nats.work("on-nats"), on_redis.work("on-redis")]
        for worker in (plain, *workers):
            worker.wait_for("EarOpened")
        with publishing_on(Publisher(on_nats, 1), Publisher(on_nats, 2)):
            goes_on(on_nats)
            on_nats.switch("nats")
            workers[0].wait_for("BrokerBack")
            sends_on(relays[0])
            goes_on(on_nats)
            on_nats.switch("redis")
            workers[0].wait_for("RelaySwitched", mode="postgres")
            workers[1].wait_for("BrokerBack")
            sends_on(relays[1])
            goes_on(on_nats)
            on_nats.switch("postgres")
            for each in (relays[1], workers[1]):
                each.wait_for("RelaySwitched", mode="postgres")
            sent = [total(relay, "Relayed", "rows") for relay in relays]
            goes_on(on_nats)
        on_nats.settle().assert_clean(at_least=160)
        assert on_nats.one(UNSENT) == 0
        assert [total(relay, "Relayed", "rows") for relay in relays] == sent
        assert finished(*workers) > 0
        assert [each.stop() for each in (plain, *relays, *workers)] == [0] * 5


def test_switching_there_and_back_again_and_again_ends_where_it_began(database: str, crew: Crew) -> None:
    with everybody(database, crew) as (on_nats, on_redis):
        everyone = [on_nats.relay(), on_redis.relay(), on_nats.work(), on_redis.work()]
        for worker in everyone[2:]:
            worker.wait_for("EarOpened")
        with publishing_on(Publisher(on_nats, 1), Publisher(on_nats, 2)):
            for mode in ("nats", "redis", "postgres") * 4:
                on_nats.switch(mode)  # and nobody waits for anybody
                goes_on(on_nats, by=10)
        on_nats.settle().assert_clean(at_least=120)
        on_nats.switch("nats")
        on_nats.nothing_waits()
        on_nats.switch("redis")
        on_redis.nothing_waits()
        assert on_nats.one(UNSENT) == 0


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_workers_that_are_replaced_one_by_one_are_switched_by_the_command(database: str, crew: Crew, kind: str) -> None:
    with playing(database, crew, {"nats": nats, "redis": redis}[kind]()) as stage:
        before = [stage.start("before") for _ in range(2)]
        before[0].wait_for("EarOpened")
        with publishing_on(Publisher(stage, 1)):
            after = []
            for worker in before:
                after.append(stage.work("after"))
                after[-1].wait_for("EarOpened")
                assert worker.stop() == 0
            relay = stage.relay()
            command(stage.dsn, kind)
            for worker in after:
                worker.wait_for("BrokerBack")
            sends_on(relay)
            stage.switch("postgres")
            for each in (relay, *after):
                each.wait_for("RelaySwitched", mode="postgres")
            goes_on(stage)
            assert relay.stop() == 0
        stage.settle().assert_clean(at_least=40)
        assert stage.one(UNSENT) == 0
        assert stage.rows(
            "select actor, reason, detail ->> 'to' from core.audit where action = 'relay_switch' order by id"
        ) == [
            ("ada", "a test", kind),
            ("ada", "a test", "postgres"),
        ]


def command(dsn: str, mode: str) -> None:
    """As the how-to says."""
    given = ["relay", "switch", mode, "--reason", "a test", "--by", "ada", "--yes"]
    environ = {"PATH": "/usr/bin:/bin", "SPECTRAL_DATABASE_URL": dsn}
    done = subprocess.run([SPECTRAL, *given], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
