"""Fairness: how long an event waits at 50 a second while the worker has a backlog of something else.

Ours only. The backlog is of another type, whose handler is slow (200 ms), or of another workspace that has published
thousands of events of the same type (10 ms each). Neither is worked off before the last event has come: without
fairness, an event would wait for all of it.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import roster
from benchmarks.figures import Outcome
from benchmarks.scenarios import Entry, Scenario
from benchmarks.scenarios.latency import Paced, deliver_paced

if TYPE_CHECKING:
    from benchmarks.arena import Arena
    from benchmarks.plan import Plan

_BACKLOGS: Final = {
    "nothing else to do": None,
    "2,500 events of a slow type": ("slow", 2_500),
    "40,000 events of another workspace": ("crowd", 40_000),
}
"""About ten seconds of work each for fifty handlers at once."""

_LATE: Final = 15.0


def _entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Ours as it comes, beside nothing and beside each backlog."""
    return [
        Entry(f"{roster.SPECTRAL.label}, {name}", "ours", partial(_one_round, arena, plan, backlog))
        for name, backlog in _BACKLOGS.items()
    ]


def _one_round(arena: Arena, plan: Plan, backlog: tuple[str, int] | None) -> Outcome:
    line = roster.SPECTRAL
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    if backlog is not None:
        arena.fill(line, *backlog, dsn)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        output = Path(directory) / "seen"
        with arena.working(line, "shared", dsn, output) as worker:
            figures = deliver_paced(arena, plan, Paced(line, dsn, output, "shared", _LATE), worker)
    return Outcome(figures["p50"], figures)


FAIRNESS: Final = Scenario(
    name="fairness",
    title="commit to handler, 50 events a second, beside a backlog of something else",
    unit="ms (p50)",
    entries=_entries,
    lower_is_better=True,
)
