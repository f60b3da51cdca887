"""A wire between workers and the server that can be frozen, cut, made to swallow and made to refuse.

Every connection is known by its `application_name`, so that a fault can be the ear's alone. A frozen connection stays
open on both sides and nothing comes through: to either kernel it looks alive, which is what a half-open one looks like.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum

from psycopg import conninfo

_NOTIFICATION = ord("A")
_HEADER = 5  # of a message: its type, and its length without the type


class Direction(Enum):
    """Which way bytes go."""

    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


@dataclass(eq=False)
class Connection:
    """One connection through the wire."""

    client: socket.socket
    server: socket.socket
    application: str = ""
    frozen: bool = False
    swallows: set[Direction] = field(default_factory=set)
    swallows_notifications: bool = False
    swallowed: int = 0
    closed: bool = False

    def cut(self) -> None:
        self.closed = True
        for each in (self.client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Wire:
    """Forwards connections to one server; two threads for each, one for each direction."""

    def __init__(self, dsn: str) -> None:
        self._parameters = conninfo.conninfo_to_dict(dsn)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._connections: list[Connection] = []
        self._changed = threading.Condition()
        self._refuses = False
        self._swallows_notifications = False
        self._frozen_at_birth: set[str] = set()
        self._closed = False
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def dsn(self) -> str:
        """The way to the server that leads through the wire."""
        through = {"host": "127.0.0.1", "port": str(self._listener.getsockname()[1])}
        # Encrypted, the wire could not read along.
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        return conninfo.make_conninfo("", **(self._parameters | through | plain))

    def connections(self, application: str = "") -> list[Connection]:
        """Those that are open and whose application name has this in it."""
        with self._changed:
            return [each for each in self._connections if not each.closed and application in each.application]

    def wait_for(self, application: str, seconds: float = 20) -> Connection:
        """Wait until there is a connection of this name."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.connections(application), seconds), f"no {application!r} came"
            return self.connections(application)[-1]

    def freeze(self, application: str = "", *, new: bool = False) -> None:
        """Let nothing more through on the connections of this name, and if told so on those that are yet to come."""
        if new:
            self._frozen_at_birth.add(application)
        self._set(application, frozen=True)

    def thaw(self, application: str = "") -> None:
        """Let go on what was frozen, with what has piled up meanwhile."""
        self._frozen_at_birth = {each for each in self._frozen_at_birth if application not in each}
        self._set(application, frozen=False)

    def cut(self, application: str = "") -> int:
        """Close the connections of this name on both sides; answers how many."""
        found = self.connections(application)
        for each in found:
            each.cut()
        with self._changed:
            self._changed.notify_all()
        return len(found)

    def swallow(self, direction: Direction, application: str = "") -> None:
        """Lose everything that goes this way on the connections of this name, for as long as they live."""
        for each in self.connections(application):
            each.swallows.add(direction)

    def swallow_notifications(self, *, on: bool = True) -> None:
        """Lose every notification, of connections to come as well."""
        self._swallows_notifications = on
        for each in self.connections():
            each.swallows_notifications = on

    def swallowed_notifications(self) -> int:
        """How many were lost so far."""
        with self._changed:
            return sum(each.swallowed for each in self._connections)

    def refuse(self, *, on: bool = True) -> None:
        """Close new connections as they come."""
        self._refuses = on

    def heal(self) -> None:
        """End every fault; what has lost bytes cannot be mended and is cut."""
        self.refuse(on=False)
        self.swallow_notifications(on=False)
        for each in self.connections():
            if each.swallows:
                each.cut()
        self.thaw()

    def close(self) -> None:
        """Cut everything and end the threads."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._threads[0].join(10)
        for thread in self._threads:
            thread.join(10)

    def _set(self, application: str, *, frozen: bool) -> None:
        with self._changed:
            for each in self.connections(application):
                each.frozen = frozen
            self._changed.notify_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses or self._closed:
                client.close()
                continue
            try:
                server = self._connect()
            except OSError:
                client.close()  # the server is down: so is the wire
                continue
            connection = Connection(client, server, swallows_notifications=self._swallows_notifications)
            with self._changed:
                self._connections.append(connection)
            ends = threading.Barrier(2)
            for pump in (self._pump_to_server, self._pump_to_client):
                thread = threading.Thread(target=self._until_closed, args=(pump, connection, ends), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _until_closed(
        self, pump: Callable[[Connection], None], connection: Connection, ends: threading.Barrier
    ) -> None:
        with suppress(OSError):
            pump(connection)
        # Of a frozen connection the other side does not even hear that it was closed.
        self._wait_while_frozen(connection)
        connection.cut()
        with self._changed:
            self._changed.notify_all()
        # The last one out closes: a socket's number must not be given away while the other thread still uses it.
        with suppress(threading.BrokenBarrierError):
            if ends.wait(30) == 0:
                connection.client.close()
                connection.server.close()

    def _connect(self) -> socket.socket:
        host, port = str(self._parameters.get("host", "127.0.0.1")), int(self._parameters.get("port") or 5432)
        if host.startswith("/"):
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(os.path.join(host, f".s.PGSQL.{port}"))  # noqa: PTH118  a socket's address, no path
            except OSError:
                server.close()
                raise
            return server
        return socket.create_connection((host, port), timeout=None)

    def _pump_to_server(self, connection: Connection) -> None:
        first = connection.client.recv(65536)
        with self._changed:
            connection.application = _application_of(first)
            connection.frozen = any(each in connection.application for each in self._frozen_at_birth)
            self._changed.notify_all()
        data = first
        while data:
            self._pass(connection, Direction.TO_SERVER, data)
            data = connection.client.recv(65536)

    def _pump_to_client(self, connection: Connection) -> None:
        unread = b""
        while data := connection.server.recv(65536):
            # Whole messages only, so that a notification can be taken out of the stream at any time.
            messages, unread = _split(unread + data)
            kept = [each for each in messages if not self._is_lost(connection, each)]
            self._pass(connection, Direction.TO_CLIENT, b"".join(kept))

    def _is_lost(self, connection: Connection, message: bytes) -> bool:
        lost = connection.swallows_notifications and message[0] == _NOTIFICATION
        connection.swallowed += lost
        return lost

    def _wait_while_frozen(self, connection: Connection) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not connection.frozen or connection.closed)

    def _pass(self, connection: Connection, direction: Direction, data: bytes) -> None:
        self._wait_while_frozen(connection)
        if direction not in connection.swallows:
            (connection.server if direction is Direction.TO_SERVER else connection.client).sendall(data)


def _application_of(startup: bytes) -> str:
    """The application name in a startup packet: its length and version, then names and values ended by zeros."""
    words = startup[8:].split(b"\0")
    values = dict(zip(words[::2], words[1::2], strict=False))
    return values.get(b"application_name", b"").decode(errors="replace")


def _split(data: bytes) -> tuple[list[bytes], bytes]:
    """The whole messages in these bytes, and what is left over."""
    messages: list[bytes] = []
    while len(data) >= _HEADER:
        end = 1 + int(struct.unpack_from(">i", data, 1)[0])
        if len(data) < end:
            break
        messages.append(data[:end])
        data = data[end:]
    return messages, data


@contextmanager
def wired(dsn: str) -> Iterator[Wire]:
    """A wire to the server of this DSN."""
    wire = Wire(dsn)
    try:
        yield wire
    finally:
        wire.close()
