"""The doctor behind a pooler in transaction mode: a real one in its ways, though a small one.

No pooler comes with the test environment, so `Pooler` is one: it speaks the server's protocol to its clients, keeps a
few sessions of the real server, and lends one for each transaction, as pgbouncer does: the one that was given back last
(what makes a pooler hard to see on an idle system), or the others in turn (`server_round_robin`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from spectral.core.operations.doctor import Level, examine, wires
from tests.faults.wire import wired

_ENCRYPTION_REQUESTS = {80877103, 80877104}
_OPTIONS = ("server_version", "client_encoding", "standard_conforming_strings", "integer_datetimes", "DateStyle")
_ENDS_A_TURN = b"QS"  # a simple query, a sync


class Lent:
    """A session of the real server. libpq opens it, so that any login works; then its socket is ours."""

    def __init__(self, dsn: str) -> None:
        self.opened = psycopg.connect(dsn, autocommit=True)

    async def start(self) -> None:
        own = socket.socket(fileno=os.dup(self.opened.fileno()))
        own.setblocking(False)  # noqa: FBT003  its own signature
        self.reader, self.writer = await asyncio.open_connection(sock=own)

    def close(self) -> None:
        self.writer.close()
        self.opened.close()


class Pooler:
    """Lends each transaction of its clients a session of the server."""

    def __init__(self, dsn: str, size: int, *, in_turn: bool) -> None:
        self._dsn = make_conninfo(dsn, sslmode="disable")
        self._size = size
        self._next = 0 if in_turn else -1
        self._free: list[Lent] = []
        self._all: list[Lent] = []
        self._given_back = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it leaves."""
        try:
            await self._greet(reader, writer)
            await self._take_turns(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # it has left
        finally:
            writer.close()

    async def close(self) -> None:
        for lent in self._all:
            lent.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            (code,) = struct.unpack("!i", (await reader.readexactly(length - 4))[:4])
            if code not in _ENCRYPTION_REQUESTS:
                break
            writer.write(b"N")
        writer.write(_message(b"R", struct.pack("!i", 0)))
        async with self._borrowed() as lent:
            known = lent.opened.pgconn
            for option in _OPTIONS:
                value = known.parameter_status(option.encode()) or b""
                writer.write(_message(b"S", option.encode() + b"\0" + value + b"\0"))
        writer.write(_message(b"K", struct.pack("!ii", 1_000_000 + id(writer) % 1_000_000, 0)))  # nobody's
        writer.write(_message(b"Z", b"I"))

    async def _take_turns(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            turn = await _read_turn(reader)
            if turn is None:
                return
            async with self._borrowed() as lent:
                while await _answer(lent, turn, writer) != b"I":  # the transaction is open: the session stays with it
                    turn = await _read_turn(reader)
                    if turn is None:
                        await _answer(lent, _message(b"Q", b"rollback\0"), None)
                        return

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[Lent]:
        async with self._given_back:
            if not self._free and len(self._all) < self._size:
                lent = Lent(self._dsn)
                await lent.start()
                self._all.append(lent)
                self._free.append(lent)
            await self._given_back.wait_for(lambda: self._free)
            lent = self._free.pop(self._next)
        try:
            yield lent
        finally:
            async with self._given_back:
                self._free.append(lent)
                self._given_back.notify_all()


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
    return head[:1], head + body


async def _read_turn(reader: asyncio.StreamReader) -> bytes | None:
    """Everything a client says before it waits for an answer; none when it says goodbye."""
    said = b""
    while True:
        kind, message = await _read_message(reader)
        if kind == b"X":
            return None
        said += message
        if kind in _ENDS_A_TURN:
            return said


async def _answer(lent: Lent, turn: bytes, writer: asyncio.StreamWriter | None) -> bytes:
    """Ask the server, pass on what it says; answers in which state of a transaction that left the session."""
    lent.writer.write(turn)
    while True:
        kind, message = await _read_message(lent.reader)
        if writer is not None:
            writer.write(message)
        if kind == b"Z":
            return message[-1:]


@asynccontextmanager
async def pooled(dsn: str, size: int = 3, *, in_turn: bool = False) -> AsyncIterator[str]:
    """A pooler in front of this database; answers the way through it."""
    pooler = Pooler(dsn, size, in_turn=in_turn)
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield make_conninfo(dsn, host="127.0.0.1", port=port)
    finally:
        server.close()
        await pooler.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is going to come, nobody needs to wait for three seconds."""
    monkeypatch.setattr(wires, "_PATIENCE", 1.0)


@pytest.mark.parametrize(("size", "order"), [(3, "last used first"), (3, "in turn"), (1, "only one")])
async def test_a_pooler_in_transaction_mode_is_seen_though_nobody_else_uses_it(
    database: str, size: int, order: str
) -> None:
    async with pooled(database, size, in_turn=order == "in turn") as way:
        found = await examine(way)
    (finding,) = [each for each in found.findings if each.check == "pooler"]
    assert finding.severity is Level.UNHEALTHY
    assert finding.what == "SPECTRAL_DATABASE_URL leads through a pooler in transaction mode"
    assert finding.fix.startswith("export SPECTRAL_DIRECT_URL=")


async def test_with_a_direct_address_the_pooler_is_worth_a_word_and_the_ear_is_well(database: str) -> None:
    async with pooled(database) as way:
        found = await examine(way, database)
    (finding,) = [each for each in found.findings if each.check == "pooler"]
    assert finding.severity is Level.ATTENTION
    assert "listen" not in {each.check for each in found.findings}


async def test_a_direct_address_that_is_the_poolers_too_is_named(database: str) -> None:
    async with pooled(database) as way:
        found = await examine(database, way)
    (finding,) = [each for each in found.findings if each.check == "pooler"]
    assert (finding.severity, finding.what.split()[0]) == (Level.UNHEALTHY, "SPECTRAL_DIRECT_URL")


async def test_the_way_straight_to_the_server_is_taken_for_what_it_is(database: str) -> None:
    found = await examine(database, database)
    assert {"pooler", "listen"}.isdisjoint({each.check for each in found.findings})


async def test_a_way_on_which_notifications_are_lost_is_found_by_trying(database: str) -> None:
    with wired(database) as wire:
        wire.swallow_notifications()
        found = await examine(database, wire.dsn)
    (finding,) = [each for each in found.findings if each.check == "listen"]
    assert finding.severity is Level.UNHEALTHY
    assert "by SPECTRAL_DIRECT_URL was not heard in time" in finding.what
