"""Mixed load: four connections publish one by one as fast as they can while a worker delivers.

The figure is what goes through the whole: everything published, by the time from the first publish to the last settled
row. Who falls behind pays for the backlog; who is still at it after three times the window is cut there.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks.arena import rate_in
from benchmarks.figures import Outcome
from benchmarks.scenarios import Entry, Scenario

if TYPE_CHECKING:
    from benchmarks.arena import Arena
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

CONNECTIONS: Final = 4
_START: Final = 20.0


def _entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Ours as it comes, the peers at their best."""
    return [Entry(line.label, line.group, partial(_one_round, arena, plan, line)) for line in plan.best_lines()]


def _one_round(arena: Arena, plan: Plan, line: Line) -> Outcome:
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    with (
        psycopg.connect(dsn, autocommit=True) as watching,
        arena.working(line, "noop", dsn) as worker,
    ):
        # the worker is up before anybody publishes
        arena.publish(line, "paced", dsn, "noop", 1, 0)
        worker.wait_for_first(_START)
        with arena.start_publishing(line, dsn, "noop", CONNECTIONS, plan.publish_seconds) as publisher:
            worker.wait_for_more(_START)
            before = arena.read(worker.process)
            printed, _ = publisher.communicate()
        deadline = time.monotonic() + 2 * plan.window
        while (left := arena.left(line.contestant, watching)) and time.monotonic() < deadline:
            time.sleep(0.02)
        after = arena.read(worker.process)
    rate = rate_in(printed)
    published = round(rate * plan.publish_seconds)
    settled = max(0, published - left)
    return Outcome(
        settled / (after.clock - before.clock), {"published": rate, **after.cost_since(before, max(settled, 1))}
    )


MIXED: Final = Scenario(name="mixed", title="publish and drain together, 4 publishing connections", entries=_entries)
