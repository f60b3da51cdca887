"""Publishes: one event in each transaction from several connections of one process, and many at once.

Everybody publishes on a connection of the caller's inside an explicit transaction, except procrastinate, which has a
pool of its own. A bulk publish includes making the events. The floor is pgbench inserting the same columns into a copy
of the outbox without any trigger.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks import floor, roster
from benchmarks.arena import rate_in
from benchmarks.environments import ContestantError
from benchmarks.figures import Outcome
from benchmarks.scenarios import Entry, Scenario
from benchmarks.scenarios.drain import floor_database
from benchmarks.wire import CountingProxy

if TYPE_CHECKING:
    from benchmarks.arena import Arena
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

BUSY_CONNECTIONS: Final = 16
_SPECTRAL: Final = "from spectral_ops.cli import main; main()"
_COUNTED_SECONDS: Final = 0.5
_BUSY_LONGER: Final = 2.0
NO_TRIGGER: Final = "floor: plain insert, no trigger"


def singles(connections: int) -> Scenario:
    """One event in each transaction, from so many connections."""
    return Scenario(
        name=f"publish-{connections}",
        title=f"publish, one per transaction, {connections} connection{'s' * (connections > 1)}",
        entries=partial(_single_entries, connections),
    )


def _single_entries(connections: int, arena: Arena, plan: Plan) -> list[Entry]:
    """Ours and the peers; then pgbench, on our table and on the copy."""
    entries = [
        Entry(line.label, line.group, partial(_singles, arena, plan, line, connections)) for line in plan.best_lines()
    ]
    if plan.floor:
        ours = partial(pgbench_inserts, arena, plan, "core.outbox", connections)
        plain = partial(pgbench_inserts, arena, plan, "floor.outbox", connections)
        entries += [Entry("Spectral's table, by pgbench", "ours", ours), Entry(NO_TRIGGER, "floor", plain)]
    return entries


def _singles(arena: Arena, plan: Plan, line: Line, connections: int) -> Outcome:
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    before = arena.read()
    rate = rate_in(arena.publish(line, "singles", dsn, "noop", connections, plan.publish_seconds))
    cost = arena.read().cost_since(before, round(rate * plan.publish_seconds))
    counted = arena.once(f"publish {line.label}", partial(_count_costs, arena, line, dsn))
    return Outcome(rate, {"server_cpu": cost["server_cpu"], "wal": cost["wal"], **counted})


def _count_costs(arena: Arena, line: Line, dsn: str) -> dict[str, float]:
    """Statements and round trips for each publish, in a turn that is not timed. Connecting is among them."""
    with CountingProxy(dsn) as proxy, arena.counting_statements(dsn):
        before = arena.statements(dsn)
        rate = rate_in(arena.publish(line, "singles", proxy.dsn, "noop", 1, _COUNTED_SECONDS))
        events = max(1, round(rate * _COUNTED_SECONDS))
        return {
            "statements": (arena.statements(dsn) - before) / events,
            "round_trips": proxy.round_trips / events,
        }


def pgbench_inserts(arena: Arena, plan: Plan, table: str, connections: int) -> Outcome:
    """Single inserts by pgbench, everything prepared."""
    dsn = floor_database(arena)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate core.outbox, core.event_handled, floor.outbox")
    script, limit = floor.insert_script(table, "noop"), _for_seconds(plan.publish_seconds)
    return Outcome(floor.PgBench.from_wheel().run(dsn, script, clients=connections, limit=limit))


def _bulk_entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Those that have a bulk publish; then the same rows made inside the server."""
    entries = [Entry(line.label, line.group, partial(_bulk, arena, plan, line)) for line in plan.best_lines()]
    if plan.floor:
        entries.append(Entry("floor: insert ... select, no trigger", "floor", partial(_bulk_floor, arena, plan)))
    return entries


def _bulk(arena: Arena, plan: Plan, line: Line) -> Outcome:
    if not line.contestant.has_bulk:
        raise ContestantError(f"{line.contestant.name} has no bulk publish")
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    before = arena.read()
    rate = rate_in(arena.publish(line, "bulk", dsn, "noop", plan.bulk))
    return Outcome(rate, {"wal": arena.read().cost_since(before, plan.bulk)["wal"]})


def _bulk_floor(arena: Arena, plan: Plan) -> Outcome:
    dsn = floor_database(arena)
    floor.refill(dsn, 0)
    rate = floor.PgBench.from_wheel().run(dsn, floor.bulk_script(plan.bulk), clients=1, limit=("-t", "3"))
    return Outcome(rate * plan.bulk)


def _busy_entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Each mode of notifying that this schema has, and the plain insert, by pgbench: the server is what is measured."""
    if not plan.floor:
        return []
    modes = notify_modes(arena)
    entries = [
        Entry(f"Spectral's table, notify {mode}", "ours", partial(_beside, arena, plan, "core.outbox", mode))
        for mode in modes
    ]
    return [*entries, Entry(NO_TRIGGER, "floor", partial(_beside, arena, plan, "floor.outbox", modes[0]))]


def _beside(arena: Arena, plan: Plan, table: str, mode: str) -> Outcome:
    """With the same worker beside it whatever the table is.

    It is busy without using much of the machine: it works off events that take 200 ms each. For longer than the other
    publishes: what a worker does about publishers takes effect within the first half second.
    """
    seconds = plan.publish_seconds + _BUSY_LONGER
    dsn = floor_database(arena)
    arena.clear(roster.OURS, dsn)
    set_notify_mode(dsn, mode)
    arena.fill(roster.SPECTRAL, "slow", round(600 * (seconds + 2)), dsn)
    script, limit = floor.insert_script(table, "slow"), _for_seconds(seconds)
    with arena.working(roster.SPECTRAL, "slow", dsn) as worker:
        worker.wait_for_first(20)
        return Outcome(floor.PgBench.from_wheel().run(dsn, script, clients=BUSY_CONNECTIONS, limit=limit))


def _for_seconds(seconds: float) -> tuple[str, ...]:
    return ("-M", "prepared", "-T", f"{max(1, round(seconds))}")


def notify_modes(arena: Arena) -> tuple[str, ...]:
    """The modes this schema knows: only `always` before the bell is there."""
    with psycopg.connect(floor_database(arena), autocommit=True) as connection:
        row = connection.execute("select to_regproc('core.outbox_bell_needed') is not null").fetchone()
    return ("bell", "always", "off") if row and row[0] else ("always",)


def set_notify_mode(dsn: str, mode: str) -> None:
    """Have the operator's command set it; before the bell there is nothing to set."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select to_regproc('core.outbox_bell_needed') is not null").fetchone()
    if not (row and row[0]):
        return
    subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-c", _SPECTRAL, "bell", "set", mode, "--yes", "--reason", "benchmark", "--by", "bench"],
        env={**os.environ, "SPECTRAL_DATABASE_URL": dsn},  # noqa: TID251  the top of a program
        check=True,
        capture_output=True,
    )


BULK: Final = Scenario(name="publish-bulk", title="publish, 10,000 in one call", entries=_bulk_entries)
BUSY: Final = Scenario(
    name="publish-busy",
    title="publish, one per transaction, 16 connections (pgbench) beside a busy worker",
    entries=_busy_entries,
)
