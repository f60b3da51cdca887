"""Growth and pinned snapshots: the same drain of ours with old rows in the table, and beside an old open snapshot.

Each number of old rows has a database of its own, so that rounds can be interleaved. Old rows are delivered events with
their dedup records, as a month of traffic leaves them. A snapshot is pinned before the events are published and stays
until the drain is over, so that no version that dies in between can be removed.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg

from benchmarks import floor, roster
from benchmarks.scenarios import Entry, Scenario
from benchmarks.scenarios.drain import Pace, drain, floor_database, floor_round

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from benchmarks.arena import Arena
    from benchmarks.figures import Outcome
    from benchmarks.plan import Plan
    from benchmarks.roster import Line

_CHUNK: Final = 250_000
_WRITERS: Final = 2
_HISTORY: Final = """
with made as materialized (
    select core.uuid7() as id, clock_timestamp() - make_interval(days => 30) + make_interval(secs => n) as at
    from generate_series(1, %(count)s) as n
), handled as (
    insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)
    select 'platform.do_nothing', id::text, id, 'event' from made
)
insert into core.outbox (id, event_type, source, target, payload, idempotency_key, generation, channel, status,
    attempts, occurred_at, created_at, next_attempt_at, claimed_by, claimed_at, delivered_at)
select id, 'worlds.noop.sent', 'worlds', 'platform', '{"number": 1}', id::text, 1, 'outbox_gen_1', 'delivered', 1,
    at, at, at, 'long-gone', at, at
from made
"""


def label_of(history: int) -> str:
    """What the entry with so many old rows is called."""
    return f"Spectral, {history:,} old rows" if history else "Spectral, empty table"


def _growth_entries(arena: Arena, plan: Plan) -> list[Entry]:
    """One for each number of old rows; they are written when the first round comes to them."""
    pace = Pace(roster.SPECTRAL.rates["noop"])
    return [
        Entry(label_of(history), "ours", partial(_with_history, arena, plan, history, pace))
        for history in plan.histories
    ]


def _with_history(arena: Arena, plan: Plan, history: int, pace: Pace) -> Outcome:
    dsn = arena.database(roster.OURS, f"history-{history}")
    _write_history(arena, dsn, history)
    # as many events for all of them, whatever each would manage
    count = pace.events(plan)
    arena.fill(roster.SPECTRAL, "noop", count, dsn)
    return drain(arena, roster.SPECTRAL, "noop", count, window=2 * plan.window, dsn=dsn)


def _write_history(arena: Arena, dsn: str, history: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select exists (select from core.outbox)").fetchone()
    if not history or (row and row[0]):
        return
    with ThreadPoolExecutor(_WRITERS) as writers:
        chunks = [min(_CHUNK, history - first) for first in range(0, history, _CHUNK)]
        list(writers.map(partial(_write_chunk, dsn), chunks))
    arena.settle_down(dsn)


def _write_chunk(dsn: str, count: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        # nobody is to be told of what is long delivered
        connection.execute("set session_replication_role = replica")
        connection.execute("set synchronous_commit = off")
        connection.execute(_HISTORY, {"count": count})


def _pinned_entries(arena: Arena, plan: Plan) -> list[Entry]:
    """Ours, the fastest peers and the floor, in pairs."""
    entries = []
    for line in plan.fastest_lines():
        pace = Pace(line.rates["noop"])
        for pinned in (False, True):
            label = f"{line.label}, {'pinned' if pinned else 'free'}"
            entries.append(Entry(label, line.group, partial(_beside, arena, plan, line, pace, pinned=pinned)))
    if plan.floor and plan.extras:
        what, pace = (floor.drain_script(), floor.BATCH, 1), Pace(20_000)
        for pinned in (False, True):
            label = f"floor: our SQL, {'pinned' if pinned else 'free'}"
            entries.append(Entry(label, "floor", partial(_floor_beside, arena, plan, what, pace, pinned=pinned)))
    return entries


def _beside(arena: Arena, plan: Plan, line: Line, pace: Pace, *, pinned: bool) -> Outcome:
    dsn = arena.database(line.contestant)
    arena.clear(line.contestant, dsn)
    count = pace.events(plan)
    with _snapshot(dsn) if pinned else nullcontext():
        arena.fill(line, "noop", count, dsn)
        outcome = drain(arena, line, "noop", count, window=2 * plan.window, dsn=dsn)
    if not pinned:
        pace.rate = max(1.0, outcome.value)
    return outcome


def _floor_beside(
    arena: Arena, plan: Plan, what: tuple[floor.Script, int, int], pace: Pace, *, pinned: bool
) -> Outcome:
    with _snapshot(floor_database(arena)) if pinned else nullcontext():
        return floor_round(arena, plan, what, Pace(pace.rate))


def _snapshot(dsn: str) -> AbstractContextManager[psycopg.Connection[Any]]:
    """A transaction that looks at the database as it is now, until it is closed."""
    connection = psycopg.connect(dsn)
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("select count(*) from pg_class")
    return connection


GROWTH: Final = Scenario(name="growth", title="drain (no-op) with old rows in the table", entries=_growth_entries)
PINNED: Final = Scenario(name="pinned", title="drain (no-op) beside an old open snapshot", entries=_pinned_entries)
