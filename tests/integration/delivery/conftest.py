"""What every test of the worker starts from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from spectral.core.events import Consumer
from tests.integration.delivery.platform_worker import AT_ONCE, Bench, open_bench


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    """A database with a table of effects, and ways to run workers on it."""
    async with open_bench(database) as opened:
        yield opened


@pytest.fixture
def platform() -> Consumer:
    """The platform's handlers: none yet. They are retried at once, three times."""
    return Consumer("platform", retry=AT_ONCE)
