"""What every test of the worker starts from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from spectral.core.events import Consumer
from spectral.core.events.consumer import Handler
from spectral.core.events.delivery import trust
from spectral.core.events.infrastructure.postgres.errands import PostgresBriefTransaction, PostgresErrands
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.lease import Delivery
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


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each group was begun with that needed no savepoints; one run is proof enough."""
    begun: list[int] = []
    begin = PostgresLane.begin_together

    async def counted(self: PostgresLane, runs: Sequence[tuple[Delivery, Handler]], only: str | None = None) -> bool:
        begun.append(len(runs))
        return await begin(self, runs, only)

    monkeypatch.setattr(trust, "ENOUGH", 1)
    monkeypatch.setattr(PostgresLane, "begin_together", counted)
    return begun


@pytest.fixture
def round_trips(monkeypatch: pytest.MonkeyPatch, groups: list[int]) -> list[int]:  # noqa: ARG001  one run is enough
    """How many transactions were open whenever statements were carried out together."""
    carried: list[int] = []
    carry_out = PostgresErrands.carry_out

    async def counted(self: PostgresErrands, within: float) -> PostgresBriefTransaction | None:
        carried.append(len(self.waiting))
        return await carry_out(self, within)

    monkeypatch.setattr(PostgresErrands, "carry_out", counted)
    return carried
