"""The health port in a crowd: whoever does not get round to asking is hung up on, whoever asks is answered."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from spectral_workers import health as served_health
from spectral_workers.health import Address, health_endpoint
from tests.unit.test_worker_process import IDLE, fetch

ANY = Address("127.0.0.1", 0)
PATIENCE = 60


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has hung up."""
    connection.settimeout(PATIENCE)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_byte_now_and_then_does_not_keep_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_health, "_SECONDS_TO_ASK", 0.3)
    with health_endpoint(ANY, lambda: IDLE) as served, socket.create_connection(served) as slow:
        since = time.monotonic()
        slow.sendall(b"GET /live HTTP/1.1\r\nX: ")
        # Many times as often as the time for a single byte would ask for.
        while not select.select([slow], [], [], 0.05)[0]:
            assert time.monotonic() - since < PATIENCE
            slow.send(b"x")
        assert is_closed(slow)
        assert fetch(served, "/live")[0].status == 200


def test_however_many_connect_and_say_nothing_threads_are_few_and_whoever_asks_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(served_health, "_AT_ONCE", 4)
    monkeypatch.setattr(served_health, "_SECONDS_TO_ASK", 3600)
    before = threading.active_count()
    with health_endpoint(ANY, lambda: IDLE) as served, ExitStack() as crowd:
        connections = [crowd.enter_context(socket.create_connection(served)) for _ in range(40)]
        for connection in connections:
            connection.sendall(b"GET /li")
        assert fetch(served, "/live")[0].status == 200
        assert all(map(is_closed, connections[:30])), "the oldest made room"
        assert threading.active_count() <= before + 1 + 4
        assert fetch(served, "/metrics")[0].status == 404


def test_if_nobody_can_make_room_whoever_comes_is_sent_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_health, "_AT_ONCE", 1)
    asked, may_end = threading.Event(), threading.Event()

    def metrics() -> bytes:
        asked.set()
        assert may_end.wait(PATIENCE)
        return b"spectral_emitter_up 1\n"

    with health_endpoint(ANY, lambda: IDLE, metrics) as served, ExitStack() as open_ones:
        first = open_ones.enter_context(socket.create_connection(served))
        first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert asked.wait(PATIENCE)
        assert is_closed(open_ones.enter_context(socket.create_connection(served)))
        may_end.set()
        first.settimeout(PATIENCE)
        assert first.makefile("rb").read().endswith(b"spectral_emitter_up 1\n")
