"""`make bench` and `make bench-quick`: ours, the peers and the floor side by side, in one run on one server.

python -m benchmarks [--quick] [--rounds N] [--only SCENARIO,...] [--contestants NAME,...] [--again]

The way through: a `roster` of contestants in their own `environments`, a `plan` of how much, an `arena` with the
server, `scenarios` that are run by a `contest`, `figures` with medians and spread, `verdicts`, a `report`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console

from benchmarks import plan as plans
from benchmarks import report as reports
from benchmarks.arena import Arena
from benchmarks.contest import Contest
from benchmarks.measure import machine_times, stolen_share
from benchmarks.scenarios import drain
from benchmarks.scenarios.fairness import FAIRNESS
from benchmarks.scenarios.growth import GROWTH, PINNED
from benchmarks.scenarios.idle import IDLE
from benchmarks.scenarios.latency import LATENCY
from benchmarks.scenarios.mixed import MIXED
from benchmarks.scenarios.publish import BULK, BUSY, singles
from benchmarks.scenarios.substrates import SUBSTRATES

if TYPE_CHECKING:
    from benchmarks.plan import Plan
    from benchmarks.scenarios import Scenario

PLACE: Final = Path(".cache")
FLOOR: Final = "floor"


def scenarios_of(plan: Plan) -> list[Scenario]:
    """In the order in which they are run and shown."""
    chosen = [
        *map(drain.scenario, plan.kinds),
        *map(singles, plan.connections),
        BULK,
        BUSY,
        LATENCY,
        PINNED,
        IDLE,
        SUBSTRATES,
    ]
    return [*chosen, MIXED, FAIRNESS, GROWTH] if plan.extras else chosen


def main() -> None:
    """Measure what was asked for, show it and write it down."""
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if options.again:
        said = json.loads((PLACE / f"{_name(options)}.json").read_text())
        reports.show(reports.read_document(said), console)
        return
    plan = _plan(options)
    scenarios = [one for one in scenarios_of(plan) if not options.only or one.name in options.only]
    if not scenarios:
        raise SystemExit(f"no such scenario; there are {', '.join(one.name for one in scenarios_of(plans.FULL))}")
    times = machine_times()
    with Arena().open() as arena:
        machine = reports.machine(arena.server_version())
        contest = Contest(arena, plan)
        boards = tuple(contest.run(scenario) for scenario in scenarios)
    machine["stolen"] = f"{stolen_share(times, machine_times()):.1f} %"
    report = reports.Report(machine, plan.rounds, boards, contest.absent)
    reports.write(report, PLACE, _name(options))
    reports.show(report, console)


def _name(options: argparse.Namespace) -> str:
    """A part of a run never takes the place of a whole one."""
    if options.only or options.contestants or options.rounds or options.seconds:
        return f"{reports.FULL_NAME}-part"
    return f"{reports.FULL_NAME}-quick" if options.quick else reports.FULL_NAME


def _plan(options: argparse.Namespace) -> Plan:
    plan = plans.QUICK if options.quick else plans.FULL
    if options.rounds:
        plan = replace(plan, rounds=options.rounds)
    if options.seconds:
        plan = replace(
            plan,
            drain_seconds=options.seconds,
            substrate_seconds=options.seconds,
            publish_seconds=max(1.0, options.seconds),
        )
    if options.contestants:
        names = {name.lower() for name in options.contestants}
        lines = tuple(line for line in plans.FULL.lines if line.contestant.name.lower() in names)
        plan = replace(plan, lines=lines, floor=FLOOR in names)
    return plan


def _options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="ours, the floor and the two fastest peers, in two minutes"
    )
    parser.add_argument("--rounds", type=int, help="instead of the plan's own number")
    parser.add_argument("--seconds", type=float, help="how long a timed drain should last, instead of the plan's own")
    parser.add_argument("--only", type=names, default=[], metavar="SCENARIO,...", help="these scenarios")
    parser.add_argument(
        "--contestants", type=names, default=[], metavar="NAME,...", help="these, such as spectral,floor"
    )
    parser.add_argument("--again", action="store_true", help="show the last run once more; measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
