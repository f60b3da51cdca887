"""Whoever opens a connection to NATS can be stopped, also at the moment in which the server answers.

Up to Python 3.11 `asyncio.wait_for`, which the driver waits with, takes no notice of a cancellation that comes
together with what it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings
from spectral.core.events.infrastructure.nats.connection import Connection

_TURNS = 16  # of the loop, from the server's last word until whoever waits for it has got it, and some more

_WELCOME = b"PONG\r\n"
_REFUSAL = b"-ERR 'Authorization Violation'\r\n"


class Doorkeeper:
    """Says what a NATS server says to one who comes in, calls `answered` with its last word, and sees him go."""

    def __init__(self, answer: bytes, answered: Callable[[], None]) -> None:
        self._answer = answer
        self._answered = answered
        self.gone = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576, "auth_required": true}\r\n')
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"PING\r\n")
            writer.write(self._answer)
            self._answered()
            await reader.read()
        writer.transport.abort()
        self.gone.set()


@pytest.mark.parametrize("answer", [_WELCOME, _REFUSAL], ids=["welcome", "refusal"])
@pytest.mark.parametrize("turns", range(_TURNS))
async def test_one_who_is_stopped_while_he_connects_stops_and_leaves(answer: bytes, turns: int) -> None:
    loop = asyncio.get_running_loop()
    stopped = False

    def stop_after(more: int) -> None:
        nonlocal stopped
        if more:
            loop.call_soon(stop_after, more - 1)
        else:
            stopped = opening.cancel()

    doorkeeper = Doorkeeper(answer, lambda: stop_after(turns))
    server = await asyncio.start_server(doorkeeper, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    settings = BrokerSettings(kind=BrokerKind.NATS, url=f"nats://ada:secret@{host}:{port}")
    opening = asyncio.create_task(Connection.open(settings, "test"))
    await asyncio.wait({opening})
    if stopped:
        assert opening.cancelled()
    elif answer == _REFUSAL:
        assert isinstance(opening.exception(), BrokerLostError)
    else:
        await opening.result().close()
    async with asyncio.timeout(5):
        await doorkeeper.gone.wait()
    server.close()
    await server.wait_closed()
