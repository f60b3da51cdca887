"""The adapter on a real nats-server: what it promises to the flow, and what it makes of a broker that fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import nats
import pytest

from spectral.core.events.broker import BrokerLane, BrokerLostError, Received, Reference
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.nats import Limits, NatsReceiver, NatsSender, shape
from spectral.core.events.infrastructure.nats import receiver as receiver_module
from tests.integration.relay.nats_server import GUEST, PASSWORD, URL_PASSWORD, USER, NatsServer, nats_server

__all__ = ["nats_server"]

LANE = BrokerLane(1, "outbox_gen_1", "worlds")
HOT = BrokerLane(1, "outbox_gen_1_hot", "worlds")
DEFAULT = BrokerLane(1, "outbox_default", "platform")
NEXT = BrokerLane(2, "outbox_gen_2", "worlds")
SOON = timedelta(seconds=5)
NOT_LONG = timedelta(milliseconds=150)


def reference(lane: BrokerLane = LANE, *, attempts: int = 0) -> Reference:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    return Reference(uuid4(), uuid4(), "worlds.world.created.v1", lane, 0, attempts, trace)


async def counted(sender: NatsSender, lane: BrokerLane, expected: int) -> int:
    """How many wait; the server counts a moment after it has confirmed what changes the number."""
    given_up = time.monotonic() + 10
    while (found := await sender.waiting(lane)) != expected and time.monotonic() < given_up:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return found


def references_of(received: list[Received]) -> set[Reference]:
    return {each.reference for each in received}


class Broker:
    """Senders and receivers of one database, whose names on the server are its own."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.prefix = f"spectral_{uuid4().hex[:8]}"
        self.limits: Limits | None = None
        self._closing = contextlib.AsyncExitStack()

    def settings(self, **changed: object) -> BrokerSettings:
        patient = timedelta(seconds=30)  # a server writes to disk what it is asked to keep, and a disk may be busy
        given: dict[str, object] = {"kind": BrokerKind.NATS, "url": self.server.url, "answer": patient, **changed}
        return BrokerSettings(**given)  # type: ignore[arg-type]

    def sender(self, **changed: object) -> NatsSender:
        made = NatsSender(self.settings(**changed), self.prefix, limits=self.limits)
        self._closing.push_async_callback(made.close)
        return made

    def receiver(self, **changed: object) -> NatsReceiver:
        made = NatsReceiver(self.settings(**changed), self.prefix, "tester", limits=self.limits)
        self._closing.push_async_callback(made.close)
        return made

    async def sending(self, *lanes: BrokerLane, **changed: object) -> NatsSender:
        made = self.sender(**changed)
        await made.open()
        for lane in lanes or (LANE,):
            await made.prepare(lane)
        return made

    async def receiving(self, *lanes: BrokerLane, **changed: object) -> NatsReceiver:
        made = self.receiver(**changed)
        await made.open(lanes or (LANE,))
        return made

    async def ask(self, call: str, body: dict[str, object] | None = None) -> dict[str, object]:
        """JetStream's own interface, past the adapter."""
        async with await nats.connect(f"nats://127.0.0.1:{self.server.port}", user=USER, password=PASSWORD) as client:
            written = b"" if body is None else json.dumps(body).encode()
            answer = json.loads((await client.request(f"$JS.API.{call}", written, timeout=5)).data)
            assert isinstance(answer, dict)
            return answer

    async def publish(self, subject: str, data: bytes) -> None:
        """As somebody else would who knows the password."""
        async with await nats.connect(f"nats://127.0.0.1:{self.server.port}", user=USER, password=PASSWORD) as client:
            await client.request(subject, data, timeout=5)

    async def somebody_waits(self, generation: int) -> None:
        """Until a receiver waits for something of the generation's lane without a class."""
        while not (await self.ask(f"CONSUMER.INFO.{self.prefix}_{generation}.worlds--")).get("num_waiting"):  # noqa: ASYNC110  the server does not tell
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self._closing.aclose()


