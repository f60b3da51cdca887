"""Half a minute with the nemesis; `make soak` is longer."""

from __future__ import annotations

import secrets

import pytest

from tests.faults import nemesis
from tests.faults.crew import Crew

SECONDS = 18.0


@pytest.mark.timeout(240)
def test_everything_at_once(crew: Crew) -> None:
    seed = secrets.randbelow(1_000_000)
    print(f"again with: python -m tests.faults.nemesis --seconds {SECONDS:g} --seed {seed}")  # noqa: T201  on failure
    verdict, _ = nemesis.run(SECONDS, seed, crew)
    assert verdict.published > 50
