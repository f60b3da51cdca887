"""What is measured, and what is said about it: samples, medians and spread. Nothing here measures anything."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Group = Literal["ours", "peer", "floor"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one entry came to in one round: its figure, and others that belong to it."""

    value: float
    extras: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Summary:
    """One entry over all rounds: medians, and the lowest and the highest figure."""

    label: str
    group: Group
    values: tuple[float, ...]
    extras: Mapping[str, float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The lowest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The highest."""
        return max(self.values)


@dataclass(frozen=True, slots=True)
class Board:
    """One scenario's entries, in the order in which they are shown."""

    name: str
    title: str
    unit: str
    lower_is_better: bool
    summaries: tuple[Summary, ...]

    def of(self, label: str) -> Summary | None:
        """One entry, if it took part."""
        return next((summary for summary in self.summaries if summary.label == label), None)

    def best(self, group: Group, extra: str | None = None) -> Summary | None:
        """The best of a group, by its figure or by another one."""
        found = [one for one in self.summaries if one.group == group and (extra is None or extra in one.extras)]
        if not found:
            return None
        choose = min if self.lower_is_better else max
        return choose(found, key=lambda one: one.median if extra is None else one.extras[extra])


def summarise(label: str, group: Group, outcomes: Sequence[Outcome]) -> Summary:
    """The medians of an entry's rounds; a figure that some rounds lack is the median of the others."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.extras)
    extras = {
        name: statistics.median(outcome.extras[name] for outcome in outcomes if name in outcome.extras)
        for name in names
    }
    return Summary(label, group, tuple(outcome.value for outcome in outcomes), extras)


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the greatest; each is one of the values, never something between two."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"p50": at(0.50), "p95": at(0.95), "p99": at(0.99), "max": ordered[-1]}


def events_for(rate: float, seconds: float, *, least: int = 100, most: int = 100_000) -> int:
    """How many events last that long at this rate, in hundreds."""
    return max(least, min(most, round(rate * seconds / 100) * 100))
