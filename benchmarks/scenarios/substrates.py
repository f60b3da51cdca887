"""The three substrates side by side: Postgres alone, and a broker that says which rows are due, NATS or Redis.

The same consumer, a worker and a relay at their defaults, the same database server. Each turn begins with an empty
table, an empty broker and new processes, and has two parts.

The drain is that of `drain`: from the first handler call to the last settled row of events that were published
beforehand. With a broker, the worker is up and receives before they are published, and the relay is started last, so
that what it does counts as well: when the clock starts, little more than its first batch is at the broker.

The latency is that of `latency`: from the commit of a publish to the call of its handler, at 50 events a second.

Logs are kept here, for all three alike, because they tell when a worker receives from the broker and whether it always
did: one that falls back to Postgres is out. Otherwise its figure would be that of Postgres.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks import brokers, roster
from benchmarks.environments import ContestantError
from benchmarks.figures import Outcome, events_for
from benchmarks.scenarios import Entry, Scenario
from benchmarks.scenarios.drain import Pace, drain, watch
from benchmarks.scenarios.latency import Paced, deliver_paced
from spectral.core.events.infrastructure.observability.logs import BROKER_BACK, BROKER_LOST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.arena import Arena, Running
    from benchmarks.brokers import Broker
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

_START: Final = 20.0
_PATIENT: Final = {"SPECTRAL_RELAY_LATE": "3600"}
"""Seconds that a row may be due before a worker takes it past the broker: longer than any turn."""

_SWITCH: Final = "select core.relay_switch(%s, 'benchmarks', 'to measure it')"
_PAST_THE_BROKER: Final = "select count(*) from core.outbox where status = 'delivered' and relayed_at is null"


@dataclass(frozen=True, slots=True)
class _Turn:
    """One substrate in one round, in a database of its own."""

    arena: Arena
    plan: Plan
    kind: str
    dsn: str

    @property
    def line(self) -> Line:
        return roster.SUBSTRATES[self.kind]

    def drain(self, count: int) -> Outcome:
        """So many events that were published beforehand."""
        self.arena.clear(self.line.contestant, self.dsn)
        window = 2 * self.plan.window
        if self.kind not in brokers.KINDS:
            self.arena.fill(self.line, "noop", count, self.dsn)
            return drain(self.arena, self.line, "noop", count, window=window, dsn=self.dsn)
        with (
            psycopg.connect(self.dsn, autocommit=True) as watching,
            brokers.running(self.kind) as broker,
            self._receiving(broker, "noop") as worker,
        ):
            self.arena.fill(self.line, "noop", count, self.dsn)
            with brokers.relaying(self.dsn, broker.variables) as relay:
                ask_left = partial(self.arena.left, self.line.contestant, watching)
                beside = {"relay": relay.pid, "broker": broker.pid}
                return watch(self.arena, worker, ask_left, count, window, beside)

    def latency(self) -> dict[str, float]:
        """At 50 events a second."""
        self.arena.clear(self.line.contestant, self.dsn)
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            output = Path(directory) / "seen"
            if self.kind not in brokers.KINDS:
                with self.arena.working(self.line, "note", self.dsn, output) as worker:
                    return deliver_paced(self.arena, self.plan, Paced(self.line, self.dsn, output), worker)
            with (
                brokers.running(self.kind) as broker,
                self._receiving(broker, "note", output) as worker,
                brokers.relaying(self.dsn, broker.variables),
            ):
                return deliver_paced(self.arena, self.plan, Paced(self.line, self.dsn, output), worker)

    @contextmanager
    def _receiving(self, broker: Broker, kind: str, output: Path | None = None) -> Iterator[Running]:
        """A worker that receives from the broker from the beginning of the block to its end.

        Raises:
            ContestantError: it does not.
        """
        line = replace(self.line, variables={**broker.variables, **_PATIENT})
        with self.arena.working(line, kind, self.dsn, output) as worker:
            worker.wait_until_it_said(BROKER_BACK, _START)
            yield worker
            if worker.has_said(BROKER_LOST):
                raise ContestantError(f"{line.label} lost its broker and claimed from Postgres")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(_PAST_THE_BROKER).fetchone()
        if row is None or row[0]:
            raise ContestantError(f"{line.label} delivered {row and row[0]} events that the relay had not sent")


def _entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Ours on each of them, if ours takes part."""
    if roster.SPECTRAL not in plan.lines:
        return []
    return [
        Entry(line.label, line.group, partial(_one_round, arena, plan, kind, Pace(line.rates["noop"])))
        for kind, line in roster.SUBSTRATES.items()
    ]


def _one_round(arena: Arena, plan: Plan, kind: str, pace: Pace) -> Outcome:
    dsn = arena.database(roster.OURS, f"on-{kind}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_SWITCH, [kind])
    turn = _Turn(arena, plan, kind, dsn)
    drained = turn.drain(events_for(pace.rate, plan.substrate_seconds))
    came = turn.latency()
    pace.rate = max(1.0, drained.value)
    return Outcome(drained.value, {"latency_p50": came["p50"], "latency_p99": came["p99"], **drained.extras})


SUBSTRATES: Final = Scenario(
    name="substrates",
    title="Postgres alone, NATS and Redis: drain (no-op), and commit to handler at 50 events a second",
    entries=_entries,
)
