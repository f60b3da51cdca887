"""What goes wrong on the way over a broker, and that it costs time and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from spectral.core.events import DatabaseSettings
from spectral.core.events.bootstrap import relay, worker
from spectral.core.events.broker import Received
from spectral.core.events.delivery.health import State
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.probe import BrokerLost, ReferencesVoid, Relayed, SubstrateLost
from spectral.core.events.relay.health import RelayState
from tests.integration.delivery.platform_worker import SETTINGS, until
from tests.integration.relay.relay_stage import RELAY, RelayStage, counting, nats_server, redis_server, stage

__all__ = ["nats_server", "redis_server", "stage"]


async def test_a_broker_that_hangs_is_left_for_the_database_and_found_again(stage: RelayStage) -> None:
    seen: list[int] = []
    stage.settings = replace(stage.settings, answer=timedelta(seconds=0.5))
    async with stage.delivering(counting(seen)) as listener:
        stage.server.pause()
        await stage.bench.publish(*range(5))
        await until(lambda: len(seen) == 5)
        await until(lambda: listener.health().has_fallen_back)
        stage.server.resume()
        await until(lambda: listener.health().takes_from == stage.settings.kind)
        await stage.bench.publish(*range(5, 10))
        await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(10))


async def test_what_a_worker_received_and_never_claimed_reaches_another(stage: RelayStage) -> None:
    seen: list[int] = []
    stage.settings = replace(stage.settings, redeliver_after=timedelta(seconds=1))
    await stage.switch(stage.settings.kind)
    async with stage.relaying() as running, stage.receiving() as stuck:
        await stage.bench.publish(*range(10))
        await until(lambda: running.health().sent == 10)
        held: list[Received] = []
        while len(held) < 10:
            held += await stuck.receive(10, timedelta(seconds=5))
        async with stage.working(counting(seen)):
            await until(lambda: stage.bench.all_are("delivered"))
        assert running.health().resent == 0
    assert sorted(seen) == list(range(10))


async def test_a_row_whose_worker_was_lost_is_sent_again(stage: RelayStage) -> None:
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    ids = await stage.bench.publish(*range(5))
    await stage.bench.execute("select core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null, 2)")
    async with stage.relaying(), stage.working(counting(seen)):
        await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(5))
    assert [(await stage.bench.row(each))["attempts"] for each in ids] == [2, 2, 1, 1, 1]


async def test_nothing_is_handled_while_the_brake_is_pulled_and_everything_after(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)):
        await stage.bench.execute("select core.brake_pull('platform', 'ada', 'test')")
        await stage.bench.publish(1, 2)
        await asyncio.sleep(0.5)  # what must not happen has no signal
        assert seen == []
        await stage.bench.execute("select core.brake_release('platform', 'ada')")
        await until(lambda: len(seen) == 2)
    assert sorted(seen) == [1, 2]


async def test_messages_of_rows_that_somebody_else_had_are_void(stage: RelayStage) -> None:
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    async with stage.relaying() as running:
        await stage.bench.publish(*range(10))
        await until(lambda: running.health().sent == 10)
        await stage.bench.drain(counting(seen))
        assert sorted(seen) == list(range(10))
        async with stage.working(counting(seen)):
            await until(lambda: sum(note.references for note in stage.bench.notes.of(ReferencesVoid)) == 10)
    assert sorted(seen) == list(range(10))


async def test_a_worker_that_knows_no_broker_delivers_all_the_same(stage: RelayStage) -> None:
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    async with stage.relaying(), stage.bench.running(counting(seen)) as listener:
        await stage.bench.publish(*range(10))
        await until(lambda: len(seen) == 10)
        assert listener.health().takes_from == "postgres"
    assert sorted(seen) == list(range(10))


async def test_a_worker_that_is_to_drain_asks_the_database(stage: RelayStage) -> None:
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    await stage.bench.publish(*range(10))
    draining = worker(
        counting(seen),
        settings=SETTINGS,
        database=DatabaseSettings(dsn=stage.bench.dsn),
        broker=stage.settings,
        probe=stage.bench.notes,
    )
    async with asyncio.timeout(20):
        await draining.run(until="drained")
    assert sorted(seen) == list(range(10))
    assert draining.health().state is State.STOPPED


async def test_classes_generations_and_rows_without_a_channel_have_lanes_of_their_own(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen), classes=("hot",), accept_generations=frozenset({2})):
        await stage.bench.publish(1, processing_class="hot")
        await stage.bench.publish(2, generation=2)
        await stage.bench.insert(channel="outbox_default", payload='{"number": 3}')
        await until(lambda: len(seen) == 3)
    assert sorted(seen) == [1, 2, 3]
    sent = {(note.generation, note.channel) for note in stage.notes.of(Relayed)}
    assert sent == {(1, "outbox_gen_1_hot"), (2, "outbox_gen_2"), (1, "outbox_default")}


async def test_a_relay_without_its_database_waits_and_goes_on(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)):
        async with stage.bench.down():
            await until(lambda: stage.notes.of(SubstrateLost))
        await stage.bench.publish(1)
        await until(lambda: seen)
        await until(lambda: stage.bench.all_are("delivered"))
    assert seen == [1]


async def test_a_broker_nobody_can_log_in_to_leaves_the_worker_on_the_database(stage: RelayStage) -> None:
    seen: list[int] = []
    user, _, rest = stage.settings.url.rpartition("@")
    scheme = user.partition("://")[0]
    stage.settings = replace(stage.settings, url=f"{scheme}://default:wr0ng@{rest}")
    await stage.switch(stage.settings.kind)
    async with stage.relaying() as running, stage.working(counting(seen)) as listener:
        await until(lambda: stage.bench.notes.of(BrokerLost))
        await until(lambda: running.health().state is RelayState.DEGRADED)
        await stage.bench.publish(1)
        await until(lambda: seen)
        await until(lambda: listener.health().has_fallen_back)
    told = [note.error for note in [*stage.bench.notes.of(BrokerLost), *stage.notes.of(BrokerLost)]]
    assert all("wr0ng" not in error for error in told)


async def test_a_relay_on_a_database_that_does_not_let_it_in_says_what_to_do(stage: RelayStage) -> None:
    wrong = relay(
        settings=RELAY,
        broker=stage.settings,
        database=DatabaseSettings(dsn=f"{stage.bench.dsn.split('?')[0]}_missing?{stage.bench.dsn.split('?')[1]}"),
        probe=stage.notes,
    )
    with pytest.raises(ConfigurationError, match="spectral migrate up"):
        async with asyncio.timeout(20):
            await wrong.run()
    assert wrong.health().state is RelayState.DEAD
