"""A database that will not let the worker in until somebody acts: it says what to do instead of waiting for ever."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import pytest

from spectral.core.embedded import with_database
from spectral.core.events import ConfigurationError, Consumer, DatabaseSettings, EventEnvelope, WorkerSettings
from spectral.core.events.bootstrap import worker
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


async def test_a_database_without_the_schema_is_told_to_be_migrated(empty_database: str) -> None:
    with pytest.raises(ConfigurationError, match="spectral migrate up"):
        await run(empty_database)


async def test_a_retired_generation_is_refused(database: str) -> None:
    settings = WorkerSettings(generation=0)
    with pytest.raises(ConfigurationError, match="generation 0 is retired"):
        await worker(platform(), settings=settings, database=DatabaseSettings(dsn=database)).run()
