"""The Redis adapter on a real server: what is sent, handed out, acknowledged, given back and forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from spectral.core.events.broker import BrokerLane, BrokerLostError, Reference
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.redis import RedisReceiver, RedisSender, shape
from tests.integration.relay.redis_stage import (
    AT_ONCE,
    HOT,
    NEXT,
    PATIENTLY,
    PLAIN,
    Stage,
    redis_server,
    reference,
    references_of,
    stage,
)

__all__ = ["redis_server", "stage"]  # fixtures


async def test_what_is_sent_is_received_in_order_and_gone_when_it_is_acknowledged(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    sent = [reference() for _ in range(3)]
    assert await sender.send(sent) == []
    assert await sender.waiting(PLAIN) == 3
    received = await receiver.receive(10, PATIENTLY)
    assert references_of(received) == sent
    assert await sender.waiting(PLAIN) == 3, "handed out is not acknowledged"
    await receiver.acknowledge(received[:2])
    assert await sender.waiting(PLAIN) == 1
    await receiver.acknowledge(received)
    assert await sender.waiting(PLAIN) == 0
    assert await receiver.receive(10, AT_ONCE) == []


async def test_a_traceparent_and_the_counts_of_a_life_arrive_as_they_were(stage: Stage) -> None:
    sender, receiver = await stage.sender(HOT), await stage.receiver(HOT)
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = reference(HOT)._replace(replays=2, attempts=5, traceparent=trace)
    await sender.send([sent])
    assert references_of(await receiver.receive(1, PATIENTLY)) == [sent]


async def test_a_receiver_waits_for_the_first_message(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN, HOT), await stage.receiver(PLAIN, HOT)
    waiting = asyncio.create_task(receiver.receive(10, PATIENTLY))
    await stage.until_somebody_waits()
    sent = reference(HOT)
    await sender.send([sent])
    assert references_of(await waiting) == [sent]


async def test_messages_can_be_acknowledged_while_the_receiver_waits_for_more(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    await sender.send([reference()])
    received = await receiver.receive(1, PATIENTLY)
    waiting = asyncio.create_task(receiver.receive(1, PATIENTLY))
    await stage.until_somebody_waits()
    await receiver.acknowledge(received)
    assert not waiting.done()
    assert await sender.waiting(PLAIN) == 0
    await sender.send([reference()])
    assert len(await waiting) == 1


async def test_a_lane_is_received_by_nobody_else(stage: Stage) -> None:
    sender = await stage.sender(PLAIN, HOT, NEXT)
    hot, later = await stage.receiver(HOT, name="hot"), await stage.receiver(NEXT, name="next")
    sent = {lane: reference(lane) for lane in (PLAIN, HOT, NEXT)}
    await sender.send(list(sent.values()))
    assert references_of(await hot.receive(10, PATIENTLY)) == [sent[HOT]]
    assert references_of(await later.receive(10, PATIENTLY)) == [sent[NEXT]]
    assert await sender.waiting(PLAIN) == 1


async def test_no_more_are_handed_out_than_asked_for_and_every_lane_gets_its_turn(stage: Stage) -> None:
    lanes = [BrokerLane(1, f"outbox_gen_1_c{each}", "worlds") for each in range(100)]
    sender, receiver = await stage.sender(*lanes), await stage.receiver(*lanes)
    sent = [reference(lane) for lane in lanes for _ in range(2)]
    await sender.send(sent)
    received = []
    while some := await receiver.receive(7, AT_ONCE):
        assert len(some) <= 7
        received += some
    assert sorted(references_of(received)) == sorted(sent)
    assert len({each.reference.lane for each in received[:8]}) > 1, "one full lane does not starve the others"


async def test_what_comes_to_several_lanes_at_once_while_waiting_is_not_handed_out_beyond_the_limit(
    stage: Stage,
) -> None:
    sender, receiver = await stage.sender(PLAIN, HOT), await stage.receiver(PLAIN, HOT)
    sent = [reference(PLAIN), reference(HOT)]
    await sender.send(sent)
    await receiver._wait(1.0)  # the moment between a look that found nothing and the wait
    first, second = await receiver.receive(1, AT_ONCE), await receiver.receive(1, AT_ONCE)
    assert sorted(references_of([*first, *second])) == sorted(sent)


async def test_two_receivers_share_the_work_and_nothing_is_handed_out_twice(stage: Stage) -> None:
    sender = await stage.sender(PLAIN, room=1000)
    first, second = await stage.receiver(PLAIN, name="a"), await stage.receiver(PLAIN, name="b")
    sent = [reference() for _ in range(600)]  # more than fit into one script
    assert await sender.send(sent) == []

    async def all_of(receiver: RedisReceiver) -> list[object]:
        taken: list[object] = []
        while some := await receiver.receive(50, AT_ONCE):
            await receiver.acknowledge(some)
            taken += references_of(some)
        return taken

    taken = await asyncio.gather(all_of(first), all_of(second))
    assert len(taken[0]) + len(taken[1]) == 600
    assert {*taken[0], *taken[1]} == {*sent}
    assert await sender.waiting(PLAIN) == 0


async def test_what_is_not_acknowledged_in_time_goes_to_somebody_else(stage: Stage) -> None:
    soon = timedelta(seconds=0.4)
    sender = await stage.sender(PLAIN)
    first = await stage.receiver(PLAIN, name="a", redeliver_after=soon)
    second = await stage.receiver(PLAIN, name="b", redeliver_after=soon)
    sent = reference()
    await sender.send([sent])
    late = await first.receive(1, PATIENTLY)
    received = await second.receive(1, PATIENTLY)
    assert references_of(late) == references_of(received) == [sent]
    await first.acknowledge(late)
    assert await sender.waiting(PLAIN) == 0, "whoever acknowledges first: it is the same message"
    await second.acknowledge(received)


async def test_what_is_held_is_left_with_its_receiver_until_then(stage: Stage) -> None:
    sender = await stage.sender(PLAIN)
    first, second = await stage.receiver(PLAIN, name="a"), await stage.receiver(PLAIN, name="b")
    await sender.send([reference()])
    await first.receive(1, PATIENTLY)
    assert await second.receive(1, timedelta(seconds=0.1)) == []


async def test_what_is_given_back_goes_to_somebody_else_after_a_moment(stage: Stage) -> None:
    sender = await stage.sender(PLAIN)
    first, second = await stage.receiver(PLAIN, name="a"), await stage.receiver(PLAIN, name="b")
    sent = [reference(), reference()]
    await sender.send(sent)
    received = await first.receive(10, PATIENTLY)
    await first.give_back(received[:1])
    assert await second.receive(10, AT_ONCE) == [], "not at once: whoever cannot take it now must not spin"
    # Of the 30 seconds after which it would be redelivered anyway nothing like that passes.
    assert references_of(await second.receive(10, timedelta(seconds=15))) == sent[:1]
    assert await sender.waiting(PLAIN) == 2


async def test_who_is_handed_what_is_not_for_it_again_and_again_still_takes_over(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    seen: list[Reference] = []
    async with asyncio.timeout(20):
        while len(set(seen)) == len(seen):  # until something that was given back comes again
            await sender.send([reference()])
            received = await receiver.receive(10, PATIENTLY)
            seen += references_of(received)
            await receiver.give_back(received)
            await asyncio.sleep(0.2)  # more often than it would look for what was left lying


async def test_a_receiver_that_closes_leaves_what_it_holds_to_others_at_once(stage: Stage) -> None:
    sender = await stage.sender(PLAIN)
    first, second = await stage.receiver(PLAIN, name="a"), await stage.receiver(PLAIN, name="b")
    sent = [reference() for _ in range(3)]
    await sender.send(sent)
    assert len(await first.receive(2, PATIENTLY)) == 2
    await first.close()
    assert references_of(await second.receive(10, PATIENTLY)) == sent
    # The one who left is forgotten: there are b, and nobody.
    assert stage.server.command("XINFO", "CONSUMERS", stage.key(), "workers") == b"*2"


async def test_a_worker_that_is_gone_is_forgotten_but_not_what_it_held(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await stage.sender(PLAIN)
    await sender.send([reference(), reference()])
    for name in ("holds", "idles"):
        receiver = await stage.receiver(PLAIN, name=name)
        received = await receiver.receive(1, PATIENTLY)
        if name == "idles":
            await receiver.acknowledge(received)
        await receiver._drop()  # as if killed
    assert stage.server.command("XINFO", "CONSUMERS", stage.key(), "workers") == b"*2"
    monkeypatch.setattr(shape, "_FORGOTTEN_AFTER", -1)
    await stage.receiver(PLAIN, name="new")
    assert stage.server.command("XINFO", "CONSUMERS", stage.key(), "workers") == b"*1"
    assert await sender.waiting(PLAIN) == 1


async def test_for_want_of_room_the_last_are_refused(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN, HOT, room=3), await stage.receiver(PLAIN)
    plain, hot = [reference() for _ in range(5)], [reference(HOT)]
    assert await sender.send([*plain, *hot]) == plain[3:]
    assert await sender.waiting(PLAIN) == 3
    assert await sender.send(plain[3:]) == plain[3:]
    await receiver.acknowledge(await receiver.receive(1, PATIENTLY))
    assert await sender.send(plain[3:]) == plain[4:]


async def test_a_server_without_memory_refuses_for_want_of_room_and_can_be_emptied(stage: Stage) -> None:
    sender, refused = await stage.sender(PLAIN), [reference()]
    await sender.send([reference()])
    stage.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert await sender.send(refused) == refused
        receiver = await stage.receiver(PLAIN)
        await receiver.acknowledge(await receiver.receive(1, PATIENTLY))
    finally:
        stage.server.command("CONFIG", "SET", "maxmemory", "0")
    assert await sender.waiting(PLAIN) == 0
    assert await sender.send(refused) == []


async def test_what_is_no_reference_is_acknowledged_and_counted(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    stage.server.command("XADD", stage.key(), "*", "reference", "{}")
    stage.server.command("XADD", stage.key(), "*", "else", "\x00")
    assert await receiver.receive(10, AT_ONCE) == []
    assert (receiver.unreadable, await sender.waiting(PLAIN)) == (2, 0)
    stage.server.command("XADD", stage.key(), "*", "reference", "no")
    sent = reference()
    await sender.send([sent])
    received = await receiver.receive(10, PATIENTLY)
    assert references_of(received) == [sent]
    await receiver.acknowledge(received)
    assert await receiver.receive(10, AT_ONCE) == []
    assert (receiver.unreadable, await sender.waiting(PLAIN)) == (3, 0)


async def test_a_cancelled_receive_loses_nothing(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    waiting = asyncio.create_task(receiver.receive(10, PATIENTLY))
    await stage.until_somebody_waits()
    waiting.cancel()
    await asyncio.wait({waiting})
    sent = [reference(), reference()]
    await sender.send(sent)
    received = await receiver.receive(10, PATIENTLY)
    received += await receiver.receive(10, AT_ONCE)
    assert references_of(received) == sent


async def test_whoever_is_cancelled_in_an_exchange_leaves_the_connection_to_the_others(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    await sender.send([reference()])
    received = await receiver.receive(1, PATIENTLY)
    for work in (receiver.acknowledge(received), sender.waiting(PLAIN), sender.send([reference()])):
        task = asyncio.ensure_future(work)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    assert await sender.waiting(PLAIN) == 1
    assert len(await receiver.receive(10, PATIENTLY)) == 1


async def test_a_retired_generation_is_forgotten_and_no_other(stage: Stage) -> None:
    sender = await stage.sender(PLAIN, HOT, NEXT)
    await sender.send([reference(PLAIN), reference(HOT), reference(NEXT)])
    stage.server.command("SET", f"{stage.prefix}:1:note", "not ours")
    await sender.forget(1)
    await sender.forget(1)
    assert [await sender.waiting(lane) for lane in (PLAIN, HOT, NEXT)] == [0, 0, 1]
    assert stage.server.command("GET", f"{stage.prefix}:1:note") == b"not ours"
    await sender.prepare(PLAIN)
    assert stage.server.command("EXISTS", stage.key()) == b":1", "what was forgotten can be prepared again"


async def test_a_key_of_another_type_is_refused_and_left_alone(stage: Stage) -> None:
    stage.server.command("SET", stage.key(), "somebody else's")
    sender = await stage.sender()
    for attempt in (sender.prepare(PLAIN), sender.send([reference()]), sender.waiting(PLAIN), stage.receiver(PLAIN)):
        with pytest.raises(ConfigurationError, match="key of another type"):
            await attempt
    assert stage.server.command("GET", stage.key()) == b"somebody else's"


async def test_a_receiver_without_lanes_or_without_room_rests(stage: Stage) -> None:
    sender, nowhere, full = await stage.sender(PLAIN), await stage.receiver(), await stage.receiver(PLAIN)
    await sender.send([reference()])
    assert await nowhere.receive(10, timedelta(milliseconds=1)) == []
    assert await full.receive(0, timedelta(milliseconds=1)) == []
    await full.acknowledge([])
    await full.give_back([])
    assert await sender.send([]) == []


async def test_nothing_works_before_it_is_open_nor_after_it_is_closed(stage: Stage) -> None:
    sender = RedisSender(stage.settings(), stage.prefix)
    with pytest.raises(BrokerLostError):
        await sender.waiting(PLAIN)
    receiver = await stage.receiver(PLAIN)
    await receiver.close()
    await receiver.close()
    with pytest.raises(BrokerLostError):
        await receiver.receive(1, AT_ONCE)
