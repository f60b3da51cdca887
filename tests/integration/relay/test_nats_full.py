"""A NATS server that has set aside all it has: what is there can be used, and what it refuses stops nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from spectral.core.events.broker import BrokerLane, Reference
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.nats import NatsReceiver, NatsSender
from spectral.core.events.probe import BrokerBack, BrokerLost
from spectral.core.events.relay.outgoing import Outgoing
from spectral.core.events.testing.notes import RecordingProbe
from tests.integration.relay.nats_server import NatsServer

FIRST, SECOND = (BrokerLane(number, f"outbox_gen_{number}", "worlds") for number in (1, 2))
SOON = timedelta(seconds=5)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[BrokerSettings]:
    """Of a server with room for one stream."""
    server = NatsServer(tmp_path, store="400MB")
    server.start_somewhere()
    yield BrokerSettings(kind=BrokerKind.NATS, url=server.url, answer=timedelta(seconds=30))
    server.stop()


def reference(lane: BrokerLane) -> Reference:
    return Reference(uuid4(), uuid4(), "worlds.world.created.v1", lane, 0, 0, None)


async def test_a_stream_that_is_there_is_used_when_there_is_no_room_for_another(settings: BrokerSettings) -> None:
    sender = NatsSender(settings, "full")
    await sender.open()
    await sender.prepare(FIRST)
    with pytest.raises(ConfigurationError, match="insufficient storage"):
        await sender.prepare(SECOND)
    sent = reference(FIRST)
    await sender.send([sent])
    await sender.close()
    receiver = NatsReceiver(settings, "full", "one that starts later")
    await receiver.open([FIRST])
    assert [each.reference for each in await receiver.receive(1, SOON)] == [sent]
    await receiver.close()


async def test_a_lane_that_is_refused_is_told_and_left_for_a_while_and_the_others_go_on(
    settings: BrokerSettings,
) -> None:
    probe = RecordingProbe()
    broker = Outgoing(lambda prefix: NatsSender(settings, prefix), BrokerKind.NATS, probe)
    await broker.open("full")
    assert await broker.prepare(FIRST)
    for _ in range(3):
        assert not await broker.prepare(SECOND)
        assert await broker.prepare(FIRST)
        assert await broker.send([reference(FIRST)]) == []
    (lost,) = probe.of(BrokerLost)
    assert "insufficient storage" in lost.error
    assert broker.is_open
    assert broker.down_for() > 0
    # what was due in it has gone another way
    broker._refused[SECOND] -= 120
    assert not await broker.open("full")
    assert (broker.down_for(), len(probe.of(BrokerBack))) == (0, 2)
    assert not await broker.prepare(SECOND)
    assert broker.down_for() > 0
    # somebody makes room
    await broker.forget([FIRST.generation])
    broker._refused[SECOND] = 0.0  # as if the while were over
    assert await broker.prepare(SECOND)
    assert broker.down_for() == 0
    assert len(probe.of(BrokerBack)) == 3
    await broker.close()
