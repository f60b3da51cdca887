"""Drains: events that were published beforehand, from the first handler call to the last settled row.

The same method for everybody. The clock starts when the first handler is called, so that neither the start of Python
nor connecting counts; nor does the first claim, which is worth a few per cent to whoever claims by the thousand.
Handler calls are counted by a number in memory that is shared with whoever measures. When there were as many as events,
the database is asked every 20 ms whether anything is left to settle, and the clock stops when it says no. Who takes
longer than the window is cut there, and the rate is that of what the database says was settled until then.

The numbers of events follow the speed of each, so that a drain lasts a little over two seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks import floor, roster
from benchmarks.environments import ContestantError
from benchmarks.figures import Outcome, events_for
from benchmarks.scenarios import Entry, Scenario
from benchmarks.wire import CountingProxy
from spectral.core.events import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.arena import Arena, Running
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

_START: Final = 20.0
_LOOK: Final = 0.02
_FLOOR_RATES: Final = {"noop": 30_000.0, "upsert": 3_000.0}
_FLOOR_SHAPES: Final = ((100, 1), (500, 1), (500, 2))
"""Batches and clients of the drain by pgbench; of the one with upserts they are our own defaults."""

TITLES: Final = {
    "noop": "drain, plain handler that does nothing",
    "upsert": "drain, one upsert per event (ours in the transaction that settles it)",
    "sleep": "drain, plain handler that awaits 10 ms",
}


@dataclass(slots=True)
class Pace:
    """What is known of an entry's speed; the next round is filled by it."""

    rate: float

    def events(self, plan: Plan) -> int:
        """How many to fill in."""
        return events_for(self.rate, plan.drain_seconds)


def drain(arena: Arena, line: Line, kind: str, count: int, *, window: float, dsn: str) -> Outcome:
    """Start a worker on a filled database and watch it work off what is there."""
    with (
        psycopg.connect(dsn, autocommit=True) as watching,
        arena.working(line, kind, dsn) as worker,
    ):
        return watch(arena, worker, partial(arena.left, line.contestant, watching), count, window)


def watch(
    arena: Arena,
    worker: Running,
    ask_left: Callable[[], int],
    count: int,
    window: float,
    beside: Mapping[str, int] | None = None,
) -> Outcome:
    """From the first handler call to the last settled row, or to the end of the window."""
    worker.wait_for_first(_START)
    before = arena.read(worker.process, beside)
    deadline = before.clock + window
    while worker.calls < count and time.monotonic() < deadline:
        time.sleep(_LOOK / 4)
    while (left := ask_left()) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    after = arena.read(worker.process, beside)
    settled = count - left
    return Outcome(settled / (after.clock - before.clock), {"events": settled, **after.cost_since(before, settled)})


def count_costs(arena: Arena, line: Line, kind: str, count: int, dsn: str) -> dict[str, float]:
    """Statements and round trips for each event, in drains that are not timed: of many events less those of one.

    The difference leaves out what a worker says when it starts.
    """
    alone, many = (_count(arena, line, kind, events, dsn) for events in (1, count))
    return {name: max(0.0, many[name] - alone[name]) / (count - 1) for name in many}


def _count(arena: Arena, line: Line, kind: str, count: int, dsn: str) -> dict[str, float]:
    arena.clear(line.contestant, dsn)
    arena.fill(line, kind, count, dsn)
    with (
        CountingProxy(dsn) as proxy,
        psycopg.connect(dsn, autocommit=True) as watching,  # before the counting, so that it is not counted
        arena.counting_statements(dsn),
    ):
        before = arena.statements(dsn)
        with arena.working(line, kind, proxy.dsn) as worker:
            worker.wait_for_first(_START)
            deadline = time.monotonic() + _START
            while worker.calls < count and time.monotonic() < deadline:
                time.sleep(_LOOK)
            while arena.left(line.contestant, watching) and time.monotonic() < deadline:
                time.sleep(_LOOK)
            return {"statements": arena.statements(dsn) - before, "round_trips": proxy.round_trips}


