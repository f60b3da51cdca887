"""Workers believe in the database's clock alone: one that is a day off retries, reaps and delivers like the others."""

from __future__ import annotations

import pytest

from tests.faults.handlers import PLAIN
from tests.faults.plan import Trap
from tests.faults.stage import Stage

DAY = 86_400.0


@pytest.mark.parametrize("offset", [-DAY, DAY], ids=["a day behind", "a day ahead"])
def test_a_worker_whose_clock_is_wrong_neither_retries_nor_reaps_at_the_wrong_time(stage: Stage, offset: float) -> None:
    stage.publish(1, payload={"do": "sleep", "seconds": 2.0, "times": 1})
    stage.publish(1, PLAIN, payload={"do": "sleep", "seconds": 2.0, "times": 1})
    right = stage.start("right")
    right.wait_for("Started")
    stage.publish(3, payload={"do": "fail", "times": 2})
    stage.publish(3, PLAIN, payload={"do": "fail", "times": 2})
    wrong = stage.start("wrong", clock_offset=offset)
    wrong.wait_for("EarOpened")
    assert right.stop() == 0  # not before its slow handlers have ended
    # One that is really dead, for the wrong one to find.
    stage.publish(1, generation=2)
    dead = stage.start("dead", generation=2, trap=Trap(at="handle.before", action="kill"))
    dead.wait_for_end()
    wrong.wait_for("Reaped", reason="orphaned", worker=dead.plan.name)
    stage.start("next", generation=2, clock_offset=offset)
    stage.assert_clean(delivered=9)
    assert {note["worker"] for note in wrong.said("Reaped")} == {dead.plan.name}
    assert stage.rows("select distinct attempts from core.outbox where last_error like 'ConnectionError%%'") == [(3,)]


def test_a_retry_comes_when_the_database_says_so(stage: Stage) -> None:
    stage.publish(5, payload={"do": "fail", "times": 3})
    stage.start(clock_offset=-DAY)
    stage.start(clock_offset=DAY)
    stage.assert_clean(delivered=5)
    early = (
        "select count(*) from public.spectral_effects e join core.outbox o on o.id = e.event_id"
        " where e.recorded_at < o.next_attempt_at"
    )
    assert stage.one(early) == 0
