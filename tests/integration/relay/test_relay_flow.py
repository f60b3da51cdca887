"""Events over a broker: delivered once, whatever becomes of messages, brokers and relays on the way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

from spectral.core.events import Consumer, EventEnvelope
from spectral.core.events.delivery.health import State
from spectral.core.events.probe import BrokerBack, BrokerLost, Claimed, ReferencesVoid, Relayed
from spectral.core.events.relay.health import RelayState
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, STARTED, shortened, until
from tests.integration.relay.relay_stage import RELAY, RelayStage, counting, nats_server, redis_server, stage
from tests.migrations.schema import role

__all__ = ["nats_server", "redis_server", "stage"]


async def test_what_is_published_is_delivered_by_reference(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)):
        await stage.bench.publish(*range(50))
        await until(lambda: len(seen) >= 50)
        await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(50))
    assert sum(note.rows for note in stage.notes.of(Relayed)) == 50
    assert sum(note.rows for note in stage.bench.notes.of(Claimed)) == 50


async def test_messages_are_acknowledged_after_the_claim(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)) as listener:
        await stage.bench.publish(*range(20))
        await until(lambda: len(seen) >= 20)
    await until(lambda: listener.health().state is State.STOPPED)
    seen.clear()
    async with stage.delivering(counting(seen)):
        await stage.bench.publish(99)
        await until(lambda: seen)
    assert seen == [99]
    assert stage.bench.notes.of(ReferencesVoid) == []


async def test_a_broadcast_is_split_by_the_relay(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)):
        await stage.bench.publish(1, target=None)
        await until(lambda: seen)
    assert seen == [1]


async def test_a_failed_event_is_tried_again_over_the_broker(stage: RelayStage) -> None:
    tries: list[int] = []
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def fail_twice(envelope: EventEnvelope) -> None:
        tries.append(envelope.payload["number"])
        if len(tries) < 3:
            raise ConnectionError("not yet")

    async with stage.delivering(platform):
        await stage.bench.publish(1)
        await until(lambda: stage.bench.all_are("delivered"))
    assert tries == [1, 1, 1]
    assert sum(note.rows for note in stage.notes.of(Relayed)) == 3


async def test_a_delayed_event_is_sent_when_it_is_due(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)):
        await stage.bench.publish(1, delay=timedelta(seconds=0.5))
        await until(lambda: seen)
    assert seen == [1]


async def test_a_type_that_the_worker_does_not_handle_reaches_the_one_that_does(stage: RelayStage) -> None:
    completed: list[int] = []
    started: list[int] = []
    other = Consumer("platform", retry=AT_ONCE)

    @other.on(STARTED)
    async def note(envelope: EventEnvelope) -> None:
        started.append(envelope.payload["number"])

    async with stage.delivering(counting(completed)), stage.working(other):
        await stage.bench.publish(*range(10), event_type=STARTED)
        await stage.bench.publish(*range(10))
        await until(lambda: stage.bench.all_are("delivered"))
    assert (sorted(completed), sorted(started)) == (list(range(10)), list(range(10)))


async def test_switching_there_and_back_under_load_loses_and_doubles_nothing(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.relaying(), stage.working(counting(seen)) as listener:
        for number in range(30):
            await stage.bench.publish(number)
            if number % 10 == 5:
                mode = stage.settings.kind if number != 15 else "postgres"
                await stage.switch(mode)
                await until(lambda: listener.health().takes_from == mode)  # noqa: B023  awaited before the next
        await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(30))


async def test_a_relay_stands_still_while_workers_take_from_the_database(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.relaying() as running, stage.working(counting(seen)):
        await until(lambda: running.health().state is RelayState.STANDING)
        await stage.bench.publish(1)
        await until(lambda: seen)
        assert running.health().sent == 0
    assert running.health().state is RelayState.STOPPED


async def test_a_broker_that_dies_costs_time_and_nothing_else(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen), times=shortened(degraded_after=0)) as listener:
        await stage.bench.publish(*range(5))
        await until(lambda: len(seen) == 5)
        stage.server.kill()
        await stage.bench.publish(*range(5, 10))
        await until(lambda: len(seen) == 10)
        await until(lambda: listener.health().has_fallen_back)
        assert listener.health().takes_from == "postgres"
        assert listener.health().state is State.DEGRADED
        assert listener.health().is_ready
        stage.server.start()
        await until(lambda: listener.health().takes_from == stage.settings.kind)
        await stage.bench.publish(*range(10, 15))
        await until(lambda: len(seen) == 15)
        await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(15))
    assert stage.bench.notes.of(BrokerLost)
    assert len(stage.bench.notes.of(BrokerBack)) == 2


async def test_what_an_emptied_broker_had_is_sent_again(stage: RelayStage) -> None:
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    async with stage.relaying() as running:
        await stage.bench.publish(*range(10))
        await until(lambda: running.health().sent == 10)
        stage.server.kill()
        stage.server.start(empty=True)
        await until(lambda: running.health().resent == 10)
        async with stage.working(counting(seen)):
            await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(10))


async def test_without_a_relay_events_are_only_late(stage: RelayStage) -> None:
    seen: list[int] = []
    stage.settings = replace(stage.settings, late=timedelta(seconds=0.5))
    await stage.switch(stage.settings.kind)
    async with stage.working(counting(seen)) as listener:
        await until(lambda: listener.health().takes_from == stage.settings.kind)
        await stage.bench.publish(1, 2)
        await stage.bench.publish(3, target=None)
        await until(lambda: len(seen) == 3)
    assert sorted(seen) == [1, 2, 3]


async def test_two_relays_and_two_workers_share_without_doubling(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.relaying(), stage.delivering(counting(seen)), stage.working(counting(seen)):
        for start in range(0, 300, 50):
            await stage.bench.publish(*range(start, start + 50))
        await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(300))


async def test_a_lane_gets_no_more_than_may_wait_in_it(stage: RelayStage) -> None:
    await stage.switch(stage.settings.kind)
    async with stage.relaying(replace(RELAY, batch=4, most_waiting=8)) as running:
        await stage.bench.publish(*range(30))
        await until(lambda: running.health().sent >= 8)
        await asyncio.sleep(0.5)  # what must not happen has no signal
        assert running.health().sent == 8
        seen: list[int] = []
        async with stage.working(counting(seen)):
            await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(30))


async def remember_leases(stage: RelayStage) -> None:
    """Have everybody noted who lets publishers be silent, however short."""
    await stage.bench.execute("create table public.leases (worker text)")
    await stage.bench.execute(
        "create function public.note_lease() returns trigger language plpgsql security definer as"
        " $$ begin insert into public.leases values (new.worker); return null; end $$"
    )
    await stage.bench.execute(
        "create trigger note_lease after insert on core.bell_leases for each row execute function public.note_lease()"
    )


async def test_a_busy_relay_keeps_publishers_silent(stage: RelayStage) -> None:
    await stage.bench.drain(counting([]))  # now it is known who subscribes
    await remember_leases(stage)
    for start in range(0, 4_000, 1_000):
        await stage.bench.publish(*range(start, start + 1_000))
    await stage.switch(stage.settings.kind)
    async with stage.relaying() as running:
        await until(lambda: running.health().sent == 4_000)
        name = running.health().relay
    assert await stage.bench.value("select count(*) from public.leases where worker = %s", name) > 0
    assert await stage.bench.value("select count(*) from core.bell_leases") == 0


async def test_nobody_is_silent_for_a_worker_that_receives(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.delivering(counting(seen)) as listener:
        await remember_leases(stage)
        for start in range(0, 2_000, 200):
            await stage.bench.publish(*range(start, start + 200))
        await until(lambda: stage.bench.all_are("delivered"))
        name = listener.health().worker
    assert await stage.bench.value("select count(*) from public.leases where worker = %s", name) == 0
    assert sorted(seen) == list(range(2_000))


async def test_a_worker_that_stops_gives_back_what_it_received(stage: RelayStage) -> None:
    began, seen = asyncio.Event(), list[int]()
    slow = Consumer("platform", retry=AT_ONCE)

    @slow.on(COMPLETED, name="platform.note")
    async def wait(_: EventEnvelope) -> None:
        began.set()
        await asyncio.get_running_loop().create_future()

    await stage.switch(stage.settings.kind)
    async with stage.relaying():
        async with stage.working(slow, concurrency=1, name="slow") as listener:
            await until(lambda: listener.health().takes_from == stage.settings.kind)
            await stage.bench.publish(*range(10))
            await began.wait()
            listener.stop(timedelta(seconds=0))
        async with stage.working(counting(seen)):
            await until(lambda: stage.bench.all_are("delivered"))
    assert sorted(seen) == list(range(10))


async def test_a_type_there_is_no_room_for_does_not_keep_out_another(stage: RelayStage) -> None:
    go_on, started = asyncio.Event(), list[int]()
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def wait(_: EventEnvelope) -> None:
        await go_on.wait()

    @platform.on(STARTED)
    async def note(envelope: EventEnvelope) -> None:
        started.append(envelope.payload["number"])

    async with stage.delivering(platform, concurrency=4):
        await stage.bench.publish(*range(200))
        await stage.bench.publish(1, event_type=STARTED)
        await until(lambda: started, within=15)  # sooner than anything would be claimed for being late
        go_on.set()
        await until(lambda: stage.bench.all_are("delivered"))
    assert started == [1]


async def test_a_heap_that_nobody_handles_does_not_keep_out_what_somebody_does(stage: RelayStage) -> None:
    """Its messages fill the lane, so that others are not even sent."""
    seen: list[int] = []
    await stage.switch(stage.settings.kind)
    async with stage.relaying(replace(RELAY, most_waiting=50)), stage.working(counting(seen)) as listener:
        await until(lambda: listener.health().takes_from == stage.settings.kind)
        await stage.bench.publish(*range(500), event_type=STARTED)
        await until(lambda: stage.bench.value("select count(*) >= 50 from core.outbox where relayed_at is not null"))
        await stage.bench.publish(1)
        await until(lambda: seen, within=15)  # as above
    assert seen == [1]


async def test_a_relay_and_a_worker_need_no_more_than_a_workers_role(stage: RelayStage) -> None:
    seen: list[int] = []
    with role(stage.bench.dsn, groups=("spectral_worker",)) as own:
        stage.bench.dsn, superuser = own, stage.bench.dsn
        async with stage.delivering(counting(seen)):
            await stage.bench.publish(*range(3))
            await stage.bench.publish(3, target=None)
            await until(lambda: stage.bench.all_are("delivered"))
        stage.bench.dsn = superuser
    assert sorted(seen) == [0, 1, 2, 3]


async def test_a_busy_worker_that_changes_over_lets_go_of_its_lease(stage: RelayStage) -> None:
    seen: list[int] = []
    async with stage.relaying(), stage.working(counting(seen)) as listener:
        await remember_leases(stage)
        name, published = listener.health().worker, 0
        statement = "select count(*) from public.leases where worker = %s"
        while published < 2_000 or (published < 20_000 and not await stage.bench.value(statement, name)):
            await stage.bench.publish(*range(published, published + 500))
            published += 500
        await stage.switch(stage.settings.kind)
        await stage.bench.publish(*range(published, published + 500))
        await until(lambda: listener.health().takes_from == stage.settings.kind)
        await until(lambda: stage.bench.all_are("delivered"))
        held = "select count(*) = 0 from core.bell_leases where worker = %s"
        await until(lambda: stage.bench.value(held, name))
    assert sorted(seen) == list(range(published + 500))