def scenario(kind: str) -> Scenario:
    """One kind of handler, everybody."""
    return Scenario(name=f"drain-{kind}", title=TITLES[kind], entries=partial(_entries, kind))


def _entries(kind: str, arena: Arena, plan: Plan) -> list[Entry]:
    """Everybody at every setting, then the floor."""
    entries = [
        Entry(line.label, line.group, partial(_one_round, arena, plan, line, kind, Pace(line.rates[kind])), line.once)
        for line in plan.lines
    ]
    return entries + (floor_entries(arena, plan, kind) if plan.floor else [])


def _one_round(arena: Arena, plan: Plan, line: Line, kind: str, pace: Pace) -> Outcome:
    dsn = arena.database(line.contestant)
    counted = count_once(arena, plan, line, kind, dsn)
    arena.clear(line.contestant, dsn)
    count = pace.events(plan)
    arena.fill(line, kind, count, dsn)
    outcome = drain(arena, line, kind, count, window=plan.window, dsn=dsn)
    if kind == "upsert":
        _require_effects(dsn, round(outcome.extras["events"]))
    pace.rate = max(outcome.value, 1.0)
    return Outcome(outcome.value, {**outcome.extras, **counted})


def _require_effects(dsn: str, settled: int) -> None:
    """What was settled was done, too: a contestant that skips the work is out."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select count(*) from bench_effects").fetchone()
    if row is None or row[0] < settled:
        raise ContestantError(f"settled {settled} events and wrote {row[0] if row else 0}")


def count_once(arena: Arena, plan: Plan, line: Line, kind: str, dsn: str) -> dict[str, float]:
    """The counts of a line, taken before its first timed round; not of those too slow to be worth it."""
    count = min(plan.counted, events_for(line.rates[kind], 1.0, least=50))
    if line.rates[kind] * _START < count or kind not in plan.counted_kinds:
        return {}
    return arena.once(f"{kind} {line.label}", partial(count_costs, arena, line, kind, count, dsn))


def floor_entries(arena: Arena, plan: Plan, kind: str) -> list[Entry]:
    """The same SQL by pgbench; a handler that waits has no floor."""
    defaults = WorkerSettings(generation=1)
    drains = _FLOOR_SHAPES if plan.extras else _FLOOR_SHAPES[-1:]
    shapes: dict[str, list[tuple[floor.Script, str, int, int]]] = {
        "noop": [(floor.drain_script(batch), "", batch, clients) for batch, clients in drains],
        "upsert": [
            (write(defaults.batch), how, defaults.batch, defaults.lanes)
            for write, how in ((floor.upsert_script, ""), (floor.pipelined_upsert_script, floor.PIPELINED))
        ],
    }
    return [
        Entry(
            f"floor: our SQL, {batch} at once, {clients} client{'s' * (clients > 1)}{how}",
            "floor",
            partial(floor_round, arena, plan, (script, batch, clients), Pace(_FLOOR_RATES[kind])),
        )
        for script, how, batch, clients in shapes.get(kind, [])
    ]


def floor_round(arena: Arena, plan: Plan, what: tuple[floor.Script, int, int], pace: Pace) -> Outcome:
    """Fill the copy and have pgbench drain it, each client the same number of batches."""
    script, batch, clients = what
    dsn = floor_database(arena)
    turns = max(1, pace.events(plan) // (batch * clients))
    count = turns * batch * clients
    floor.refill(dsn, count)
    arena.settle_down(dsn)
    before = arena.read()
    limit = ("-t", str(turns), *script.options)
    rate = batch * floor.PgBench.from_wheel().run(dsn, script.text, clients=clients, limit=limit)
    after = arena.read()
    pace.rate = rate
    cost = after.cost_since(before, count)
    return Outcome(rate, {"events": count, "server_cpu": cost["server_cpu"], "wal": cost["wal"]})


def floor_database(arena: Arena) -> str:
    """Our schema, and the copies without triggers."""
    dsn = arena.database(roster.OURS, "floor")
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select to_regclass('floor.outbox') is null").fetchone()
    if row and row[0]:
        floor.set_up(dsn)
    return dsn
