"""Latency: from the commit of a publish to the call of its handler, at 50 events a second on an otherwise idle worker.

Both ends say the machine's monotonic clock. The first ten events warm up and do not count.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.arena import times_in
from benchmarks.environments import ContestantError
from benchmarks.figures import Outcome, quantiles
from benchmarks.scenarios import Entry, Scenario

if TYPE_CHECKING:
    from benchmarks.arena import Arena, Running
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

WARM_UP: Final = 10
_START: Final = 20.0
_MOST_LOST: Final = 0.02


def _entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Everybody at every setting; a second process of ours changes nothing here."""
    lines = [line for line in plan.lines if line.settings != "processes"]
    return [Entry(line.label, line.group, partial(_one_round, arena, plan, line), line.once) for line in lines]


def _one_round(arena: Arena, plan: Plan, line: Line) -> Outcome:
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        output = Path(directory) / "seen"
        with arena.working(line, "note", dsn, output) as worker:
            figures = deliver_paced(arena, plan, Paced(line, dsn, output), worker)
    return Outcome(figures["p50"], figures)


@dataclass(frozen=True, slots=True)
class Paced:
    """Who publishes what and where, the file in which the worker says when it came, and how late it may be."""

    line: Line
    dsn: str
    output: Path
    kind: str = "note"
    late: float = 3.0


def deliver_paced(arena: Arena, plan: Plan, paced: Paced, worker: Running) -> dict[str, float]:
    """Publish one after the other and see when they come; answers the quantiles.

    Raises:
        ContestantError: too many did not come.
    """
    count, pause = plan.paces
    # a first event tells when it listens; without it the start of Python would be taken for latency
    arena.publish(paced.line, "paced", paced.dsn, paced.kind, 1, 0)
    worker.wait_for_first(_START)
    sent = times_in(arena.publish(paced.line, "paced", paced.dsn, paced.kind, count, pause))
    deadline = time.monotonic() + paced.late
    while len(came := came_in(paced.output)) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    latencies = [(came[number] - at) / 1e6 for number, at in sent.items() if number >= WARM_UP and number in came]
    lost = (count - WARM_UP) - len(latencies)
    if not latencies or lost > _MOST_LOST * count:
        raise ContestantError(f"{paced.line.label} did not deliver {lost} of {count - WARM_UP} events in time")
    return quantiles(latencies)


def came_in(output: Path) -> dict[int, int]:
    """Which events came, and when; not what has not been yet: two processes may write into each other's lines."""
    now = time.monotonic_ns()
    return {number: at for number, at in times_in(output.read_text(errors="replace")).items() if at <= now}


LATENCY: Final = Scenario(
    name="latency",
    title="commit to handler, 50 events a second",
    unit="ms (p50)",
    entries=_entries,
    lower_is_better=True,
)
