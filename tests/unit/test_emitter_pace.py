"""How often the database is measured: every 30 seconds, by the emitter of itself and by the one of a worker."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Self

import pytest

from spectral.core.events import DatabaseSettings, WorkerSettings
from spectral.core.events.infrastructure.observability.log_writer import process_logger
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral_workers import process
from spectral_workers.emitter import EVERY, Emitter
from spectral_workers.process import Order, _Watched, _work
from tests.unit.log_notes import WHO

DATABASE = DatabaseSettings(dsn="postgresql://127.0.0.1:1/none")
LOOKS = 50
LOG = process_logger("spectral.worker", WHO).bind(worker="worker-1")


class EnoughError(Exception):
    """As many pauses as the test wants."""


async def pauses(emitter: Emitter, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it waits before it first looks, and between its looks, without waiting for any of it."""
    asked: list[float] = []

    async def serve_a_term() -> None:
        """Whoever is not elected has nothing to do until the next time."""

    async def sleep(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) > LOOKS:
            raise EnoughError

    with monkeypatch.context() as patched:
        patched.setattr(emitter, "_serve_a_term", serve_a_term)
        patched.setattr(asyncio, "sleep", sleep)
        with pytest.raises(EnoughError):
            await emitter._work()
    return asked


def assert_half_minutes(asked: list[float]) -> None:
    first, *between = asked
    assert 0 <= first <= 3, "soon, but not all workers of a start at once"
    assert len(between) == LOOKS
    assert all(27 <= seconds <= 33 for seconds in between)


async def test_it_looks_every_thirty_seconds_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timedelta(seconds=30) == EVERY
    assert_half_minutes(await pauses(Emitter(DATABASE, LOG), monkeypatch))
    told = await pauses(Emitter(DATABASE, LOG, timedelta(seconds=10)), monkeypatch)
    assert all(9 <= seconds <= 11 for seconds in told[1:])


async def test_a_worker_does_not_tell_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Emitter] = []

    class Unstarted(Emitter):
        """A worker's, without its thread."""

        def __enter__(self) -> Self:
            made.append(self)
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing was begun."""

    class Idle:
        """A listener, or what tells it to stop."""

        async def run(self, _until: object) -> None:
            """There is nothing to do."""

        def tell(self, _stop: object) -> None:
            """Nobody will."""

    idle: Any = Idle()
    monkeypatch.setattr(process, "Emitter", Unstarted)
    monkeypatch.setattr(process, "worker", lambda *_consumers, **_options: idle)
    order = Order(apps=(), settings=WorkerSettings(generation=1, name="worker-1"), database=DATABASE, environ={})
    assert await _work(_Watched(order, WHO, Watch({}), Recorder()), (), idle) == 0
    (emitter,) = made
    assert_half_minutes(await pauses(emitter, monkeypatch))
