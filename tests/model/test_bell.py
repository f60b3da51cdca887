"""No committed row goes unseen though nobody rang, and each rule of the bell is needed for that."""

from __future__ import annotations

import pytest

from tests.model.bell import Bell
from tests.model.search import explore


@pytest.mark.parametrize("bell", [Bell(), Bell(newcomer=True)], ids=["two alike", "a newcomer"])
def test_every_committed_row_is_seen_though_publishers_stay_silent(bell: Bell) -> None:
    result = explore(bell.system())
    assert result.violation is None, str(result.violation)
    assert result.states > 300  # it did look


@pytest.mark.parametrize(
    "bell",
    [
        Bell(publisher_locks=False),
        Bell(lock_before_lease=False),
        Bell(withdraws=False),
        Bell(withdraw_before_quiet=False),
        Bell(waits_for_quiet=False),
        Bell(looks_once_more=False),
        Bell(lease_expires=False),
        Bell(mends=False),
        Bell(mends_when_quiet=False),
        Bell(newcomer=True, rings_for_others=False),
    ],
    ids=[
        "a silent publisher holds no lock",
        "the lease is read before the lock is taken",
        "the lease is not withdrawn",
        "the lease is withdrawn after it was quiet",
        "nobody waits for open publishers",
        "no last look",
        "a lease never expires",
        "nobody takes over from the dead",
        "whoever takes over does not wait for open publishers",
        "whoever falls asleep does not ring for the others",
    ],
)
def test_without_one_of_its_rules_a_committed_row_is_seen_by_nobody(bell: Bell) -> None:
    violation = explore(bell.system()).violation
    assert violation is not None
    assert "stuck" in str(violation)
    assert any(step.endswith("commits") for step in violation.steps), str(violation)
