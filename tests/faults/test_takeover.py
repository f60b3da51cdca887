"""Workers that are gone, stand still or are told to go: others take over, and nothing that counts is done twice."""

from __future__ import annotations

import signal
import time
from datetime import timedelta

import pytest

from tests.faults.crew import eventually
from tests.faults.handlers import PLAIN, TRANSACTIONAL
from tests.faults.plan import Trap
from tests.faults.stage import Stage
from tests.faults.wire import Direction, Wire

KINDS = pytest.mark.parametrize("event_type", [TRANSACTIONAL, PLAIN], ids=["transactional", "plain"])

THE_PROTOCOLS_OWN: dict[str, float] = {"lease": 300, "grace": 5, "reap": 4}
HELD_BY = "select count(*) from core.outbox where claimed_by = %s and status = 'in_flight'"


def test_the_rows_of_a_killed_worker_are_taken_over_long_before_their_lease_ends(stage: Stage) -> None:
    victim = stage.start("victim", times=THE_PROTOCOLS_OWN)
    for event_type in (TRANSACTIONAL, PLAIN):
        stage.publish(10, event_type, payload={"do": "sleep", "seconds": 20, "times": 1})
    eventually(lambda: stage.one(HELD_BY, victim.plan.name) == 20, "the victim holds everything")
    stage.start("rescuer", times=THE_PROTOCOLS_OWN).wait_for("EarOpened")
    victim.kill()
    killed_at = time.monotonic()
    stage.assert_clean(delivered=20)
    assert time.monotonic() - killed_at < 15


@KINDS
def test_a_zombie_is_told_that_its_claims_are_no_longer_its_own(stage: Stage, event_type: str) -> None:
    # Transactional: before it could lock its row, for a row that is locked is not taken away.
    at = "claim.after" if event_type == TRANSACTIONAL else "handle.after"
    stage.publish(1, event_type)
    zombie = stage.start("zombie", trap=Trap(at=at, action="stop"), times={"lease": 0.5})
    zombie.wait_for("Trapped")
    rescuer = stage.start("rescuer", times={"lease": 0.5})
    rescuer.wait_for("Reaped", reason="expired", worker=zombie.plan.name)
    rescuer.wait_for("Finished", outcome="Handled")
    zombie.signal(signal.SIGCONT)
    zombie.wait_for("LeaseWasLost")
    verdict = stage.assert_clean(delivered=1)
    assert verdict.external_duplicates == (event_type == PLAIN)


def test_a_zombie_whose_session_was_ended_cannot_commit(stage: Stage) -> None:
    stage.publish(1)
    zombie = stage.start("zombie", trap=Trap(at="commit.before", action="stop"), times={"lease": 0.5})
    zombie.wait_for("Trapped")
    ended = stage.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
        f"spectral lane {zombie.plan.name}",
    )
    assert ended
    rescuer = stage.start("rescuer", times={"lease": 0.5})
    rescuer.wait_for("Finished", outcome="Handled")
    zombie.signal(signal.SIGCONT)
    zombie.wait_for("LeaseWasLost")
    stage.assert_clean(delivered=1)


@KINDS
def test_a_worker_that_renews_its_leases_keeps_its_rows(stage: Stage, event_type: str) -> None:
    stage.publish(1, event_type, payload={"do": "sleep", "seconds": 2.5, "times": 1})
    slow = stage.start("slow", times={"lease": 0.8})
    eventually(lambda: stage.one(HELD_BY, slow.plan.name) == 1, "the slow worker holds the row")
    other = stage.start("other", times={"lease": 0.8})
    stage.assert_clean(delivered=1)
    assert not other.said("Reaped")
    assert slow.said("Finished", attempts=1)


@KINDS
def test_a_claim_whose_answer_was_lost_is_given_back_long_before_its_lease_ends(
    stage: Stage, wire: Wire, event_type: str
) -> None:
    stage.publish(3, event_type)
    trap = Trap(at="claim.before", action="hold")
    worker = stage.start(dsn=wire.dsn, trap=trap, times={"lease": 300, "answer": 1.0})
    worker.wait_for("Trapped")
    wire.swallow(Direction.TO_CLIENT, "spectral claim")
    worker.go_on()
    eventually(lambda: stage.one(HELD_BY, worker.plan.name) == 3, "the claim was made")
    stage.assert_clean(delivered=3, within=timedelta(seconds=20))
    assert stage.rows("select distinct attempts from core.outbox") == [(1,)]  # it was nobody's failure


