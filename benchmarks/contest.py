"""Runs scenarios: every entry in every round, interleaved. A contestant that fails is out, and the report says why."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.environments import ContestantError
from benchmarks.figures import Board, Outcome, summarise

if TYPE_CHECKING:
    from benchmarks.arena import Arena
    from benchmarks.plan import Plan
    from benchmarks.scenarios import Entry, Scenario


@dataclass(slots=True)
class Contest:
    """One run; `absent` collects who could not take part, and why."""

    arena: Arena
    plan: Plan
    absent: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, scenario: Scenario) -> Board:
        """All rounds of a scenario."""
        entries = scenario.entries(self.arena, self.plan)
        outcomes: dict[str, list[Outcome]] = {entry.label: [] for entry in entries}
        out: set[str] = set()
        for number in range(1 if scenario.once else self.plan.rounds):
            for entry in entries:
                if entry.label in out or (entry.once and number):
                    continue
                outcome = self._turn(scenario, entry, number)
                if outcome is None:
                    out.add(entry.label)
                else:
                    outcomes[entry.label].append(outcome)
        summaries = tuple(
            summarise(entry.label, entry.group, outcomes[entry.label]) for entry in entries if outcomes[entry.label]
        )
        return Board(scenario.name, scenario.title, scenario.unit, scenario.lower_is_better, summaries)

    def _turn(self, scenario: Scenario, entry: Entry, number: int) -> Outcome | None:
        started = time.monotonic()
        try:
            outcome = entry.run()
        except ContestantError as reason:
            self.absent[f"{entry.label} ({scenario.name}, round {number + 1})"] = str(reason)
            sys.stderr.write(f"{scenario.name:14} {entry.label:40} out: {reason}\n")
            return None
        took = time.monotonic() - started
        sys.stderr.write(f"{scenario.name:14} {entry.label:40} {outcome.value:12,.2f} {scenario.unit} ({took:.1f} s)\n")
        return outcome
