"""What a handler must not do with its transaction is never taken for a delivery."""

from __future__ import annotations

from tests.faults.handlers import MIXED, TRANSACTIONAL
from tests.faults.stage import Stage


def test_a_handler_that_commits_by_itself_is_never_delivered(stage: Stage) -> None:
    stage.publish(2, TRANSACTIONAL, payload={"do": "commit"})
    stage.publish(2, MIXED, payload={"do": "commit"})
    stage.publish(5)
    stage.start(max_retries=1)
    stage.assert_clean(delivered=5, dead_lettered=4)
    kept = (
        "select count(*) from public.spectral_effects e join core.outbox o on o.id = e.event_id"
        " where o.status = 'failed' and not e.external"
    )
    assert stage.one(kept) == 0


def test_a_handler_that_stops_committing_by_itself_takes_effect_once(stage: Stage) -> None:
    stage.publish(3, TRANSACTIONAL, payload={"do": "commit", "times": 1})
    stage.start()
    verdict = stage.assert_clean(delivered=3)
    assert verdict.handled == 3