@pytest.fixture
async def broker(nats_server: NatsServer) -> AsyncIterator[Broker]:
    made = Broker(nats_server)
    yield made
    await made.close()


class TestMessages:
    async def test_what_was_sent_is_received_as_it_was_and_is_gone_once_acknowledged(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        sent = [reference() for _ in range(3)]
        assert await sender.send(sent) == []
        assert await counted(sender, LANE, 3) == 3
        received = await receiver.receive(10, SOON)
        assert references_of(received) == set(sent)
        assert await counted(sender, LANE, 3) == 3, "handed out is not acknowledged"
        await receiver.acknowledge(received)
        assert await counted(sender, LANE, 0) == 0
        assert await receiver.receive(10, NOT_LONG) == []
        assert await receiver.receive(10, timedelta(0)) == []
        await sender.send([reference()])
        found = await receiver.receive(10, timedelta(0))  # what there is, without waiting
        async with asyncio.timeout(SOON.total_seconds()):
            while not found:  # the server acknowledges a message before its consumers are told of it
                found = await receiver.receive(10, timedelta(0))
        assert len(found) == 1

    async def test_a_receiver_that_waits_gets_what_is_sent_meanwhile(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        waiting = asyncio.create_task(receiver.receive(10, SOON))
        await broker.somebody_waits(1)
        sent = reference()
        await sender.send([sent])
        assert references_of(await waiting) == {sent}

    async def test_what_is_not_acknowledged_is_handed_to_another_receiver(self, broker: Broker) -> None:
        quick = timedelta(milliseconds=300)
        sender = await broker.sending(redeliver_after=quick)
        first, second = await broker.receiving(redeliver_after=quick), await broker.receiving(redeliver_after=quick)
        sent = reference()
        await sender.send([sent])
        assert references_of(await first.receive(1, SOON)) == {sent}
        await first.close()
        again = await second.receive(1, SOON)
        assert references_of(again) == {sent}

    async def test_what_is_given_back_is_handed_to_another_receiver(self, broker: Broker) -> None:
        sender, first, second = await broker.sending(), await broker.receiving(), await broker.receiving()
        sent = reference()
        await sender.send([sent])
        await first.give_back(await first.receive(1, SOON))
        assert await counted(sender, LANE, 1) == 1
        assert references_of(await second.receive(1, SOON)) == {sent}

    async def test_the_same_life_of_a_row_is_kept_once_and_the_next_one_again(self, broker: Broker) -> None:
        sender = await broker.sending()
        sent = reference()
        assert await sender.send([sent, sent]) == []
        assert await sender.send([sent]) == []
        assert await counted(sender, LANE, 1) == 1
        await sender.send([sent._replace(attempts=1), sent._replace(replays=1)])
        assert await counted(sender, LANE, 3) == 3

    async def test_lanes_do_not_mix(self, broker: Broker) -> None:
        lanes = (LANE, HOT, DEFAULT, NEXT)
        sender = await broker.sending(*lanes)
        sent = {lane: reference(lane) for lane in lanes}
        await sender.send(list(sent.values()))
        for lane in lanes:
            assert await counted(sender, lane, 1) == 1
            receiver = await broker.receiving(lane)
            received = await receiver.receive(10, SOON)
            assert references_of(received) == {sent[lane]}
            await receiver.acknowledge(received)

    async def test_thousands_in_one_call_all_arrive_once_at_two_receivers(self, broker: Broker) -> None:
        sender = await broker.sending()
        sent = [reference() for _ in range(2_500)]
        assert await sender.send(sent) == []
        taken: list[Reference] = []

        async def take(receiver: NatsReceiver) -> None:
            while received := await receiver.receive(100, NOT_LONG):
                taken.extend(each.reference for each in received)
                await receiver.acknowledge(received)

        await asyncio.gather(take(await broker.receiving()), take(await broker.receiving()))
        assert len(taken) == len(sent)
        assert set(taken) == set(sent)
        assert await counted(sender, LANE, 0) == 0

    async def test_what_is_no_reference_is_acknowledged_counted_and_left_out(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        await broker.publish(f"{broker.prefix}.1.worlds.-.anything", b"\xff not ours")
        sent = reference()
        await sender.send([sent])
        received = await receiver.receive(10, SOON)
        assert references_of(received) == {sent}
        assert receiver.unreadable == 1
        await receiver.acknowledge(received)
        assert await counted(sender, LANE, 0) == 0


class TestRoom:
    async def test_a_full_stream_refuses_the_rest_and_takes_it_once_there_is_room(self, broker: Broker) -> None:
        broker.limits = Limits(messages=3)
        sender, receiver = await broker.sending(), await broker.receiving()
        sent = [reference() for _ in range(8)]
        taken: set[Reference] = set()
        refused = await sender.send(sent)
        assert len(refused) == 5
        while refused:
            received = await receiver.receive(10, SOON)
            taken |= references_of(received)
            await receiver.acknowledge(received)
            refused = await sender.send(refused)
        taken |= references_of(await receiver.receive(10, SOON))
        assert taken == set(sent)

    async def test_a_worker_with_less_room_than_lanes_gets_from_all_of_them_and_never_too_much(
        self, broker: Broker
    ) -> None:
        lanes = (LANE, HOT, DEFAULT, NEXT)
        sender, receiver = await broker.sending(*lanes), await broker.receiving(*lanes)
        sent = [reference(lane) for lane in lanes for _ in range(3)]
        await sender.send(sent)
        taken: list[Reference] = []
        while len(taken) < len(sent):
            received = await receiver.receive(1, SOON)
            assert len(received) == 1
            taken += [each.reference for each in received]
            await receiver.acknowledge(received)
        assert set(taken) == set(sent)

    @pytest.mark.parametrize("limit", [1, 5])
    async def test_a_lane_with_a_backlog_does_not_keep_the_others_waiting(self, broker: Broker, limit: int) -> None:
        lanes = (LANE, HOT, DEFAULT)
        sender, receiver = await broker.sending(*lanes), await broker.receiving(*lanes)
        await sender.send([reference() for _ in range(2_000)])
        assert references_of(await receiver.receive(limit, SOON))
        # Several: one that the server hands out while its inbox is taken away comes again only after a while.
        await sender.send([reference(lane) for lane in (HOT, DEFAULT) for _ in range(5)])
        before, awaited = 0, {HOT, DEFAULT}
        while awaited:
            received = await receiver.receive(limit, SOON)
            awaited -= {each.reference.lane for each in received}
            before += len(received)
            await receiver.acknowledge(received)
        assert before < 1_900

    async def test_a_burst_over_all_lanes_at_a_worker_that_waits_is_not_kept_from_others(self, broker: Broker) -> None:
        lanes = (LANE, HOT, DEFAULT, NEXT)
        sender, first, second = (
            await broker.sending(*lanes),
            await broker.receiving(*lanes),
            await broker.receiving(*lanes),
        )
        sent = [reference(lane) for lane in lanes]
        waiting = asyncio.create_task(first.receive(1, SOON))
        await broker.somebody_waits(2)
        await sender.send(sent)
        taken = references_of(await waiting)
        assert len(taken) == 1
        async with asyncio.timeout(20):  # below the thirty seconds after which all would be handed out again
            while len(taken) < len(sent):
                taken |= references_of(await second.receive(10, SOON))
        assert taken == set(sent)

    async def test_a_lane_with_as_much_out_as_it_may_is_silent_and_not_lost(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shape, "MAX_UNACKNOWLEDGED", 2)
        sender, receiver = await broker.sending(LANE, HOT), await broker.receiving(LANE, HOT)
        await sender.send([reference() for _ in range(4)])
        received = await receiver.receive(10, SOON)
        assert len(received) == 2
        assert await receiver.receive(10, NOT_LONG) == []
        assert await receiver.receive(1, NOT_LONG) == []
        other = reference(HOT)
        await sender.send([other])
        assert references_of(await receiver.receive(10, SOON)) == {other}
        await receiver.acknowledge(received)
        assert len(await receiver.receive(10, SOON)) > 0, "there is room again"

    async def test_what_was_handed_out_too_often_no_longer_waits(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shape, "MAX_DELIVER", 1)
        quick = timedelta(milliseconds=100)
        sender, receiver = await broker.sending(redeliver_after=quick), await broker.receiving(redeliver_after=quick)
        await sender.send([reference()])
        assert len(await receiver.receive(1, SOON)) == 1
        while await sender.waiting(LANE):  # noqa: ASYNC110  the server does not tell
            await asyncio.sleep(0.02)
        assert await receiver.receive(1, NOT_LONG) == []

    async def test_what_nobody_wants_is_removed_before_it_can_no_longer_be_handed_out(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else it stays in the stream, uncounted: the relay sends another, and so on until nothing has room."""
        monkeypatch.setattr(receiver_module, "MAX_DELIVER", 2)
        sender, receiver = await broker.sending(), await broker.receiving()
        await sender.send([reference()])
        for _ in range(2):
            await receiver.give_back(await receiver.receive(1, SOON))
        state = (await broker.ask(f"STREAM.INFO.{broker.prefix}_1"))["state"]
        assert isinstance(state, dict)
        assert state["messages"] == await sender.waiting(LANE) == 0


class TestCancellation:
    async def test_what_comes_after_a_call_was_cancelled_is_answered_by_the_next(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        waiting = asyncio.create_task(receiver.receive(10, SOON))
        await broker.somebody_waits(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        sent = reference()
        await sender.send([sent])
        assert references_of(await receiver.receive(10, SOON)) == {sent}

    async def test_what_came_after_a_call_was_cancelled_is_given_back_at_the_end(self, broker: Broker) -> None:
        sender, first, second = await broker.sending(), await broker.receiving(), await broker.receiving()
        waiting = asyncio.create_task(first.receive(10, SOON))
        await broker.somebody_waits(1)
        waiting.cancel()
        sent = reference()
        await sender.send([sent])
        await first.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert references_of(await second.receive(10, SOON)) == {sent}

    @pytest.mark.parametrize("call", ["acknowledge", "give back", "waiting", "send", "receive"])
    async def test_a_call_that_is_cancelled_on_its_way_leaves_the_connection_as_it_was(
        self, broker: Broker, call: str
    ) -> None:
        sender, receiver = await broker.sending(LANE, HOT), await broker.receiving(LANE, HOT)
        await sender.send([reference()])
        received = await receiver.receive(1, SOON)
        for turns in range(12):  # of the event loop: somewhere among these it waits for the server
            cut = asyncio.ensure_future(CALLS[call](sender, receiver, received))
            for _ in range(turns):
                await asyncio.sleep(0)
            cut.cancel()
            await asyncio.wait({cut})
        sent = reference(HOT)
        await sender.send([sent])
        taken: set[Reference] = set()
        async with asyncio.timeout(20):  # below the thirty seconds after which it would be handed out again
            while sent not in taken:
                found = await receiver.receive(10, SOON)
                taken |= references_of(found)
                await receiver.acknowledge(found)

    async def test_a_receipt_of_an_earlier_connection_acknowledges_nothing(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        await sender.send([reference()])
        received = await receiver.receive(1, SOON)
        await receiver.open([LANE])
        await receiver.acknowledge(received)
        assert await counted(sender, LANE, 1) == 1


Call = Callable[[NatsSender, NatsReceiver, list[Received]], Awaitable[object]]
CALLS: dict[str, Call] = {
    "send": lambda sender, _receiver, _received: sender.send([reference()]),
    "prepare": lambda sender, _receiver, _received: sender.prepare(NEXT),
    "waiting": lambda sender, _receiver, _received: sender.waiting(LANE),
    "forget": lambda sender, _receiver, _received: sender.forget(1),
    "open to send": lambda sender, _receiver, _received: sender.open(),
    "receive": lambda _sender, receiver, _received: receiver.receive(10, SOON),
    "acknowledge": lambda _sender, receiver, received: receiver.acknowledge(received),
    "give back": lambda _sender, receiver, received: receiver.give_back(received),
    "open to receive": lambda _sender, receiver, _received: receiver.open([LANE]),
}


def answer_within(seconds: float, sender: NatsSender, receiver: NatsReceiver) -> None:
    """From when they are open on: a machine or a disk that is busy is no fault."""
    for side in (sender, receiver):
        side._settings = replace(side._settings, answer=timedelta(seconds=seconds))
    assert sender._opened is not None
    assert receiver._connection is not None
    for connection in (sender._opened.connection, receiver._connection):
        connection._answer = seconds


class TestLoss:
    @pytest.mark.parametrize("call", CALLS)
    async def test_a_server_that_was_killed_is_told_as_lost(
        self, broker: Broker, call: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        await sender.send([reference()])
        received = await receiver.receive(1, SOON)
        broker.server.kill()
        with pytest.raises(BrokerLostError) as told:
            await CALLS[call](sender, receiver, received)
        assert "127.0.0.1" not in str(told.value)
        await broker.close()
        assert capfd.readouterr().err == ""

    async def test_a_server_that_ends_under_calls_is_told_to_all_of_them_at_once(
        self, broker: Broker, capfd: pytest.CaptureFixture[str]
    ) -> None:
        sender, receiver = await broker.sending(answer=timedelta(hours=1)), await broker.receiving()
        receiving = asyncio.create_task(receiver.receive(10, timedelta(hours=1)))
        await broker.somebody_waits(1)
        broker.server.pause()
        calls = [receiving, *map(asyncio.ensure_future, (sender.send([reference()]), sender.waiting(LANE)))]
        await asyncio.sleep(0)
        broker.server.kill()
        for call in calls:
            with pytest.raises(BrokerLostError):
                await asyncio.wait_for(call, 30)  # not the hour
        await broker.close()
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize("call", CALLS)
    async def test_a_server_that_hangs_is_told_as_lost_within_the_answer_time(
        self, broker: Broker, call: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        await sender.send([reference()])
        received = await receiver.receive(1, SOON)
        broker.server.pause()
        answer_within(0.5, sender, receiver)
        started = time.monotonic()
        with pytest.raises(BrokerLostError):
            await CALLS[call](sender, receiver, received)
        # A call may ask twice, and close what was there before; the rest is for a machine that is busy.
        assert time.monotonic() - started < 12
        broker.server.resume()
        for side in (sender, receiver):
            side._settings = broker.settings()
        await sender.open()
        await receiver.open([HOT])
        await sender.send([sent := reference(HOT)])
        assert references_of(await receiver.receive(1, SOON)) == {sent}
        await broker.close()
        assert capfd.readouterr().err == ""

    async def test_after_a_restart_everything_is_where_it_was(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        sent = reference()
        await sender.send([sent])
        broker.server.kill()
        broker.server.start()
        with pytest.raises(BrokerLostError):
            await sender.send([sent])
        await sender.open()
        await sender.prepare(LANE)
        assert await counted(sender, LANE, 1) == 1
        await receiver.open([LANE])
        assert references_of(await receiver.receive(1, SOON)) == {sent}

    async def test_a_server_that_comes_back_empty_is_prepared_anew(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        sent = reference()
        await sender.send([sent])
        broker.server.stop()
        broker.server.start(empty=True)
        await sender.open()
        await sender.prepare(LANE)
        assert await counted(sender, LANE, 0) == 0
        assert await sender.send([sent]) == []
        await receiver.open([LANE])
        assert references_of(await receiver.receive(1, SOON)) == {sent}

    async def test_a_stream_that_was_removed_is_told_and_made_again(self, broker: Broker) -> None:
        sender, receiver = await broker.sending(), await broker.receiving()
        await broker.ask(f"STREAM.DELETE.{broker.prefix}_1")
        with pytest.raises(BrokerLostError):
            await sender.send([reference()])
        with pytest.raises(BrokerLostError):
            await receiver.receive(1, SOON)
        assert await counted(sender, LANE, 0) == 0, "this prepares what is missing"
        assert await sender.send([reference()]) == []
        await receiver.open([LANE])
        assert len(await receiver.receive(1, SOON)) == 1

    async def test_a_consumer_that_was_removed_under_a_receiver_that_waits_is_told(self, broker: Broker) -> None:
        receiver = await broker.receiving()
        waiting = asyncio.create_task(receiver.receive(1, timedelta(hours=1)))
        await broker.somebody_waits(1)
        await broker.ask(f"CONSUMER.DELETE.{broker.prefix}_1.worlds--")
        with pytest.raises(BrokerLostError):
            await asyncio.wait_for(waiting, 30)

    async def test_nothing_is_open_before_it_was_opened_or_after_it_was_closed(self, broker: Broker) -> None:
        sender, receiver = broker.sender(), broker.receiver()
        with pytest.raises(BrokerLostError, match="not open"):
            await sender.send([reference()])
        with pytest.raises(BrokerLostError, match="not open"):
            await receiver.receive(1, SOON)
        await sender.open()
        await sender.close()
        await sender.close()
        with pytest.raises(BrokerLostError, match="not open"):
            await sender.waiting(LANE)


class TestRefusal:
    @pytest.mark.parametrize("credentials", ["relay:wr0ng-secret", "nobody:wr0ng-secret", "wr0ng-secret"])
    async def test_a_wrong_password_or_token_says_what_to_set_and_not_what_it_was(
        self, broker: Broker, credentials: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for opening in (
            broker.sender(url=broker.server.url_of(credentials)).open(),
            broker.receiver(url=broker.server.url_of(credentials)).open([LANE]),
        ):
            with pytest.raises(BrokerLostError, match="SPECTRAL_BROKER_URL") as told:
                await opening
            assert "wr0ng" not in f"{told.value!r}{told.value.__cause__!r}{told.value.__context__!r}"
        assert capfd.readouterr().err == ""

    async def test_a_user_without_permission_is_told_what_to_grant(self, broker: Broker) -> None:
        with pytest.raises(BrokerLostError, match="grant"):
            await broker.sending(url=broker.server.url_of(f"{GUEST}:{URL_PASSWORD}"))

    async def test_a_url_without_a_usable_address_is_a_matter_of_configuration(self, broker: Broker) -> None:
        with pytest.raises(ConfigurationError, match="SPECTRAL_BROKER_URL") as told:
            await broker.sending(url="nats://relay:hush@127.0.0.1:notaport")
        assert "hush" not in str(told.value)

    async def test_the_next_server_is_tried_where_one_is_down(self, broker: Broker) -> None:
        for _ in range(4):  # their order is chance
            sender = await broker.sending(url=f"nats://relay:no@127.0.0.1:1,{broker.server.url}")
            assert await counted(sender, LANE, 0) == 0
            await sender.close()

    async def test_a_password_is_not_sent_in_the_clear_where_the_url_asks_for_tls(self, broker: Broker) -> None:
        heard = bytearray()

        async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.10.0","headers":true,"max_payload":1048576}\r\n')
            heard.extend(await reader.read())
            writer.close()

        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(BrokerLostError, match="TLS"):
                await broker.sender(url=f"tls://relay:hush@127.0.0.1:{port}").open()
        assert heard == b""


class TestShape:
    async def test_a_stream_with_other_limits_is_corrected_and_keeps_its_messages(self, broker: Broker) -> None:
        sender = await broker.sending()
        await sender.send([reference()])
        config = (await broker.ask(f"STREAM.INFO.{broker.prefix}_1"))["config"]
        assert isinstance(config, dict)
        await broker.ask(f"STREAM.UPDATE.{broker.prefix}_1", {**config, "max_msgs": 5, "discard": "old"})
        sender = await broker.sending()
        assert (await broker.ask(f"STREAM.INFO.{broker.prefix}_1"))["config"] == config
        assert await counted(sender, LANE, 1) == 1

    @pytest.mark.parametrize("wrong", [{"retention": "limits"}, {"retention": "workqueue", "storage": "memory"}])
    async def test_a_stream_that_cannot_be_corrected_is_refused_with_its_name(
        self, broker: Broker, wrong: dict[str, object]
    ) -> None:
        name = f"{broker.prefix}_1"
        await broker.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{broker.prefix}.1.>"], **wrong})
        with pytest.raises(ConfigurationError, match=f"nats stream rm {name}"):
            await broker.sending()
        with pytest.raises(ConfigurationError, match=f"nats stream rm {name}"):
            await broker.receiving()

    async def test_a_stream_in_the_way_of_the_subjects_is_told(self, broker: Broker) -> None:
        await broker.ask(
            f"STREAM.CREATE.X{broker.prefix}", {"name": f"X{broker.prefix}", "subjects": [f"{broker.prefix}.>"]}
        )
        with pytest.raises(ConfigurationError, match="overlap"):
            await broker.sending()
        await broker.ask(f"STREAM.DELETE.X{broker.prefix}")

    async def test_more_replicas_than_servers_are_a_matter_of_configuration(self, broker: Broker) -> None:
        with pytest.raises(ConfigurationError, match="replicas"):
            await broker.sending(replicas=3)

    @pytest.mark.parametrize("wrong", [{"ack_wait": 1_000_000_000}, {"deliver_subject": "elsewhere"}])
    async def test_a_consumer_of_another_shape_is_corrected_or_made_anew(
        self, broker: Broker, wrong: dict[str, object]
    ) -> None:
        sender = await broker.sending()
        sent = reference()
        await sender.send([sent])
        stream, name = f"{broker.prefix}_1", "worlds--"
        config = (await broker.ask(f"CONSUMER.INFO.{stream}.{name}"))["config"]
        assert isinstance(config, dict)
        await broker.ask(f"CONSUMER.DELETE.{stream}.{name}")
        other = {key: value for key, value in config.items() if key != "max_waiting"} | wrong
        call = f"CONSUMER.CREATE.{stream}.{name}.{config['filter_subject']}"
        assert "error" not in await broker.ask(call, {"stream_name": stream, "config": other})
        receiver = await broker.receiving()
        found = (await broker.ask(f"CONSUMER.INFO.{stream}.{name}"))["config"]
        assert isinstance(found, dict)
        assert found["ack_wait"] == config["ack_wait"]
        assert "deliver_subject" not in found
        assert references_of(await receiver.receive(1, SOON)) == {sent}

    async def test_a_consumer_that_serves_is_not_taken_from_those_who_use_it(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sender, older = await broker.sending(), await broker.receiving()
        waiting = asyncio.create_task(older.receive(1, timedelta(hours=1)))
        await broker.somebody_waits(1)
        monkeypatch.setattr(shape, "MAX_WAITING", 7)  # as another version of this program might have it
        await broker.receiving()
        sent = reference()
        await sender.send([sent])
        assert references_of(await asyncio.wait_for(waiting, 30)) == {sent}

    async def test_forgetting_a_generation_removes_it_alone_and_nothing_twice(self, broker: Broker) -> None:
        sender = await broker.sending(LANE, NEXT)
        await sender.send([reference(LANE), reference(NEXT)])
        await sender.forget(1)
        await sender.forget(1)
        assert "error" in await broker.ask(f"STREAM.INFO.{broker.prefix}_1")
        assert await counted(sender, NEXT, 1) == 1
        await sender.prepare(LANE)
        assert await counted(sender, LANE, 0) == 0


async def test_the_server_has_room_for_the_streams_of_all_tests(broker: Broker) -> None:
    for generation in range(100):
        receiver = broker.receiver()
        await receiver.open([BrokerLane(generation, f"outbox_gen_{generation}", "platform")])
        await receiver.close()


def test_the_server_does_not_outlive_the_process_that_runs_the_tests(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from tests.integration.relay.nats_server import NatsServer\n"
        "server = NatsServer(pathlib.Path(sys.argv[1])); server.start_somewhere()\n"
        "print(server._process.pid, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        run.send_signal(signal.SIGKILL)
    given_up = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < given_up:
        time.sleep(0.01)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
