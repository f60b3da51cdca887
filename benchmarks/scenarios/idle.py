"""Idle cost: what a worker with nothing to do asks of the server, and how much processor it uses, in a few seconds."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.figures import Outcome
from benchmarks.scenarios import Entry, Scenario

if TYPE_CHECKING:
    from benchmarks.arena import Arena
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

_START: Final = 20.0
_COMES_TO_REST: Final = 2.5


def _entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Everybody at their defaults: patience is what a default is for."""
    return [Entry(line.label, line.group, partial(_watch, arena, plan, line)) for line in plan.patient_lines()]


def _watch(arena: Arena, plan: Plan, line: Line) -> Outcome:
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    arena.fill(line, "noop", 1, dsn)
    with arena.counting_statements(dsn), arena.working(line, "noop", dsn) as worker:
        worker.wait_for_first(_START)
        time.sleep(_COMES_TO_REST)
        before, statements = arena.read(worker.process), arena.statements(dsn)
        time.sleep(plan.idle_seconds)
        after, seconds = arena.read(worker.process), plan.idle_seconds
        asked = arena.statements(dsn) - statements
    # of the server's processor time there is also its own housekeeping, so only the client's is shown
    return Outcome(asked / seconds, {"client_cpu_percent": 100 * (after.client - before.client) / seconds})


IDLE: Final = Scenario(
    name="idle",
    title="an idle worker",
    unit="statements/s",
    entries=_entries,
    lower_is_better=True,
    once=True,
)