@KINDS
def test_a_worker_that_stands_still_for_less_than_its_lease_keeps_its_rows(stage: Stage, event_type: str) -> None:
    patient = {"lease": 300.0, "grace": 0.3, "reap": 0.1}
    at = "claim.after" if event_type == TRANSACTIONAL else "handle.after"
    stage.publish(1, event_type)
    still = stage.start("still", times=patient, trap=Trap(at=at, action="stop"))
    still.wait_for("Trapped")
    other = stage.start("other", times=patient, generation=2)  # reaps whatever it finds, and would not take it
    other.wait_for("EarOpened")
    unrenewed = "select clock_timestamp() - claimed_at > interval '2 s' from core.outbox"
    eventually(lambda: stage.one(unrenewed), "it has not been renewed for longer than the grace")
    assert not other.said("Reaped")
    still.signal(signal.SIGCONT)
    stage.assert_clean(delivered=1)
    assert still.said("Finished", attempts=1)


@KINDS
def test_stopping_under_load_charges_nobody_and_loses_nothing(stage: Stage, event_type: str) -> None:
    workers = [stage.start(times={"stop": 20}) for _ in range(3)]
    for worker in workers:
        worker.wait_for("EarOpened")
    for round_ in range(3):
        stage.publish(100, event_type, payload={"do": "sleep", "seconds": 0.01})
        eventually(lambda: stage.statuses().get("delivered", 0) > 100 * round_, "work goes on")  # noqa: B023  now
        leaving = workers.pop(0)
        assert leaving.stop() == 0
        assert stage.one(HELD_BY, leaving.plan.name) == 0
        workers.append(stage.start(times={"stop": 20}))
    stage.assert_clean(delivered=300)
    assert stage.rows("select distinct attempts from core.outbox") == [(1,)]


@KINDS
def test_whoever_insists_on_the_end_gets_it_and_the_rows_are_given_back(stage: Stage, event_type: str) -> None:
    stage.publish(5, event_type, payload={"do": "sleep", "seconds": 60, "times": 1})
    stubborn = stage.start("stubborn", times={"stop": 60}, lanes=1)
    eventually(lambda: stage.one(HELD_BY, stubborn.plan.name) == 5, "the worker holds everything")
    stubborn.signal(signal.SIGTERM)
    stubborn.wait_for("Stopping")
    stubborn.signal(signal.SIGTERM)
    assert stubborn.wait_for_end() == 0
    assert stage.statuses() == {"pending": 5}
    assert stage.rows("select distinct attempts from core.outbox") == [(0,)]


def test_two_generations_alive_at_once_handle_each_its_own(stage: Stage) -> None:
    old = stage.start("old", generation=1)
    new = stage.start("new", generation=2)
    for generation in (1, 2, 1, 2):
        stage.publish(50, generation=generation)
        stage.publish(50, PLAIN, generation=generation)
    stage.assert_clean(delivered=400)
    assert old.stop() == 0
    stage.publish(10, generation=1)
    stage.publish(10, generation=2)
    new.wait_for("Finished", count=210)
    assert stage.rows("select distinct generation from core.outbox where status = 'pending'") == [(1,)]
    stage.start("old again", generation=1)
    stage.assert_clean(delivered=420, within=timedelta(seconds=30))


def test_a_worker_that_claims_again_what_it_lost_does_not_lose_count(stage: Stage) -> None:
    worker = stage.start()
    lost_once = "select id from core.outbox_reap(interval '0', interval '0')"
    # Reaped while its handler runs, claimed again by the same worker, and again: then it has to run alone.
    for times in (1, 2):
        stage.publish(1, PLAIN, payload={"do": "sleep", "seconds": 2.0, "times": times})
        for attempt in range(1, times + 1):
            eventually(lambda: stage.one(HELD_BY, worker.plan.name) == 1, "the worker holds the row")
            assert len(stage.rows(lost_once)) == 1, attempt
        worker.wait_for("LeaseWasLost", count=2 * times - 1)
        worker.wait_for("Finished", outcome="Handled", attempts=times + 1)
    stage.assert_clean(delivered=2)
    assert worker.stop() == 0
