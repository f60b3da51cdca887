"""Reports that Sentry loses by itself are counted with what else its outlet has missed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope, Item
from sentry_sdk.transport import Transport

from spectral.core.events.infrastructure.observability.health_samples import trouble_samples
from spectral.core.events.infrastructure.observability.sentry import lost_reports
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.metrics import PROBE_DROPPED, PROBE_FAILED
from spectral_workers.measured import troubles
from tests.unit.sentry_stage import client_of, finished, sentry_everywhere, tool

PATIENCE = 10.0


class Losing(Transport):
    """Loses every event for this reason, and keeps what it is told of that."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason
        self.told: list[str] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            self.record_lost_event(self._reason, item=item)

    def record_lost_event(
        self, reason: str, data_category: object = None, item: Item | None = None, *, quantity: int = 1
    ) -> None:
        del data_category, item, quantity
        self.told.append(reason)


@pytest.fixture
def since() -> Callable[[], tuple[int, int]]:
    """How many were dropped, and how many failed, in this test; of the process they are counted for good."""
    dropped, failed = lost_reports()
    return lambda: (lost_reports()[0] - dropped, lost_reports()[1] - failed)


Since = Callable[[], tuple[int, int]]


@pytest.mark.parametrize(
    ("reason", "counted"),
    [("queue_overflow", (2, 0)), ("ratelimit_backoff", (2, 0)), ("network_error", (0, 2)), ("send_error", (0, 2))],
)
def test_what_the_transport_loses_is_counted_and_the_transport_still_knows(
    reason: str, counted: tuple[int, int], since: Since
) -> None:
    transport = Losing(reason)
    watches = [Watch({"sentry": tool()}) for _ in range(2)]  # that follow the same transport
    with sentry_everywhere(transport):
        for watch in watches:
            watch.tell(finished())
            assert watch.flush(PATIENCE)
    assert since() == counted
    assert transport.told == [reason] * 2


def test_a_worker_shows_it_among_its_troubles(since: Since) -> None:
    watch = Watch({"sentry": tool()})
    before = troubles(watch)["sentry"]
    for reason in ("queue_overflow", "network_error"):
        with sentry_everywhere(Losing(reason)):
            watch.tell(finished(event_type=f"worlds.scan.{reason}"))
            assert watch.flush(PATIENCE)
    assert since() == (1, 1)
    assert troubles(watch)["sentry"] == (before[0] + 1, before[1] + 1)
    shown = {(each.metric, each.labels): each.value for each in trouble_samples(troubles(watch))}
    assert shown[PROBE_DROPPED, ("sentry",)] == before[0] + 1
    assert shown[PROBE_FAILED, ("sentry",)] == before[1] + 1


def test_what_the_program_reports_itself_or_throws_away_is_not_counted(since: Since) -> None:
    watch, transport = Watch({"sentry": tool()}), Losing("queue_overflow")
    with sentry_everywhere(transport, before_send=lambda event, _hint: event if event.get("message") else None):
        watch.tell(finished())
        assert watch.flush(PATIENCE)
        sentry_sdk.capture_message("of its own")
    assert transport.told == ["before_send", "queue_overflow"]
    assert since() == (0, 0)


@pytest.mark.parametrize("odd", [None, object(), type("Slotted", (), {"__slots__": (), "record_lost_event": print})()])
def test_a_transport_that_cannot_be_followed_is_left_alone(odd: object, since: Since) -> None:
    watch = Watch({"sentry": tool()})
    with sentry_everywhere(Losing("queue_overflow")):
        client: Any = sentry_sdk.get_client()
        client.transport, real = odd, client.transport
        client.capture_event = real.told.append
        watch.tell(finished())
        assert watch.flush(PATIENCE)
    assert len(real.told) == 1
    assert (watch.troubles()["sentry"], since()) == ((0, 0), (0, 0))


# with the SDK's own transport


def sent_to(address: str, notes: int = 1) -> None:
    """Have this many dead letters reported there, and wait until the transport has done with them."""
    client = client_of(None, dsn=f"http://key@{address}/1", keep_alive=False)
    scope = sentry_sdk.get_global_scope()
    scope.set_client(client)
    try:
        watch = Watch({"sentry": tool()})
        for number in range(notes):
            watch.tell(finished(event_type=f"worlds.scan.x{number}"))
            assert watch.flush(PATIENCE)
            client.flush(PATIENCE)
    finally:
        scope.set_client(None)
        scope.clear_breadcrumbs()
        client.close(PATIENCE)


def test_a_network_that_is_away_is_counted(since: Since) -> None:
    with socket.socket() as nobody:  # bound, so that nobody else is; without a listener, so that it refuses
        nobody.bind(("127.0.0.1", 0))
        sent_to(f"127.0.0.1:{nobody.getsockname()[1]}")
    assert since() == (0, 1)


def test_a_limit_that_the_server_sets_is_counted(since: Since) -> None:
    class Limits(BaseHTTPRequestHandler):
        """Takes one report and wants no more for a minute."""

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("x-sentry-rate-limits", "60:error:organization")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Limits) as server:
        serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            sent_to(f"127.0.0.1:{server.server_port}", notes=3)
        finally:
            server.shutdown()
            serving.join(PATIENCE)
    assert since() == (2, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # from 3.12 on
def test_the_child_of_a_fork_has_lost_none(since: Since) -> None:
    watch = Watch({"sentry": tool()})
    with sentry_everywhere(Losing("network_error")):
        watch.tell(finished())
        assert watch.flush(PATIENCE)
    child = os.fork()
    if child == 0:
        os._exit(0 if lost_reports() == (0, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert since() == (0, 1)
