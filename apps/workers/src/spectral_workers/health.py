"""How the worker is, over HTTP. In a thread of its own, so that it answers while a handler blocks the event loop.

    /live     200 unless the worker is dead: restart it then
    /ready    200 if it takes on work: idle, busy or degraded
    /health   the same in numbers, as JSON; 503 when dead

Counts and times only, so there is nothing to protect; still it listens on this machine alone unless told otherwise.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spectral.core.events.delivery.health import Health

_SECONDS_FOR_A_REQUEST: Final = 5


class Address(NamedTuple):
    """Where to listen; port 0 is any that is free."""

    host: str
    port: int


@contextmanager
def health_endpoint(address: Address, health: Callable[[], Health]) -> Iterator[Address]:
    """Answer while the block runs; gives the address with the port that was taken.

    Raises:
        ConfigurationError: nobody can listen there.
    """
    try:
        server = _Server(address, health)
    except OSError as error:
        raise ConfigurationError(
            f"health cannot be served on {address.host}, port {address.port} ({error.strerror}); "
            "choose others with --health-port and --health-host"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="spectral-health", daemon=True)
    thread.start()
    try:
        yield Address(address.host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, health: Callable[[], Health]) -> None:
        self.health = health
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # not the parent's: it asks the DNS for this machine's name
        self.server_name, self.server_port = "", self.socket.getsockname()[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up in the middle is its own business."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS_FOR_A_REQUEST

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def version_string(self) -> str:
        return "spectral"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
        """Probes come every few seconds; they are no news."""

    def _answer(self, *, with_body: bool) -> None:
        health = self.server.health()
        good = {"/live": health.is_live, "/ready": health.is_ready, "/health": health.is_live}
        path = self.path.partition("?")[0]
        if path not in good:
            self._send(HTTPStatus.NOT_FOUND, {"error": "try /live, /ready or /health"}, with_body=with_body)
            return
        status = HTTPStatus.OK if good[path] else HTTPStatus.SERVICE_UNAVAILABLE
        shown: dict[str, object] = asdict(health) if path == "/health" else {"state": health.state}
        self._send(status, shown, with_body=with_body)

    def _send(self, status: HTTPStatus, document: dict[str, object], *, with_body: bool) -> None:
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)
