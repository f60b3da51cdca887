"""How much is measured: the full run, and the one for every day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks import roster

if TYPE_CHECKING:
    from benchmarks.roster import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes, and who takes part.

    kinds: what handlers do in the drains; counted_kinds: in which of them statements and round trips are counted.
    drain_seconds: how long a timed drain should last; window: when one is cut that lasts longer.
    paces: events in a round of latency, and the pause between two.
    substrate_seconds: how long the drain of each substrate should last.
    histories: old rows in the table before a drain.
    extras: whether the long scenarios are run too, and peers take part where only our own promise is at stake.
    """

    lines: tuple[Line, ...]
    rounds: int
    kinds: tuple[str, ...]
    counted_kinds: tuple[str, ...]
    drain_seconds: float
    window: float
    publish_seconds: float
    connections: tuple[int, ...]
    bulk: int
    paces: tuple[int, float]
    substrate_seconds: float
    idle_seconds: float
    counted: int
    histories: tuple[int, ...]
    extras: bool
    floor: bool = True

    def best_lines(self) -> tuple[Line, ...]:
        """Ours as it comes, and the peers at their best."""
        return tuple(line for line in self.lines if line is roster.SPECTRAL or line.settings == "best")

    def fastest_lines(self) -> tuple[Line, ...]:
        """Of these, ours and the fastest peers."""
        peers = roster.FASTEST_PEERS if self.extras else ()
        return tuple(line for line in self.best_lines() if line.group == "ours" or line.contestant in peers)

    def patient_lines(self) -> tuple[Line, ...]:
        """One line for each contestant, at its defaults where those take part."""
        chosen: dict[str, Line] = {}
        for line in self.lines:
            if line.group == "peer" and not self.extras:
                continue
            if line.settings == "default" or line.contestant.name not in chosen:
                chosen[line.contestant.name] = line
        return tuple(chosen.values())


FULL: Final = Plan(
    lines=(
        roster.SPECTRAL,
        roster.QUIET,
        roster.PROCESSES,
        *map(roster.at_best, roster.PEERS),
        *map(roster.at_defaults, roster.PEERS),
    ),
    rounds=3,
    kinds=("noop", "upsert", "sleep"),
    counted_kinds=("noop", "upsert"),
    drain_seconds=2.1,
    window=4.0,
    publish_seconds=1.0,
    connections=(1, 8, 16),
    bulk=10_000,
    paces=(410, 0.02),
    substrate_seconds=2.1,
    idle_seconds=8.0,
    counted=2_000,
    histories=(0, 1_000_000, 5_000_000),
    extras=True,
)
QUICK: Final = Plan(
    lines=(roster.SPECTRAL, *map(roster.at_best, roster.FASTEST_PEERS)),
    rounds=1,
    kinds=("noop", "upsert"),
    counted_kinds=("noop",),
    drain_seconds=2.0,
    window=3.0,
    publish_seconds=1.0,
    connections=(16,),
    bulk=10_000,
    paces=(110, 0.02),
    substrate_seconds=1.0,
    idle_seconds=4.0,
    counted=1_000,
    histories=(),
    extras=False,
)
