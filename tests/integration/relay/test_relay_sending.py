"""What a relay does for workers without a broker, and with nothing to send, too much, or something in the way."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from spectral.core.events import DatabaseSettings, failpoints
from spectral.core.events.bootstrap import relay
from spectral.core.events.delivery.wakefulness import Wakefulness
from spectral.core.events.failpoints import RELAY_NAMES
from spectral.core.events.infrastructure.postgres import relay_store
from spectral.core.events.probe import BrokerBack, BrokerLost, EarLost, Relayed
from spectral.core.events.relay.health import RelayState
from spectral.core.events.testing import InjectedFaultError, injected
from tests.integration.delivery.platform_worker import shortened, until
from tests.integration.relay.redis_server import running_redis
from tests.integration.relay.relay_stage import RELAY, RelayStage, counting, nats_server, redis_server, stage

__all__ = ["nats_server", "redis_server", "stage"]

ON_REDIS = pytest.mark.parametrize("stage", ["redis"], indirect=True)


async def test_a_relay_that_dies_between_stamp_and_send_loses_nothing(stage: RelayStage) -> None:
    await stage.switch(stage.settings.kind)
    seen: list[int] = []
    dying = relay(
        settings=RELAY, broker=stage.settings, database=DatabaseSettings(dsn=stage.bench.dsn), probe=stage.notes
    )
    await stage.bench.publish(*range(5))
    with injected("relay.taken=raise"), pytest.raises(InjectedFaultError):
        await dying.run()
    assert await stage.bench.value("select count(relayed_at) from core.outbox") == 5
    async with stage.relaying() as running:
        await until(lambda: running.health().resent == 5)
        async with stage.working(counting(seen)):
            await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(5))


async def test_every_place_of_the_way_over_a_broker_is_passed(stage: RelayStage) -> None:
    passed: list[str] = []
    failpoints.arm(passed.append)
    try:
        async with stage.delivering(counting([])):
            await stage.bench.publish(1)
            await until(lambda: set(RELAY_NAMES) <= set(passed))
    finally:
        failpoints.arm(None)
    assert passed.index("relay.taken") < passed.index("relay.sent")
    assert passed.index("acknowledge.before") < passed.index("acknowledge.after")
    assert passed[passed.index("acknowledge.before") - 1] == "claim.after"  # which is after its commit


async def test_a_relay_with_nothing_to_send_notices_that_its_broker_is_gone_and_back(stage: RelayStage) -> None:
    await stage.switch(stage.settings.kind)
    async with stage.relaying() as running:
        await until(lambda: running.health().connected)
        stage.server.kill()
        await until(lambda: running.health().state is RelayState.DEGRADED, within=15)
        assert stage.notes.of(BrokerLost)
        stage.server.start()
        await until(lambda: running.health().state is RelayState.SENDING)


async def test_a_worker_without_a_broker_is_woken_for_what_was_sent(stage: RelayStage) -> None:
    """Publishers are silent, and its own poll is a minute away."""
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    async with stage.relaying(), stage.bench.running(counting(seen), times=shortened(poll=60)):
        await stage.bench.execute(
            "select core.bell_awake('somebody', '{outbox_gen_1}', '{platform}', '{null}', interval '10 s')"
        )
        await stage.bench.publish(1)
        await until(lambda: seen, within=5)
        await stage.bench.execute("delete from core.bell_leases")
    assert seen == [1]


async def test_a_worker_without_a_broker_is_woken_for_what_cannot_be_sent(
    stage: RelayStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lane is full, for nobody receives from it, while others keep the relay awake and so all publishers silent."""
    monkeypatch.setattr(Wakefulness, "is_awake", property(lambda _: True))
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    await stage.bench.publish(*range(5))
    async with stage.relaying(replace(RELAY, most_waiting=2)) as running:
        await until(lambda: running.health().sent == 2)
        async with stage.bench.running(counting(seen), times=shortened(poll=60)):
            await until(lambda: len(seen) == 5)
            await stage.bench.execute(
                "select core.bell_awake('somebody', '{outbox_gen_1}', '{platform}', '{null}', interval '10 s')"
            )
            await stage.bench.publish(5)
            await until(lambda: len(seen) == 6, within=5)
            await stage.bench.execute("delete from core.bell_leases")
        assert running.health().sent == 2


async def test_a_relay_listens_soon_where_something_came_from_that_it_did_not_know(stage: RelayStage) -> None:
    await stage.switch(stage.settings.kind)
    listens = (
        "select count(*) > 0 from pg_stat_activity where starts_with(application_name, 'spectral relay ear')"
        " and query = 'listen \"outbox_gen_7\"'"
    )
    async with stage.relaying() as running:
        await until(lambda: running.health().connected)
        await stage.bench.execute("insert into core.deployments (generation, status) values (7, 'allocated')")
        await stage.bench.publish(1, generation=7)
        await until(lambda: stage.bench.value(listens), within=4)  # it used to be up to 35 seconds
    assert [note.generation for note in stage.notes.of(Relayed)] == [7]
    assert stage.notes.of(EarLost) == []


async def test_lanes_have_their_turns_however_many_there_are(
    stage: RelayStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_store, "_PAGE", 2)
    await stage.switch(stage.settings.kind)
    async with stage.relaying(replace(RELAY, batch=2)) as running:
        for number in range(5):
            await stage.bench.publish(*range(3), processing_class=f"class_{number}")
        await until(lambda: running.health().sent == 15)
    sent = {note.channel for note in stage.notes.of(Relayed)}
    assert sent == {f"outbox_gen_1_class_{number}" for number in range(5)}


async def test_a_full_lane_does_not_keep_others_waiting(stage: RelayStage) -> None:
    """One lane nobody takes from, a relay that polls once in ten seconds: what comes in the other is sent at once."""
    await stage.switch(stage.settings.kind)
    await stage.bench.publish(*range(10), processing_class="nobody")
    async with stage.relaying(replace(RELAY, most_waiting=2, poll=timedelta(seconds=10))) as running:
        await until(lambda: running.health().sent == 2)
        for number in range(2):
            await stage.bench.publish(number)
            await until(lambda: running.health().sent == 3 + number, within=5)  # noqa: B023  awaited before the next


@ON_REDIS
async def test_what_is_in_the_way_at_the_broker_does_not_kill_the_relay(stage: RelayStage) -> None:
    await stage.switch(stage.settings.kind)
    prefix = await stage.bench.value("select prefix from core.relay_mode()")
    key, redis = f"{prefix}:1:platform:-", running_redis()
    async with stage.relaying() as running:
        await stage.bench.publish(1)
        await until(lambda: running.health().sent == 1)
        redis.command("DEL", key)
        redis.command("SET", key, "somebody else's")
        await stage.bench.publish(2)
        await until(lambda: running.health().state is RelayState.DEGRADED)
        redis.command("DEL", key)
        await until(lambda: running.health().state is RelayState.SENDING and redis.command("XLEN", key) == b":1")


@ON_REDIS
async def test_advice_is_given_once(stage: RelayStage) -> None:
    running_redis().command("CONFIG", "SET", "appendonly", "no")
    try:
        await stage.switch(stage.settings.kind)
        async with stage.relaying() as running:
            await until(lambda: running.health().connected)
            for mode in ("postgres", stage.settings.kind):
                await stage.switch(mode)
                await until(lambda: running.health().connected == (mode != "postgres"))  # noqa: B023  as above
        first, second = stage.notes.of(BrokerBack)
        assert "appendonly yes" in first.advice[0]
        assert second.advice == ()
    finally:
        running_redis().command("CONFIG", "SET", "appendonly", "yes")
