"""How bad it is, what was found, and when something becomes worth saying."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Level(StrEnum):
    """How bad: `notice` is worth knowing and needs nobody, `attention` needs somebody, `unhealthy` needs them now."""

    OK = "ok"
    NOTICE = "notice"
    ATTENTION = "attention"
    UNHEALTHY = "unhealthy"

    @property
    def rank(self) -> int:
        """Worse is higher."""
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be: by the name of its check, in words, and what to run against it."""

    check: str
    severity: Level
    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of a verdict; `command` is what to run next, where that helps."""

    text: str
    level: Level = Level.OK
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of delivery in words. The first sentence says it all; the worst of the others come next."""

    level: Level
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """From when on something is worth saying.

    patience: how long an event may be due before a missing or busy worker is more than a restart; late: how long before
        it is unhealthy.
    transaction: how long a transaction may stay open; held: in transactions, where its time cannot be seen.
    queue, queue_full: shares of the NOTIFY queue. skew: how far two clocks may be apart.
    connections: share of the connections in use. dead: how many times over the mark at which autovacuum begins.
    partition, relay: rows of the outbox, by the growth plan; ack: the 99th percentile from publish to delivered.
    relay_lag: how long an event may be due before a relay has sent it; months: how many to come need a partition.
    promise: how long before a conversion to partitions that has stopped makes publishing fail.
    """

    patience: timedelta = timedelta(seconds=60)
    late: timedelta = timedelta(minutes=10)
    transaction: timedelta = timedelta(minutes=10)
    held: int = 1_000_000
    queue: float = 0.25
    queue_full: float = 0.5
    skew: timedelta = timedelta(seconds=5)
    connections: float = 0.85
    dead: float = 5.0
    partition: int = 5_000_000
    relay: int = 20_000_000
    ack: timedelta = timedelta(milliseconds=500)
    relay_lag: timedelta = timedelta(seconds=20)
    months: int = 1
    promise: timedelta = timedelta(days=2)


def worst(levels: list[Level]) -> Level:
    """The worst of these; ok if there are none."""
    return max(levels, key=lambda level: level.rank, default=Level.OK)
