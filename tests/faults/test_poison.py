"""An event that kills every process that touches it ends in the DLQ, and takes nobody along."""

from __future__ import annotations

import pytest

from tests.faults.crew import WorkerProcess, eventually
from tests.faults.handlers import PLAIN, TRANSACTIONAL
from tests.faults.stage import Stage

OPEN = "select count(*) from core.outbox where status in ('pending', 'in_flight')"


@pytest.mark.parametrize(("event_type", "do"), [(TRANSACTIONAL, "exit"), (PLAIN, "segfault")])
def test_a_poison_pill_among_a_thousand_good_events(stage: Stage, event_type: str, do: str) -> None:
    stage.publish(500, event_type)
    (pill,) = stage.publish(1, event_type, payload={"do": do})
    stage.publish(500, event_type)
    crew = [_start(stage) for _ in range(2)]

    def is_over() -> bool:
        for place, worker in enumerate(crew):
            if not worker.is_alive:
                crew[place] = _start(stage)
        return bool(stage.one(OPEN) == 0)

    eventually(is_over, "every event has come to its end", seconds=60)
    stage.assert_clean(delivered=1000, dead_lettered=1)
    ((failed, error, attempts),) = stage.rows(
        "select id, last_error, attempts from core.outbox where status = 'failed'"
    )
    assert failed == pill.event_id
    assert error.startswith("WorkerLostError:")
    assert attempts == 4


def _start(stage: Stage) -> WorkerProcess:
    return stage.start("prey", max_retries=3, times={"grace": 0.4, "reap": 0.1})


def test_slow_neighbours_are_not_taken_along_again_and_again(stage: Stage) -> None:
    # They still run when the pill is claimed, which comes after them, every time.
    stage.publish(5, PLAIN, payload={"do": "sleep", "seconds": 0.3})
    stage.publish(1, PLAIN, payload={"do": "exit"})
    crew = [_start(stage)]

    def is_over() -> bool:
        if not crew[-1].is_alive:
            crew.append(_start(stage))
        return bool(stage.one(OPEN) == 0)

    eventually(is_over, "every event has come to its end", seconds=60)
    stage.assert_clean(delivered=5, dead_lettered=1)
    assert len(crew) == 5  # each of the pill's four executions cost one
