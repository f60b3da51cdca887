"""Every named place of the protocol, crossed with every fault: nothing lost, one transactional effect, whoever goes on.

Each case plays twice at once: generation 1 with transactional handlers, generation 2 with plain ones.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final

import pytest

from spectral.core.events.failpoints import NAMES
from tests.faults.crew import WorkerProcess, eventually
from tests.faults.handlers import MIXED, PLAIN, TRANSACTIONAL
from tests.faults.plan import Action, Trap
from tests.faults.stage import Stage
from tests.faults.wire import Wire

LEASE: Final = 1.2
ROWS: Final = 6

ASKS_THE_DATABASE: Final = tuple(name for name in NAMES if not name.startswith(("handle.", "release.")))
"""Where the database can be lost: next to something that is asked of it."""


@dataclass(frozen=True)
class Case:
    """One failpoint, reached by handlers of one kind."""

    at: str
    generation: int
    transactional: bool

    @property
    def event_type(self) -> str:
        if self.transactional:
            return TRANSACTIONAL
        # A plain handler comes to a commit only beside one that takes the transaction.
        return MIXED if self.at.startswith("commit") else PLAIN

    def payload(self) -> dict[str, object]:
        """What makes the worker come to the failpoint."""
        if self.at.startswith("settle") and self.transactional:
            return {"do": "commit", "times": 1}  # its transaction is gone, so somebody else settles it
        if self.at.startswith(("renew", "release", "reap", "ear")):
            return {"do": "sleep", "seconds": 0.6, "times": 1}  # rows are in flight when it comes there
        return {}


class Play:
    """A worker that falls into a trap, and another that takes over."""

    def __init__(self, stage: Stage, case: Case, action: Action, dsn: str = "") -> None:
        self.stage = stage
        self.case = case
        stage.publish(ROWS, case.event_type, generation=case.generation, payload=case.payload())
        one_by_one = case.at == "release.before"  # something must be left that no handler has begun
        self.victim = stage.start(
            f"{action}-{case.at}",
            dsn=dsn or stage.dsn,
            generation=case.generation,
            trap=Trap(at=case.at, action=action),
            times={"lease": LEASE},
            lanes=1 if one_by_one else 2,
            concurrency=1 if one_by_one else 50,
        )
        self.rescuer: WorkerProcess | None = None

    def up_to_the_trap(self) -> None:
        if self.case.at == "release.before":
            eventually(self._holds_rows, "the victim holds rows")
            self.victim.signal(signal.SIGTERM)
        self.victim.wait_for("Trapped")

    def rescue(self) -> WorkerProcess:
        self.rescuer = self.stage.start("rescuer", generation=self.case.generation, times={"lease": LEASE})
        self.rescuer.wait_for("EarOpened")
        return self.rescuer

    def wait_past_the_lease(self) -> None:
        """Until none of the victim's claims could be called fresh, or nothing of it is left."""
        query = (
            "select count(*) from core.outbox where claimed_by = %s and status = 'in_flight'"
            " and claimed_at > clock_timestamp() - make_interval(secs => %s)"
        )
        name = self.victim.plan.name
        eventually(lambda: not self.stage.one(query, name, LEASE + 0.5), "the victim's leases have run out")

    def assert_the_victim_lives(self) -> None:
        if self.case.at == "release.before":
            assert self.victim.wait_for_end() == 0  # it was stopping when it was caught
        else:
            assert self.victim.stop() == 0

    def _holds_rows(self) -> bool:
        query = "select count(*) > 1 from core.outbox where claimed_by = %s and status = 'in_flight'"
        return bool(self.stage.one(query, self.victim.plan.name))


def plays(stage: Stage, at: str, action: Action, dsn: str = "") -> list[Play]:
    cases = [Case(at, 1, transactional=True), Case(at, 2, transactional=False)]
    started = [Play(stage, case, action, dsn) for case in cases]
    for play in started:
        play.up_to_the_trap()
    return started


@pytest.mark.parametrize("at", NAMES)
def test_a_worker_killed_here_is_replaced(stage: Stage, at: str) -> None:
    for play in plays(stage, at, "kill"):
        assert play.victim.wait_for_end() == -signal.SIGKILL
        play.rescue()
    stage.assert_clean(delivered=2 * ROWS)


@pytest.mark.parametrize("at", [name for name in NAMES if not name.startswith("handle.")])
def test_a_worker_that_fails_here_goes_down_and_is_replaced(stage: Stage, at: str) -> None:
    for play in plays(stage, at, "raise"):
        assert play.victim.wait_for_end() == 1, "a part died and the process did not say so"
        play.rescue()
    stage.assert_clean(delivered=2 * ROWS)


@pytest.mark.parametrize("at", [name for name in NAMES if name.startswith("handle.")])
def test_an_error_here_is_the_events_and_it_is_tried_again(stage: Stage, at: str) -> None:
    started = plays(stage, at, "raise")
    stage.assert_clean(delivered=2 * ROWS)
    for play in started:
        play.assert_the_victim_lives()
    assert stage.one("select count(*) from core.outbox where attempts = 2 and last_error like 'ReachedError%%'") == 2


@pytest.mark.parametrize("at", NAMES)
def test_a_worker_that_stands_still_here_past_its_lease_is_fenced(stage: Stage, at: str) -> None:
    started = plays(stage, at, "stop")
    for play in started:
        play.rescue()
    for play in started:
        play.wait_past_the_lease()
        play.victim.signal(signal.SIGCONT)
        play.victim.wait_for("WentOn")
    stage.assert_clean(delivered=2 * ROWS)
    for play in started:
        play.assert_the_victim_lives()


@pytest.mark.parametrize("at", NAMES)
def test_a_delay_here_changes_nothing(stage: Stage, at: str) -> None:
    started = plays(stage, at, "hold")
    for play in started:
        play.rescue()
        play.victim.go_on()
    stage.assert_clean(delivered=2 * ROWS)
    for play in started:
        play.assert_the_victim_lives()


@pytest.mark.parametrize("at", NAMES)
def test_a_worker_whose_connections_are_cut_here_comes_back(stage: Stage, wire: Wire, at: str) -> None:
    started = plays(stage, at, "hold", wire.dsn)
    assert wire.cut()
    for play in started:
        play.victim.go_on()
    # Nobody else is there: whatever the victim held, it has to find again by itself.
    if at == "release.before":
        for play in started:
            play.rescue()
    stage.assert_clean(delivered=2 * ROWS)
    for play in started:
        play.assert_the_victim_lives()


@pytest.mark.parametrize("at", ASKS_THE_DATABASE)
def test_a_worker_that_loses_the_database_here_goes_on(stage: Stage, at: str) -> None:
    started = plays(stage, at, "lose")
    stage.assert_clean(delivered=2 * ROWS)
    for play in started:
        play.assert_the_victim_lives()
