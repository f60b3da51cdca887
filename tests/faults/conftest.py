"""The stage of the fault tests: worker processes come from one nursery for each test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.crew import Crew
from tests.faults.stage import Stage
from tests.faults.wire import Wire, wired


@pytest.fixture(scope="session")
def nursery() -> Iterator[Crew]:
    """One for the whole run: it has imported everything once."""
    with Crew() as crew:
        yield crew


@pytest.fixture
def crew(nursery: Crew) -> Iterator[Crew]:
    """A crew that leaves no process behind."""
    yield nursery
    nursery.dismiss()


@pytest.fixture
def stage(database: str, crew: Crew) -> Stage:
    """A fresh database, and worker processes that are gone before it is."""
    return Stage(database, crew)


@pytest.fixture
def wire(database: str) -> Iterator[Wire]:
    """A wire to the same database."""
    with wired(database) as opened:
        yield opened
