"""A wire between a driver and the server that counts round trips: how often the client spoke after being answered."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit


class Wire:
    """Forwards one connection at a time's worth of bytes in both directions, in a thread of its own."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._client_has_the_word: dict[socket.socket, bool] = {}
        self.round_trips = 0
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where drivers connect to."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop forwarding and close what is open."""
        self._stop_writer.send(b".")
        self._thread.join()
        for each in (*self._pairs, self._listener, self._stop_reader, self._stop_writer):
            each.close()

    def _forward(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._stop_reader, *self._pairs], [], [])
            if self._stop_reader in ready:
                return
            for source in ready:
                if source is self._listener:
                    self._accept()
                elif source in self._pairs:
                    self._pass_on(source)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        self._pairs |= {client: server, server: client}
        self._clients.add(client)
        self._client_has_the_word[client] = True

    def _pass_on(self, source: socket.socket) -> None:
        other = self._pairs[source]
        try:
            data = source.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            for each in (source, other):
                self._pairs.pop(each, None)
                each.close()
            return
        if source in self._clients:
            self.round_trips += self._client_has_the_word[source]
            self._client_has_the_word[source] = False
        else:
            self._client_has_the_word[other] = True
        other.sendall(data)


@contextmanager
def counted(dsn: str) -> Iterator[tuple[Wire, str]]:
    """A wire to this server (a DSN over TCP), and the DSN that leads through it."""
    parts = urlsplit(dsn)
    wire = Wire(parts.hostname or "127.0.0.1", parts.port or 5432)
    credentials = parts.netloc.rpartition("@")[0]
    try:
        yield wire, urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{wire.port}"))
    finally:
        wire.close()
