"""How the worker is, or the relay, over HTTP. In a thread of its own, so that it answers while the loop is blocked.

    /live     200 unless it is dead: restart it then
    /ready    200 if it takes on work: a worker that is idle, busy or degraded, a relay that is standing or sending
    /health   the same in numbers, as JSON; 503 when dead
    /metrics  for Prometheus, one scrape at a time

Counts and times only, so there is nothing to protect; still it listens on this machine alone unless told otherwise.
Whoever connects and does not get round to asking is hung up on: in time, or when there is no room for others.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spectral.core.events.delivery.health import Health
    from spectral.core.events.relay.health import RelayHealth

    Asked = Callable[[], Health | RelayHealth]
    """How whoever is asked about is now."""

    Accepted = socket.socket | tuple[bytes, socket.socket]
    """What socketserver takes for a request: of TCP it is the connection."""

_SECONDS_FOR_A_REQUEST: Final = 5
_SECONDS_TO_ASK: Final = 5.0
"""From the connection to the end of the request: a byte now and then does not make it longer."""
_AT_ONCE: Final = 32
"""So many connections have a thread."""
_A_MOMENT: Final = 0.1
_JSON: Final = "application/json"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"
_NO_METRICS: Final = "there are no metrics here; pip install 'spectral-events[metrics]' and start it again"


class Address(NamedTuple):
    """Where to listen; port 0 is any that is free."""

    host: str
    port: int


@contextmanager
def health_endpoint(address: Address, health: Asked, metrics: Callable[[], bytes] | None = None) -> Iterator[Address]:
    """Answer while the block runs; gives the address with the port that was taken.

    `metrics` gives the text of a scrape. It may be slow or fail: that is told to whoever scrapes, and to nobody else.

    Raises:
        ConfigurationError: nobody can listen there.
    """
    try:
        server = _Server(address, health, metrics)
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
    request_queue_size = 128

    def __init__(self, address: Address, health: Asked, metrics: Callable[[], bytes] | None) -> None:
        self.health = health
        self.metrics = metrics
        self.scraping = threading.Lock()
        self._room = threading.Semaphore(_AT_ONCE)
        # Until when they may ask, the oldest first: they come one by one.
        self._asking: dict[Accepted, float] = {}
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__(address, _Request)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # not the parent's: it asks the DNS for this machine's name
        self.server_name, self.server_port = "", self.socket.getsockname()[1]

    def process_request(self, request: Accepted, client_address: object) -> None:
        """In a thread, if there is room or somebody who has not asked yet makes room; else whoever came is sent off."""
        if not self._room.acquire(blocking=False):
            self._hang_up(list(self._asking)[:1])
            if not self._room.acquire(timeout=_A_MOMENT):
                self.shutdown_request(request)
                return
        self._asking[request] = time.monotonic() + _SECONDS_TO_ASK
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the process has no room for another thread
            self._end(request)
            raise

    def process_request_thread(self, request: Accepted, client_address: object) -> None:
        """See `ThreadingMixIn`."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: Accepted) -> None:
        self.has_asked(request)
        self._room.release()

    def has_asked(self, request: Accepted) -> None:
        """What is left is to answer, which has its own time."""
        self._asking.pop(request, None)

    def service_actions(self) -> None:
        """Called about every tenth of a second."""
        now = time.monotonic()
        self._hang_up([request for request, until in list(self._asking.items()) if until < now])

    def _hang_up(self, requests: list[Accepted]) -> None:
        for request in requests:
            self._asking.pop(request, None)
            if isinstance(request, socket.socket):
                with suppress(OSError):  # it has hung up itself
                    request.shutdown(socket.SHUT_RDWR)  # its thread notices

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
        self.server.has_asked(self.connection)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer_scrape(with_body=with_body)
            return
        health = self.server.health()
        good = {"/live": health.is_live, "/ready": health.is_ready, "/health": health.is_live}
        if path not in good:
            document: dict[str, object] = {"error": "try /live, /ready, /health or /metrics"}
            self._send(HTTPStatus.NOT_FOUND, _as_json(document), with_body=with_body)
            return
        status = HTTPStatus.OK if good[path] else HTTPStatus.SERVICE_UNAVAILABLE
        shown: dict[str, object] = asdict(health) if path == "/health" else {"state": health.state}
        self._send(status, _as_json(shown), with_body=with_body)

    def _answer_scrape(self, *, with_body: bool) -> None:
        metrics, scraping = self.server.metrics, self.server.scraping
        if metrics is None:
            self._send(HTTPStatus.NOT_FOUND, _as_json({"error": _NO_METRICS}), with_body=with_body)
            return
        # One at a time: if one hangs, the next ones do not pile up behind it as threads that hang as well.
        if not scraping.acquire(timeout=_SECONDS_FOR_A_REQUEST):
            document: dict[str, object] = {"error": "another scrape is still being answered"}
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, _as_json(document), with_body=with_body)
            return
        try:
            text = metrics()
        except Exception as error:  # noqa: BLE001  a number that cannot be read is no reason to end anything
            failed: dict[str, object] = {"error": f"the metrics could not be read ({type(error).__name__})"}
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, _as_json(failed), with_body=with_body)
            return
        finally:
            scraping.release()
        self._send(HTTPStatus.OK, text, _EXPOSITION, with_body=with_body)

    def _send(self, status: HTTPStatus, body: bytes, kind: str = _JSON, *, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _as_json(document: dict[str, object]) -> bytes:
    return json.dumps(document).encode() + b"\n"
