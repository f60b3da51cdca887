"""A database that will not let the worker in until somebody acts: it says what to do instead of waiting for ever."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from spectral.core.embedded import with_database
from spectral.core.events import (
    ConfigurationError,
    Consumer,
    DatabaseSettings,
    EventEnvelope,
    SubstrateLostError,
    WorkerSettings,
    WorkerTimes,
)
from spectral.core.events.bootstrap import worker
from spectral.core.events.delivery.claim import Until
from spectral.core.events.delivery.health import State
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.testing import RecordingProbe


def platform() -> Consumer:
    consumer = Consumer("platform")

    @consumer.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope) -> None:
        raise AssertionError(envelope)

    return consumer


async def run(dsn: str) -> None:
    settings, database = WorkerSettings(generation=1), DatabaseSettings(dsn=dsn)
    await worker(platform(), settings=settings, database=database, probe=RecordingProbe()).run(until="once")


async def test_a_database_that_does_not_exist_is_named_as_the_cause(database: str) -> None:
    with pytest.raises(ConfigurationError, match="does not exist; create it"):
        await run(with_database(database, "nowhere_to_be_found"))


async def test_a_login_that_is_refused_is_named_as_the_cause(database: str) -> None:
    parts = urlsplit(database)
    stranger = urlunsplit(parts._replace(netloc="stranger@" + parts.netloc.rpartition("@")[2]))
    with pytest.raises(ConfigurationError, match="refuses this login"):
        await run(stranger)


@pytest.mark.parametrize("until", ["once", "drained"])
async def test_a_worker_that_ends_by_itself_tries_until_its_time_is_up_and_says_what_it_waited_for(
    monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    listener, tries = not_there(monkeypatch, start=0.3)
    with pytest.raises(SubstrateLostError, match=r"not there within 0\.3 s.*no such host.*SPECTRAL_DATABASE_URL"):
        await listener.run(until)
    assert len(tries) >= 2
    assert listener.health().state is State.DEAD


async def test_a_worker_that_is_to_run_goes_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, tries = not_there(monkeypatch, start=0)
    asyncio.get_running_loop().call_later(0.6, listener.stop)
    await listener.run()
    assert len(tries) >= 2
    assert listener.health().state is State.STOPPED


def not_there(monkeypatch: pytest.MonkeyPatch, *, start: float) -> tuple[Listener, list[None]]:
    """A worker that never gets to its database, and how often it tried."""
    tries: list[None] = []

    async def ask(_: object) -> None:
        tries.append(None)
        raise SubstrateLostError("no such host")

    monkeypatch.setattr(PostgresClaims, "live_far_below", ask)
    times = WorkerTimes(start=timedelta(seconds=start), poll_deaf=timedelta(milliseconds=100))
    settings, database = WorkerSettings(generation=1, times=times), DatabaseSettings(dsn="host=nowhere")
    return worker(platform(), settings=settings, database=database, probe=RecordingProbe()), tries


async def test_a_database_without_the_schema_is_told_to_be_migrated(empty_database: str) -> None:
    with pytest.raises(ConfigurationError, match="spectral migrate up"):
        await run(empty_database)


@pytest.mark.parametrize("lacking", ["outbox_deliver_alike", "outbox_set_aside", "worker_quarantine_key"])
async def test_a_schema_that_is_older_than_the_worker_is_refused_before_anything_is_claimed(
    database: str, lacking: str
) -> None:
    """What only some events need would else be missed hours later, by a worker with rows in its hand."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        await connection.execute(f"drop function core.{lacking} cascade".encode())
        with pytest.raises(ConfigurationError, match=f"lacks core.{lacking}; run: spectral migrate up"):
            await run(database)
        cursor = await connection.execute("select count(*) from core.subscriptions")
        assert await cursor.fetchone() == (0,)


async def test_a_retired_generation_is_refused(database: str) -> None:
    settings = WorkerSettings(generation=0)
    with pytest.raises(ConfigurationError, match="generation 0 is retired"):
        await worker(platform(), settings=settings, database=DatabaseSettings(dsn=database)).run()
