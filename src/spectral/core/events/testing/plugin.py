"""The pytest plugin: fixtures for tests of handlers. Installed with the library, loads nothing before it is used.

Every fixture is an ordinary one that returns a value or an async function, so any way to run async tests will do.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spectral.core.events.consumer import Consumer
    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.settings import WorkerSettings
    from spectral.core.events.testing.harness import Drained

DATABASE_VARIABLE: Final = "SPECTRAL_TEST_DATABASE_URL"


class Drain(Protocol):
    """What `spectral_drain` is."""

    async def __call__(
        self, *consumers: Consumer, contexts: Iterable[str] = (), settings: WorkerSettings | None = None
    ) -> Drained:
        """Run a worker until nothing is due."""
        ...


class Published(Protocol):
    """What `spectral_published` is."""

    async def __call__(self, *, event_type: str | None = None, target: Any = ...) -> list[EventEnvelope]:  # noqa: ANN401  a context, None or `...`
        """What was published and committed so far."""
        ...


@pytest.fixture
def spectral_dsn() -> str:
    """The database of the test, with the schema in it: SPECTRAL_TEST_DATABASE_URL, unless a conftest overrides this."""
    # Never the variables that programs read: a worker of a test would deliver somebody's real events.
    dsn = os.environ.get(DATABASE_VARIABLE)  # noqa: TID251  a plugin is the top of a program
    if not dsn:
        pytest.fail(
            f"spectral_dsn: no test database is named; set {DATABASE_VARIABLE} to one that `spectral migrate up` has "
            "been run on, or override the fixture spectral_dsn in your conftest.py",
            pytrace=False,
        )
    return dsn


@pytest.fixture
def spectral_generation() -> int:
    """The generation that the test's workers run; override it to test another."""
    return 1


@pytest.fixture
def spectral_drain(spectral_dsn: str, spectral_generation: int) -> Drain:
    """An async function that runs a real worker with the consumers it is given until nothing is due; see `drain`."""

    async def drained(
        *consumers: Consumer, contexts: Iterable[str] = (), settings: WorkerSettings | None = None
    ) -> Drained:
        from spectral.core.events.testing.harness import drain  # noqa: PLC0415  loaded when it is used

        return await drain(
            *consumers, dsn=spectral_dsn, generation=spectral_generation, contexts=contexts, settings=settings
        )

    return drained


@pytest.fixture
def spectral_published(spectral_dsn: str) -> Published:
    """An async function that answers what was published and committed so far; see `published`."""

    async def committed(*, event_type: str | None = None, target: Any = ...) -> list[EventEnvelope]:  # noqa: ANN401  as above
        import psycopg  # noqa: PLC0415  loaded when it is used

        from spectral.core.events.testing.assertions import published  # noqa: PLC0415  as above

        async with await psycopg.AsyncConnection.connect(spectral_dsn) as connection:
            return await published(connection, event_type=event_type, target=target)

    return committed
