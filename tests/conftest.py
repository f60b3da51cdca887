"""The ground every test stands on: one real Postgres for each test process, one fresh database for each test."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  first, see below
import os
import signal
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import Any

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck, settings

from spectral.core.embedded import FAST_AND_UNSAFE, PostgresServer, ServerOptions, database_of, postgres_from
from spectral.core.events import PublishSettings
from spectral.core.events.bootstrap import publishing as publishing_with
from spectral.core.events.delivery.publish import Publishing
from spectral.core.migrations import discover, up
from tests.layout import is_plain_only, partition
from tests.memory import copy_of, running

# The child of a fork hangs where a tracer provider of OpenTelemetry was made before `concurrent.futures.thread` was
# imported: its resource is read anew in a pool of threads, whose lock is only given back after that. Most imports bring
# it; a few unit tests by themselves do not.

# On a loaded machine an example may take any time, which says nothing about what is tested.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Named by what is in it: a server that outlives the run must not hand out yesterday's schema.
_CHECKSUMS = "".join(migration.checksum for migration in discover())
# Every test that asks for a migrated database gets the other layout by SPECTRAL_TEST_LAYOUT=partitioned.
LAYOUT = os.environ.get("SPECTRAL_TEST_LAYOUT", "plain")
TEMPLATE = f"spectral_template_{LAYOUT}_{sha256(_CHECKSUMS.encode()).hexdigest()[:16]}"


def pytest_configure() -> None:
    """A test run under `nohup` outlives its terminal, but what it starts hears of SIGHUP as it would anywhere."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # which, other than to ignore it, is not inherited


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the server is a database test, and runs on the system's version of Postgres too."""
    for item in items:
        if "postgres" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.database)
    if LAYOUT == "partitioned":
        items[:] = [item for item in items if not is_plain_only(item.nodeid)]


@pytest.fixture(autouse=True)
def no_log_is_left_configured() -> Iterator[None]:
    """Else the lines of a later test, of its publishers and in its own time, come into whatever that one reads."""
    yield
    is_left = structlog.is_configured()
    structlog.reset_defaults()
    assert not is_left, "it leaves structlog configured"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server: from the wheel, or as SPECTRAL_TEST_POSTGRES says (system, system:/path, or a superuser's DSN)."""
    source = os.environ.get("SPECTRAL_TEST_POSTGRES", "wheel")
    # Deadlocks are provoked on purpose; nobody needs to wait a second for each.
    options = ServerOptions(settings={**FAST_AND_UNSAFE, "deadlock_timeout": "100ms", "max_connections": 200})
    with running(postgres_from(source, options)) as server:
        yield server


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    """The superuser's DSN of a database with nothing in it."""
    dsn = postgres.create_database()
    yield dsn
    postgres.drop_database(database_of(dsn))


@pytest.fixture(scope="session")
def migrated_template(postgres: PostgresServer) -> str:
    """A database with the schema, to be copied."""

    def migrate(dsn: str) -> None:
        up(dsn)
        if LAYOUT == "partitioned":
            partition(dsn)

    postgres.create_template(TEMPLATE, migrate)
    return TEMPLATE


@pytest.fixture(scope="session")
def live_template(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    """A database with the schema and three generations, to be copied: a session less for each test."""
    dsn = postgres.create_database(template=migrated_template)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into core.deployments (generation, status, promoted_at, retired_at) values"
            " (0, 'retired', null, now()), (1, 'live', now(), null), (2, 'allocated', null, null)"
        )
    yield database_of(dsn)
    postgres.drop_database(dsn)


@pytest.fixture
def database(postgres: PostgresServer, live_template: str) -> Iterator[str]:
    """The superuser's DSN of a database with the schema; generation 1 is live, 2 allocated, 0 retired."""
    dsn = copy_of(postgres, live_template)
    yield dsn
    postgres.drop_database(database_of(dsn))


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection in autocommit mode."""
    with psycopg.connect(database, autocommit=True) as opened:
        yield opened


@pytest.fixture
async def async_connection(database: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A superuser's async connection, not in autocommit mode."""
    async with await psycopg.AsyncConnection.connect(database) as opened:
        yield opened
        await opened.rollback()


@pytest.fixture
def publishing() -> Publishing:
    """Publishing as generation 1 of a system with the default contexts."""
    return publishing_with(PublishSettings(generation=1))
