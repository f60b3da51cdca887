"""The pytest plugin, as users meet it: installed with the library, in a project of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import psycopg
import pytest

from spectral.core.events import Consumer, EventEnvelope, testing
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.testing.plugin import Drain, Published

TESTS = """
import asyncio
from pydantic import BaseModel
from spectral.core.events import Consumer, EventEnvelope, Transaction

platform = Consumer("platform")

class Scan(BaseModel):
    number: int

@platform.on("worlds.scan.completed")
async def project(scan: Scan, tx: Transaction) -> None:
    await tx.publish(EventEnvelope(event_type="platform.card.projected", source="platform", payload=scan.model_dump()))

def test_projects(spectral_drain, spectral_published, spectral_generation):
    assert spectral_generation == 1
    asyncio.run(spectral_drain(platform)).assert_all_handled(times=1)
    (card,) = asyncio.run(spectral_published(event_type="platform.card.projected", target=None))
    assert card.payload == {"number": 7}
"""


def run_pytest(directory: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SPECTRAL_", "PYTEST_"))}
    # Without the plugins of this project's own tests: a user may have none of them.
    others = ("asyncio", "anyio", "randomly", "xdist", "timeout", "hypothesispytest")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", *(f"-pno:{name}" for name in others), *options],
        cwd=directory,
        env=environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_scans.py").write_text(TESTS)
    return tmp_path


@pytest.fixture
def published_scan(database: str, publishing: Publishing) -> str:
    with psycopg.connect(database) as connection, connection.transaction():
        publisher_for(connection, publishing).publish(
            EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform", payload={"number": 7})
        )
    return database


def test_the_database_is_named_by_a_variable(project: Path, published_scan: str) -> None:
    done = run_pytest(project, SPECTRAL_TEST_DATABASE_URL=published_scan)
    assert done.returncode == 0, done.stdout


def test_a_conftest_may_name_it_instead(project: Path, published_scan: str) -> None:
    conftest = f"""
    import pytest

    @pytest.fixture
    def spectral_dsn():
        return {published_scan!r}
    """
    (project / "conftest.py").write_text(dedent(conftest))
    done = run_pytest(project)
    assert done.returncode == 0, done.stdout


def test_without_a_database_it_says_what_to_do_and_never_takes_a_programs(project: Path, published_scan: str) -> None:
    done = run_pytest(project, SPECTRAL_DATABASE_URL=published_scan, DATABASE_URL=published_scan)
    assert done.returncode == 1
    assert "spectral_dsn: no test database is named; set SPECTRAL_TEST_DATABASE_URL" in done.stdout
    assert "Traceback" not in done.stdout


def test_the_fixtures_are_documented(tmp_path: Path) -> None:
    listed = run_pytest(tmp_path, "--fixtures").stdout
    for name in ("spectral_dsn", "spectral_generation", "spectral_drain", "spectral_published"):
        assert f"{name} -- " in listed
    assert "no docstring available" not in listed


def test_loading_it_loads_no_driver_and_no_tool() -> None:
    script = """
    import sys
    import spectral.core.events.testing.plugin
    print(*sorted({name.partition('.')[0] for name in sys.modules} & {"psycopg", "structlog", "opentelemetry"}))
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_every_public_name_is_found_when_it_is_asked_for() -> None:
    assert {name for name in testing.__all__ if getattr(testing, name).__doc__ is not None} == set(testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        testing.nothing  # noqa: B018  asking is the test


@pytest.fixture
def spectral_dsn(published_scan: str) -> str:
    return published_scan


@pytest.fixture
def spectral_generation() -> int:
    return 2


async def test_the_generation_may_be_overridden(spectral_drain: Drain, spectral_published: Published) -> None:
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope) -> None:
        raise AssertionError(envelope)

    (await spectral_drain(platform)).assert_all_handled(times=0)
    assert len(await spectral_published()) == 1
