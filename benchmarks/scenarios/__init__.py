"""What is measured, one file each: a scenario names its entries, and each entry runs once in every round.

Rounds are interleaved: every entry of a scenario has its turn before any has its second, so that a slow moment of the
machine hits all alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.arena import Arena
    from benchmarks.figures import Group, Outcome
    from benchmarks.plan import Plan


@dataclass(frozen=True, slots=True)
class Entry:
    """One bar of the plot, and how it is measured; `once` if one round has to be enough.

    Calling it raises `ContestantError` when the contestant cannot take part, which the report shows.
    """

    label: str
    group: Group
    run: Callable[[], Outcome]
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One board of the report.

    entries: who takes part, in the order in which they are shown.
    once: whether one round is enough.
    """

    name: str
    title: str
    unit: str = "events/s"
    entries: Callable[[Arena, Plan], list[Entry]]
    lower_is_better: bool = False
    once: bool = False
