"""`ChannelListener`: one handler for every event of its context on one channel, until it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from spectral.core.events import (
    ConfigurationError,
    DatabaseSettings,
    EventEnvelope,
    EventHandler,
    EventListener,
    WorkerSettings,
)
from spectral.core.events.bootstrap import ChannelListener
from spectral.core.events.probe import EarOpened
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, TIMES, Bench, soon, until


def listener_of(bench: Bench, generation: int = 1) -> ChannelListener:
    """A listener with the tests' times."""
    return ChannelListener(
        settings=WorkerSettings(generation=generation, times=TIMES),
        database=DatabaseSettings(dsn=bench.dsn),
        probe=bench.notes,
    )


@asynccontextmanager
async def listening(bench: Bench, handler: EventHandler, channel: str = "outbox_gen_1") -> AsyncIterator[None]:
    """Listen while the block runs, then cancel."""
    listener = listener_of(bench)
    task = asyncio.create_task(listener.listen(channel=channel, handler_name="platform.listener", handler=handler))
    await until(lambda: bench.notes.of(EarOpened) or task.done())
    try:
        yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)


async def test_it_is_the_protocol_it_implements(bench: Bench) -> None:
    assert isinstance(listener_of(bench), EventListener)


async def test_it_delivers_every_type_until_it_is_cancelled(bench: Bench) -> None:
    seen: list[EventEnvelope] = []

    async def handler(envelope: EventEnvelope) -> None:
        seen.append(envelope)

    async with listening(bench, handler):
        await bench.publish(1)
        await bench.publish(2, event_type=STARTED)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert sorted((each.event_type, each.payload["number"]) for each in seen) == [(COMPLETED, 1), (STARTED, 2)]
    assert await bench.keys() == ["platform.listener", "platform.listener"]
    (after,) = await bench.publish(3)
    assert await bench.status(after) == "pending"
    await until(bench.is_left_alone)


async def test_it_takes_a_handler_that_is_no_plain_function(bench: Bench) -> None:
    class Indexer:
        def __init__(self) -> None:
            self.seen: list[int] = []

        async def __call__(self, envelope: EventEnvelope) -> None:
            self.seen.append(envelope.payload["number"])

    indexer = Indexer()
    async with listening(bench, indexer):
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert indexer.seen == [1]


async def test_a_handler_that_cannot_be_awaited_is_run_once_and_told_so(bench: Bench) -> None:
    seen: list[int] = []

    def handler(envelope: EventEnvelope) -> None:
        seen.append(envelope.payload["number"])

    async with listening(bench, cast("EventHandler", handler)):
        (event_id,) = await bench.publish(1)
        await until(lambda: bench.all_are("failed"), within=10)
    assert seen == [1]
    assert "the handler must be an async function" in (await bench.row(event_id))["last_error"]


async def test_it_leaves_events_of_other_contexts_and_channels_alone(bench: Bench) -> None:
    seen: list[int] = []

    async def handler(envelope: EventEnvelope) -> None:
        seen.append(envelope.payload["number"])

    others = [*await bench.publish(1, target="worlds"), *await bench.publish(2, processing_class="hot")]
    others.append(await bench.insert(channel="outbox_default", payload='{"number": 3}'))
    async with listening(bench, handler):
        (mine,) = await bench.publish(4)
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", mine))
    assert seen == [4]
    assert [await bench.status(each) for each in others] == ["pending"] * 3


async def test_it_listens_on_the_channel_of_a_class(bench: Bench) -> None:
    seen: list[int] = []

    async def handler(envelope: EventEnvelope) -> None:
        seen.append(envelope.payload["number"])

    async with listening(bench, handler, channel="outbox_gen_1_hot"):
        await bench.publish(1, processing_class="hot")
        await bench.publish(2)
        await until(lambda: seen)
    assert seen == [1]


@pytest.mark.parametrize(
    "channel",
    [
        "outbox_gen_2",
        "outbox_gen_2_hot",
        "outbox_gen_11",
        "outbox_gen_1_Hot",
        "outbox_gen_1_",
        "outbox_gen_01",
        "outbox_gen_1; drop table x",
        "somebody_elses",
        "",
        "outbox_gen_1_" + "a" * 33,
        "outbox_gen_1_hot\n",
        "outbox_gen_1_h\u00f6t",
        "outbox_gen_1_hOT",
    ],
)
async def test_it_refuses_a_channel_that_is_not_its_generations(bench: Bench, channel: str) -> None:
    async def handler(envelope: EventEnvelope) -> None:
        raise AssertionError(envelope)

    with pytest.raises(ConfigurationError, match=r"channel|class"):
        await soon(listener_of(bench).listen(channel=channel, handler_name="platform.listener", handler=handler))


@pytest.mark.parametrize("name", ["listener", "", ".listener", "Platform.listener", "platform.", "platform.a b"])
async def test_it_refuses_a_handler_name_that_is_not_qualified(bench: Bench, name: str) -> None:
    async def handler(envelope: EventEnvelope) -> None:
        raise AssertionError(envelope)

    with pytest.raises(ConfigurationError):
        await soon(listener_of(bench).listen(channel="outbox_gen_1", handler_name=name, handler=handler))


async def test_it_refuses_a_retired_generation(bench: Bench) -> None:
    async def handler(envelope: EventEnvelope) -> None:
        raise AssertionError(envelope)

    async def listen() -> None:
        await listener_of(bench, 0).listen(channel="outbox_gen_0", handler_name="platform.listener", handler=handler)

    with pytest.RaisesGroup(ConfigurationError, flatten_subgroups=True, allow_unwrapped=True):
        await soon(listen())


async def test_a_handler_that_fails_is_retried_and_its_event_ends_in_the_dlq(bench: Bench) -> None:
    async def handler(envelope: EventEnvelope) -> None:
        raise ValueError(envelope.event_type)

    async with listening(bench, handler):
        (event_id,) = await bench.publish(1)
        await until(lambda: bench.all_are("failed"), within=10)
    assert (await bench.row(event_id))["last_error"] == "ValueError: platform.listener: worlds.scan.completed"
