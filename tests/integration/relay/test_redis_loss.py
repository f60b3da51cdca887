"""The Redis adapter when the server is gone, hangs, or has forgotten everything."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from spectral.core.events.broker import BrokerLostError, Received
from spectral.core.events.infrastructure.redis import RedisReceiver, RedisSender
from tests.integration.relay.redis_stage import (
    AT_ONCE,
    HOT,
    PATIENTLY,
    PLAIN,
    Stage,
    redis_server,
    reference,
    references_of,
    stage,
)

__all__ = ["redis_server", "stage"]  # fixtures

Call = Callable[[RedisSender, RedisReceiver, list[Received]], Awaitable[object]]
CALLS: dict[str, Call] = {
    "the sender's open": lambda sender, _receiver, _held: sender.open(),
    "prepare": lambda sender, _receiver, _held: sender.prepare(HOT),
    "send": lambda sender, _receiver, _held: sender.send([reference()]),
    "waiting": lambda sender, _receiver, _held: sender.waiting(PLAIN),
    "forget": lambda sender, _receiver, _held: sender.forget(1),
    "check": lambda sender, _receiver, _held: sender.check(),
    "the receiver's open": lambda _sender, receiver, _held: receiver.open([PLAIN]),
    "receive": lambda _sender, receiver, _held: receiver.receive(1, AT_ONCE),
    "acknowledge": lambda _sender, receiver, held: receiver.acknowledge(held),
    "give_back": lambda _sender, receiver, held: receiver.give_back(held),
}


@pytest.mark.parametrize("fault", ["killed", "paused"])
async def test_whatever_is_asked_of_a_server_that_is_gone_or_hangs_ends_in_time_and_open_works_again(
    stage: Stage, fault: str
) -> None:
    sides = [(call, await stage.sender(PLAIN), await stage.receiver(PLAIN, name=name)) for name, call in CALLS.items()]
    await sides[0][1].send([reference()])
    held = await sides[0][2].receive(1, PATIENTLY)
    stage.server.kill() if fault == "killed" else stage.server.pause()
    for call, sender, receiver in sides:
        _answer_within(0.3, sender, receiver)
        began = time.monotonic()
        with pytest.raises(BrokerLostError) as lost:
            await call(sender, receiver, held)
        assert time.monotonic() - began < 3.0, "the answer's time, the second look, and a slow machine"
        assert stage.server.password not in str(lost.value)
        with pytest.raises(BrokerLostError):
            await call(sender, receiver, held)
    stage.server.restore()
    for _, sender, receiver in sides:
        _answer_within(20.0, sender, receiver)
        await sender.open()
        await receiver.open([PLAIN])
        if fault == "killed":
            assert await sender.waiting(PLAIN) == 1, "it has kept what it had taken"
    # One that was paused has heard what was asked meanwhile, and does it when nobody waits for it any more.
    _, sender, receiver = sides[-1]
    await sender.send([sent := reference()])
    received: list[Received] = []
    while sent not in references_of(received):
        received = await receiver.receive(10, PATIENTLY)


def _answer_within(seconds: float, sender: RedisSender, receiver: RedisReceiver) -> None:
    """Only while the fault lasts: a slow machine is none."""
    for line in (sender._line, receiver._in, receiver._out):
        line._answer = seconds


async def test_a_receiver_that_waits_learns_at_once_that_the_server_is_gone(stage: Stage) -> None:
    receiver = await stage.receiver(PLAIN)
    waiting = asyncio.create_task(receiver.receive(1, PATIENTLY))
    await stage.until_somebody_waits()
    stage.server.kill()
    with pytest.raises(BrokerLostError):
        await waiting


async def test_a_look_that_was_left_behind_ends_without_a_complaint(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waited for it was cancelled, then the server went: nobody is there to retrieve what it raised."""
    receiver = await stage.receiver(PLAIN)
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(receiver.receive(1, PATIENTLY))
    await stage.until_somebody_waits()
    waiting.cancel()
    await asyncio.wait({waiting})
    left_behind = asyncio.all_tasks() - before
    assert left_behind
    stage.server.kill()
    await asyncio.wait(left_behind)
    await receiver.close()
    del waiting, left_behind
    gc.collect()
    assert "never retrieved" not in caplog.text


async def test_a_receive_that_goes_on_while_it_is_opened_anew_is_lost_and_not_cancelled(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    waiting = asyncio.create_task(receiver.receive(1, PATIENTLY))
    await stage.until_somebody_waits()
    await receiver.open([PLAIN])
    with pytest.raises(BrokerLostError):
        await waiting
    await sender.send([reference()])
    assert len(await receiver.receive(1, PATIENTLY)) == 1


async def test_a_server_that_was_restarted_empty_is_prepared_again(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN), await stage.receiver(PLAIN)
    await sender.send([reference()])
    held = await receiver.receive(1, PATIENTLY)
    stage.server.start(empty=True)
    with pytest.raises(BrokerLostError):
        await sender.waiting(PLAIN)
    await sender.open()
    await receiver.open([PLAIN])
    assert await sender.waiting(PLAIN) == 0
    await receiver.acknowledge(held)
    await receiver.give_back(held)
    await sender.prepare(PLAIN)
    sent = reference()
    await sender.send([sent])
    assert references_of(await receiver.receive(1, PATIENTLY)) == [sent]


async def test_a_server_that_is_emptied_under_its_clients_is_prepared_again_by_the_receiver(stage: Stage) -> None:
    sender, receiver = await stage.sender(PLAIN, HOT), await stage.receiver(PLAIN, HOT)
    await sender.send([reference()])
    held = await receiver.receive(1, PATIENTLY)
    waiting = asyncio.create_task(receiver.receive(1, PATIENTLY))
    await stage.until_somebody_waits()
    stage.server.command("FLUSHALL")
    await receiver.give_back(held)
    sent = reference(HOT)
    await sender.send([sent])  # nobody has told the sender
    assert references_of(await waiting) == [sent]


async def test_a_server_killed_while_it_works_keeps_no_message_that_nobody_is_ever_handed(stage: Stage) -> None:
    soon = timedelta(seconds=0.2)
    sender = await stage.sender(PLAIN, room=1000)
    receiver = await stage.receiver(PLAIN, redeliver_after=soon)
    await sender.send([reference() for _ in range(300)])

    async def acknowledge_one_by_one() -> None:
        for each in await receiver.receive(300, PATIENTLY):
            await receiver.acknowledge([each])
            if each.reference == halfway:
                stage.server.kill()

    halfway = reference()
    await sender.send([halfway, *(reference() for _ in range(150))])
    with pytest.raises(BrokerLostError):
        await asyncio.gather(acknowledge_one_by_one(), acknowledge_one_by_one())
    stage.server.start()
    await sender.open()
    await receiver.open([PLAIN])
    assert await sender.waiting(PLAIN) > 0
    while await sender.waiting(PLAIN):
        await receiver.acknowledge(await receiver.receive(100, PATIENTLY))


def test_the_server_of_the_tests_dies_with_whoever_started_it(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tests.integration.relay.redis_server import running_redis\n"
        "print(running_redis().port, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # nobody will be left to clear away
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
            parent.kill()
            try:
                heard = line.recv(1)
            except ConnectionResetError:
                heard = b""
        assert heard == b"", "it hangs up by dying"
