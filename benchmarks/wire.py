"""Counts round trips: a proxy on a Unix socket that looks at the type of every message a client sends.

A client waits for an answer after a Query, a Sync or a Flush, so their number is the number of round trips it would
make on a real network. Used in a round of its own, never in one that is timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_AWAITED: Final = (b"Q", b"S", b"H")
_LENGTH: Final = 4
_TYPED: Final = 1
_NEGOTIATIONS: Final = frozenset({80877103, 80877104})  # SSL and GSS: asked before the startup message, answered alone
_PIECE: Final = 65_536


@dataclass(slots=True)
class Frames:
    """Cuts what a client sends into messages and counts their types. The startup message has none."""

    counts: Counter[bytes] = field(default_factory=Counter[bytes])
    _pending: bytearray = field(default_factory=bytearray)
    _started: bool = False

    def feed(self, data: bytes) -> None:
        """More of the stream."""
        self._pending += data
        while self._take():
            pass

    def _take(self) -> bool:
        head = _TYPED if self._started else 0
        if len(self._pending) < head + _LENGTH:
            return False
        size = head + int.from_bytes(self._pending[head : head + _LENGTH])
        if len(self._pending) < size:
            return False
        if self._started:
            self.counts[bytes(self._pending[:_TYPED])] += 1
        else:
            self._started = int.from_bytes(self._pending[_LENGTH : 2 * _LENGTH]) not in _NEGOTIATIONS
        del self._pending[:size]
        return True


class CountingProxy:
    """Stands before a server while in use; runs in a thread of its own."""

    def __init__(self, dsn: str) -> None:
        query = parse_qs(urlsplit(dsn).query)
        self._socket = f".s.PGSQL.{query['port'][0]}"
        self._server = Path(query["host"][0])
        self._dsn = dsn
        self._counts: Counter[bytes] = Counter()
        self._ready = threading.Event()
        self._directory = tempfile.TemporaryDirectory(prefix="bench-wire-")

    @property
    def dsn(self) -> str:
        """The way through the proxy."""
        return self._dsn.replace(str(self._server), self._directory.name)

    @property
    def round_trips(self) -> int:
        """How many answers clients have waited for so far."""
        return sum(self._counts[kind] for kind in _AWAITED)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=asyncio.run, args=[self._run()], name="bench-wire", daemon=True)
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._directory.cleanup()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_unix_server(self._serve, Path(self._directory.name) / self._socket)
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        server, questions = await asyncio.open_unix_connection(self._server / self._socket)
        frames = Frames(self._counts)
        with contextlib.suppress(asyncio.CancelledError):  # the end of the proxy is no error
            await asyncio.gather(_pump(client, questions, frames), _pump(server, answers, None))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, frames: Frames | None) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_PIECE):
            if frames is not None:
                frames.feed(data)
            sink.write(data)
            await sink.drain()
    sink.close()
