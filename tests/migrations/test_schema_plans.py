"""A million rows, a thousand of them to be delivered: what the verbs cost does not depend on history.

The plans are those of the statements inside the functions, as auto_explain sees them; the cost is counted in buffers.
The table has 33,000 pages and its primary key 5,000, so that reading either whole cannot be missed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tests.migrations.schema import Connection, outbox_row, value
from tests.migrations.sql import CHANNELS, EVENT_TYPE, claim, publish, subscribe

# A million rows on a busy machine take longer than the usual timeout allows.
pytestmark = pytest.mark.timeout(300)

# Scattered among a million: 1,000 pending (of three contexts, and broadcasts), 100 in flight, 1,000 failed.
FILL = """\
insert into core.outbox (
    id, event_type, source, target, channel, generation, idempotency_key, status, attempts, next_attempt_at,
    claim_token, claimed_by, claimed_at, delivered_at, last_error, first_failed_at
)
select
    gen_random_uuid(), 'worlds.scan.completed', 'worlds',
    (array['platform', 'worlds', 'core', null])[1 + n / 1000 %% 4],
    'outbox_gen_1', 1, 'key-' || n, row.status, case row.status when 'pending' then 0 else 1 end,
    now() - interval '1 day' + n * interval '1 ms',
    case row.status when 'in_flight' then gen_random_uuid() end,
    case when row.status in ('in_flight', 'failed') then 'worker-' || n %% 7 end,
    case when row.status in ('in_flight', 'failed') then now() - interval '1 day' end,
    case row.status when 'delivered' then now() end,
    case row.status when 'failed' then 'ValueError: no' end,
    case row.status when 'failed' then now() - n * interval '1 ms' end
from generate_series(1, %s) as n
cross join lateral (
    select case when n %% 1000 = 0 then 'pending' when n %% 10000 = 1 then 'in_flight' when n %% 1000 = 2 then 'failed'
           else 'delivered' end as status
) as row"""

# The dedup log beside it, of many handlers: neither half of its key finds a row without the other.
FILL_HANDLED = """\
insert into core.event_handled (handler_name, idempotency_key, event_id)
select 'platform.handler_' || n %% 5000, 'key-' || n, gen_random_uuid()
from generate_series(1, %s) as n"""

EXPLAIN = """\
load 'auto_explain';
set auto_explain.log_min_duration = 0;
set auto_explain.log_nested_statements = on;
set auto_explain.log_analyze = on;
set auto_explain.log_buffers = on;
set auto_explain.log_timing = off;
set auto_explain.log_format = json;
set auto_explain.log_level = notice;
set client_min_messages = notice"""


@dataclass(frozen=True)
class Reading:
    """How one statement reached core.outbox (or the dedup log), and which indexes it read from end to end."""

    statement: str
    indexes: frozenset[str]
    whole: frozenset[str]
    scans: tuple[str, ...]
    buffers: int


@dataclass(frozen=True)
class Verb:
    """What is run, by which index it finds its rows if not by their ids, and how many buffers a statement may touch.

    No index: by where they lie. `others` are indexes of which it may look something up besides; `from_the_start` those
    of which it reads the first entries.
    """

    run: Callable[[Connection], object]
    index: str | None = "outbox_pkey"
    buffers: int = 500
    others: frozenset[str] = frozenset()
    from_the_start: frozenset[str] = frozenset()


def claim_ten(connection: Connection) -> None:
    claim(connection, limit=10)


def claim_for_handlers(connection: Connection) -> None:
    # No handler of ours has anything on record, which is the usual case.
    handlers = [f"platform.project_{number}" for number in range(5)]
    connection.execute("select core.outbox_claim('w', 'platform', '{1}', %s, null, 10, null, %s)", [CHANNELS, handlers])


def claim_from(connection: Connection) -> None:
    """As workers do, for handlers of which none has anything on record."""
    handlers = [f"platform.project_{number}" for number in range(5)]
    connection.execute(
        "select core.outbox_claim_from('w', 'platform', '{1}', %s, %s, 10, null, null, %s, %s)",
        [CHANNELS, [EVENT_TYPE], handlers, [EVENT_TYPE] * len(handlers)],
    )


def next_due(connection: Connection) -> None:
    connection.execute("select core.outbox_next_due('{platform,worlds}', '{1}', %s)", [CHANNELS])


def fan_out(connection: Connection) -> None:
    connection.execute("select core.outbox_fan_out('{1}', %s, 10)", [CHANNELS])


def fail_unhandled(connection: Connection) -> None:
    connection.execute("select core.outbox_fail_unhandled('worlds', '{1}', %s, '0 s', 10)", [CHANNELS])


def reap(connection: Connection) -> None:
    connection.execute("select core.outbox_reap('1 s', '0 s', 10)")


def ids_of(connection: Connection, status: str) -> list[UUID]:
    """Ten ids, found without leaving a plan of ours."""
    connection.execute("set auto_explain.log_min_duration = -1")
    rows = connection.execute("select id from core.outbox where status = %s limit 10", [status]).fetchall()
    connection.execute("set auto_explain.log_min_duration = 0")
    return [event_id for (event_id,) in rows]


def held(connection: Connection) -> list[list[UUID]]:
    """Ids and tokens of ten rows in flight, in the same way."""
    connection.execute("set auto_explain.log_min_duration = -1")
    rows = connection.execute("select id, claim_token from core.outbox where status = 'in_flight' limit 10").fetchall()
    connection.execute("set auto_explain.log_min_duration = 0")
    return [[event_id for event_id, _ in rows], [token for _, token in rows]]


def begin(connection: Connection, claims: list[list[UUID]] | None = None) -> None:
    ids, tokens = claims or held(connection)
    handlers = ["platform.project_scan"] * len(ids)
    connection.execute("select core.outbox_begin(%s::uuid[], %s::uuid[], %s::text[])", [ids, tokens, handlers])


def settle(connection: Connection, claims: list[list[UUID]] | None = None, outcome: str = "dead_letter") -> None:
    ids, tokens = claims or held(connection)
    outcomes, errors, delays = ([given] * len(ids) for given in (outcome, "ValueError: no", "0 s"))
    connection.execute(
        "select core.outbox_settle(%s::uuid[], %s::uuid[], %s::text[], %s::text[], %s::interval[])",
        [ids, tokens, outcomes, errors, delays],
    )


def deliver(connection: Connection) -> None:
    ids, tokens = held(connection)
    handlers = ["platform.project_scan"] * len(ids)
    connection.execute(
        "select core.outbox_deliver(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[])", [ids, tokens, ids, handlers]
    )


def deliver_alike(connection: Connection) -> None:
    """Of ten rows one is of this claim; the others are looked at, and are lost."""
    ids, tokens = held(connection)
    connection.execute(
        "select core.outbox_deliver_alike(%s::uuid, %s::uuid[], '{platform.project_scan}')",
        [tokens[0] if tokens else None, ids],
    )


def together(connection: Connection) -> None:
    """Begin and deliver a group."""
    ids, tokens = held(connection)
    parameters = [ids, tokens, ["platform.project_scan"] * len(ids)]
    with connection.transaction():
        connection.execute("select core.outbox_begin_together(%s::uuid[], %s::uuid[], %s::text[])", parameters)
        connection.execute("select core.outbox_deliver_together(%s::uuid[], %s::uuid[], %s::text[])", parameters)


def guarded(connection: Connection) -> None:
    """Begin, settle, and what a commit would ask."""
    with connection.transaction():
        connection.execute("set local spectral.guarded = on")
        claims = held(connection)
        begin(connection, claims)
        settle(connection, claims, "delivered")
        connection.execute("set constraints all immediate")


def release(connection: Connection) -> None:
    connection.execute("select core.outbox_release(%s::uuid[], %s::uuid[])", held(connection))


def set_aside(connection: Connection) -> None:
    ids, tokens = held(connection)
    delays = ["5 s"] * len(ids)
    connection.execute("select core.outbox_set_aside(%s::uuid[], %s::uuid[], %s::interval[])", [ids, tokens, delays])


def claim_aside(connection: Connection) -> None:
    event_id, *_ = [*ids_of(connection, "pending"), uuid4()]
    connection.execute(
        "select core.outbox_claim_aside('w', 'platform', '{1}', %s, %s, 0, 0, '{}', '{}')", [CHANNELS, event_id]
    )


def renew(connection: Connection) -> None:
    connection.execute("select core.outbox_renew(%s::uuid[], %s::uuid[])", held(connection))


def replay(connection: Connection) -> None:
    connection.execute("select core.outbox_replay_many(%s::uuid[], 1)", [ids_of(connection, "failed")])


def discard(connection: Connection) -> None:
    connection.execute("select core.outbox_discard(%s::uuid[])", [ids_of(connection, "failed")])


DRAIN = "update core.deployments set status = 'draining' where generation = 1"


def hand_over(connection: Connection) -> None:
    connection.execute(DRAIN)
    connection.execute("select core.outbox_hand_over(1, 2, null, 10)")


def hand_over_one_context(connection: Connection) -> None:
    connection.execute(DRAIN)
    # The last of its channel: the rows of two other contexts lie before.
    connection.execute("select core.outbox_hand_over(1, 2, 'worlds', 10)")


def blockers(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("set local role spectral_operator")
        connection.execute("select * from core.deployment_blockers(1, 10)")


def release_brake(connection: Connection) -> None:
    with connection.transaction():
        connection.execute("select core.brake_pull('platform', 'ada', 'r')")
        connection.execute("select core.brake_release('platform')")


def sweep_outbox(connection: Connection) -> None:
    """A hundred blocks, in which everything is over."""
    with connection.transaction():
        connection.execute("select core.sweep_begin('w')")
        connection.execute("select * from core.sweep_outbox('w', 0, 100, '0 s', '0 s', 10)")


def sweep_handled(connection: Connection) -> None:
    """One block, in which every record is of a key that lives, so that each is looked up."""
    with connection.transaction():
        connection.execute("select core.sweep_begin('w')")
        connection.execute("select * from core.sweep_handled('w', 0, 1, '0 s', '0 s', 10)")


def insight_lanes(connection: Connection) -> None:
    connection.execute("select * from core.insight_lanes(clock_timestamp(), 10, 10)")


def insight_in_flight(connection: Connection) -> None:
    connection.execute("select * from core.insight_in_flight(clock_timestamp(), 10)")


def insight_failed(connection: Connection) -> None:
    connection.execute("select * from core.insight_failed(clock_timestamp(), 10)")


def insight_oldest_delivered(connection: Connection) -> None:
    connection.execute("select core.insight_oldest_delivered()")


def key_lives(connection: Connection) -> None:
    connection.execute("select core.outbox_key_lives('key-77'), core.outbox_key_lives(gen_random_uuid()::text)")


VERBS: Mapping[str, Verb] = {
    "claim": Verb(claim_ten, "outbox_pending_idx"),
    "claim_for_handlers": Verb(claim_for_handlers, "outbox_pending_idx"),
    "claim_from": Verb(claim_from, "outbox_pending_idx"),
    "next_due": Verb(next_due, "outbox_pending_idx", 50),
    "fan_out": Verb(fan_out, "outbox_pending_idx"),
    "fail_unhandled": Verb(fail_unhandled, "outbox_pending_idx"),
    # It looks at every row in flight, and there are a hundred.
    "reap": Verb(reap, "outbox_in_flight_idx", 1_000),
    "begin": Verb(begin),
    "settle": Verb(settle),
    "deliver": Verb(deliver),
    "deliver_alike": Verb(deliver_alike),
    "together": Verb(together),
    "guarded": Verb(guarded),
    "release": Verb(release),
    "set_aside": Verb(set_aside),
    "claim_aside": Verb(claim_aside, others=frozenset({"outbox_pending_idx"})),
    "renew": Verb(renew),
    "replay": Verb(replay),
    "discard": Verb(discard),
    "hand_over": Verb(hand_over, "outbox_pending_idx"),
    "hand_over_one_context": Verb(hand_over_one_context, "outbox_pending_idx"),
    "blockers": Verb(blockers, "outbox_pending_idx", others=frozenset({"outbox_in_flight_idx"})),
    "release_brake": Verb(release_brake, "outbox_pending_idx"),
    "sweep_outbox": Verb(sweep_outbox, None),
    "sweep_handled": Verb(sweep_handled, None, others=frozenset({"outbox_key_idx"})),
    "key_lives": Verb(key_lives, "outbox_key_idx", 50),
    "insight_lanes": Verb(insight_lanes, "outbox_pending_idx"),
    "insight_in_flight": Verb(insight_in_flight, "outbox_in_flight_idx"),
    "insight_failed": Verb(insight_failed, "outbox_failed_idx", from_the_start=frozenset({"outbox_failed_idx"})),
    "insight_oldest_delivered": Verb(insight_oldest_delivered, None),
}

WHOLE_IS_SMALL = {"outbox_in_flight_idx"}  # there are as many rows in flight as workers can hold


def explained(connection: Connection, run: Callable[[Connection], object]) -> list[Reading]:
    """Run it in a transaction that is rolled back, and see how its statements reached core.outbox."""
    said: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said.append(diagnostic.message_primary or "")

    connection.execute(EXPLAIN)
    connection.add_notice_handler(note)
    try:
        with connection.transaction(force_rollback=True):
            run(connection)
    finally:
        connection.remove_notice_handler(note)
        connection.execute("set auto_explain.log_min_duration = -1")
    plans = [json.loads(text.split("plan:", 1)[1]) for text in said if text.startswith("duration:")]
    readings = [reading_of(plan) for plan in plans]
    return [reading for reading in readings if reading.scans]


def reading_of(plan: Mapping[str, Any]) -> Reading:
    nodes = list(nodes_of(plan["Plan"]))
    # A bitmap's index scan names its index only.
    tables = ("outbox", "event_handled")
    scans = [node for node in nodes if node.get("Relation Name") in tables and "Scan" in node["Node Type"]]
    by_index = [(name, node) for node in nodes if (name := node.get("Index Name", "")).startswith(tables)]
    indexes = frozenset(name for name, _ in by_index)
    whole = frozenset(name for name, node in by_index if "Index Cond" not in node)
    top = plan["Plan"]
    buffers = top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0)
    return Reading(plan["Query Text"], indexes, whole, tuple(node["Node Type"] for node in scans), buffers)


def nodes_of(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)


def costly(verbs: Mapping[str, list[Reading]], when: str) -> list[str]:
    """What is wrong with how these verbs reached the table, in words; nothing if they are as cheap as they should."""
    found = []
    for name, readings in verbs.items():
        verb = VERBS[name]
        for reading in readings:
            # Who knows the ids goes by them. The rows in flight leave dead entries behind in their index for as long as
            # a snapshot pins them, and the DLQ may be large.
            strange = reading.indexes - {verb.index, "outbox_pkey", "event_handled_pkey"} - verb.others
            strange |= reading.whole - WHOLE_IS_SMALL - verb.from_the_start
            if "Seq Scan" in reading.scans or reading.buffers >= verb.buffers or strange:
                by = ", ".join(sorted(reading.indexes)) or "no index"
                found.append(f"{when}: {name} touches {reading.buffers} buffers by {by} ({', '.join(reading.scans)})")
        if verb.index and verb.index not in {index for reading in readings for index in reading.indexes}:
            found.append(f"{when}: {name} does not use {verb.index}")
    return found


def every_verb(connection: Connection) -> dict[str, list[Reading]]:
    return {name: explained(connection, verb.run) for name, verb in VERBS.items()}


def dlq_listing(connection: Connection, when: str) -> list[str]:
    """What is wrong with listing the DLQ as operators do: it should read the first fifty entries of its index.

    That is fifty pages and a few. The first to come also walks over the twenty entries that each trial of all verbs has
    left at the index's beginning and rolled back, and there are three trials before the first listing.
    """
    listing = (
        "explain (analyze, buffers, timing off, format json) select id, last_error, first_failed_at from core.outbox"
        " where status = 'failed' and deleted_at is null order by first_failed_at desc, id limit 50"
    )
    with connection.transaction(force_rollback=True):
        connection.execute("set local role spectral_operator")
        (plan,) = value(connection, listing)
    nodes = [node["Node Type"] for node in nodes_of(plan["Plan"])]
    reading = reading_of({**plan, "Query Text": listing})
    if nodes == ["Limit", "Index Scan"] and reading.indexes == {"outbox_failed_idx"} and reading.buffers < 150:
        return []
    return [f"{when}: listing the DLQ touches {reading.buffers} buffers by {' < '.join(nodes)}"]


FINGERPRINT = "event_type, coalesce(target, ''), error_class, coalesce(handler_name, '')"
# All of the index's columns, though the first four are the same in a group: under row-level security the planner must
# not conclude that from conditions on functions that might leak what they see, and would sort the group.
BACKWARDS = "event_type desc, coalesce(target, '') desc, error_class desc, coalesce(handler_name, '') desc"
# From one group to the next, and of each the newest.
GROUPS = f"""\
explain (analyze, buffers, timing off, format json)
with recursive step as (
    (
        select event_type, coalesce(target, '') as context, error_class, coalesce(handler_name, '') as handler
        from core.dead_letters
        where event_type > ''
        order by {FINGERPRINT}
        limit 1
    )
    union all
    select following.*
    from step
    cross join lateral (
        select event_type, coalesce(target, ''), error_class, coalesce(handler_name, '')
        from core.dead_letters
        where ({FINGERPRINT}) > (step.event_type, step.context, step.error_class, step.handler)
        order by {FINGERPRINT}
        limit 1
    ) as following
)
select newest.id
from step
cross join lateral (
    select id from core.dead_letters
    where ({FINGERPRINT}) = (step.event_type, step.context, step.error_class, step.handler)
    order by {BACKWARDS}, first_failed_at desc, id desc
    limit 1
) as newest"""  # noqa: S608  constants


def dlq_groups(connection: Connection, when: str) -> list[str]:
    """What is wrong with grouping the DLQ as the services do: it should read a few entries for each of four groups."""
    with connection.transaction(force_rollback=True):
        connection.execute("set local role spectral_operator")
        for switch in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
            connection.execute(sql.SQL("set local {} = off").format(sql.Identifier(switch)))
        (plan,) = value(connection, GROUPS)
    reading = reading_of({**plan, "Query Text": GROUPS})
    if reading.indexes == {"outbox_fingerprint_idx"} and not reading.whole and reading.buffers < 100:
        return []
    by = ", ".join(sorted(reading.indexes))
    return [f"{when}: grouping the DLQ touches {reading.buffers} buffers by {by} ({', '.join(reading.scans)})"]


@pytest.fixture
def ready(connection: Connection, database: str) -> str:
    """A database whose statistics nobody touches by himself, and that is quickly filled.

    The CHECKs go: they have no part in a plan, and two thirds of the time of filling the table.
    """
    for table in ("outbox", "event_handled"):
        name = sql.Identifier("core", table)
        connection.execute(sql.SQL("alter table {} set (autovacuum_enabled = false)").format(name))
        connection.execute(sql.SQL("alter table {} set unlogged").format(name))
    checks = connection.execute(
        "select conname from pg_constraint where conrelid = 'core.outbox'::regclass and contype = 'c'"
    ).fetchall()
    dropped = sql.SQL(", ").join(sql.SQL("drop constraint {}").format(sql.Identifier(name)) for (name,) in checks)
    connection.execute(sql.SQL("alter table core.outbox {}").format(dropped))
    return database


def fill(dsn: str, statement: str, count: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute(statement, [count])
        connection.execute(FILL_HANDLED, [count // 5])


def experienced(dsn: str) -> Connection:
    """A session that has made its plans for everything by now."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("load 'auto_explain'")
    for verb in VERBS.values():
        for _ in range(7):  # after five, Postgres may take one plan for all arguments
            verb.run(connection)
    return connection


# One test, not one for each verb and state: the million rows are made once, whatever worker runs what.
def test_a_million_rows_of_history_make_no_verb_slower(ready: str) -> None:
    with psycopg.connect(ready, autocommit=True) as new, experienced(ready) as old:
        for _ in range(5):
            publish(new)
        claim(new, limit=2)
        new.execute("analyze core.outbox")
        with experienced(ready) as young:
            fill(ready, FILL, 1_000_000)
            found = costly(every_verb(young), "planned while the table had one page")
        found += costly(every_verb(old), "planned while the table was empty")
        found += costly(every_verb(new), "without statistics")
        found += dlq_listing(new, "without statistics") + dlq_groups(new, "without statistics")
        new.execute("analyze")
        found += costly(every_verb(new), "with statistics")
        found += dlq_listing(new, "with statistics") + dlq_groups(new, "with statistics")
    assert not found, "\n".join(found)


def test_a_large_backlog_makes_no_verb_read_it_whole(ready: str) -> None:
    statement = FILL.replace("n %% 1000 = 0 then 'pending'", "n %% 10000 > 2 then 'pending'")
    # More than half of them are not due yet.
    statement = statement.replace("interval '1 day' + n * interval '1 ms'", "interval '1 day' + n * interval '2 s'")
    with psycopg.connect(ready, autocommit=True) as connection:
        fill(ready, statement, 100_000)
        found = costly(every_verb(connection), "without statistics")
        connection.execute("analyze")
        found += costly(every_verb(connection), "with statistics")
    assert not found, "\n".join(found)


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("status", ["pending", "in_flight", "failed", "delivered", "broadcast"])
def test_no_verb_is_planned_to_read_a_small_table_whole(ready: str, status: str, count: int) -> None:
    # One page, which is read faster from end to end than by its ids; the plan would stay when it is many.
    with psycopg.connect(ready, autocommit=True) as connection:
        for context in ("platform", "billing", "search"):
            subscribe(connection, context)
        for _ in range(count):
            publish(connection, target=None) if status == "broadcast" else outbox_row(connection, status)
        connection.execute("analyze core.outbox, core.subscriptions")
        assert costly(every_verb(connection), "on one page") == []


def test_what_a_commit_asks_is_found_by_its_id_however_small_the_table_was_when_it_was_planned(
    ready: str, connection: Connection
) -> None:
    for _ in range(7):
        publish(connection)
        claim(connection)
        connection.execute("analyze core.outbox")  # one page, which is read faster than any index
        guarded(connection)
    fill(ready, FILL, 20_000)
    asked = [reading for reading in explained(connection, guarded) if "new.event_id" in reading.statement]
    assert {(name, scan) for reading in asked for name in reading.indexes or {""} for scan in reading.scans} == {
        ("outbox_pkey", "Index Scan")
    }


# heap-only updates


def test_renewing_a_lease_is_a_heap_only_update(connection: Connection) -> None:
    for _ in range(100):  # full pages, as far as the fill factor lets them be
        publish(connection)
    claims = claim(connection, limit=5)
    before = updates(connection)
    for _ in range(20):
        connection.execute(
            "select core.outbox_renew(%s, %s)", [[each.id for each in claims], [each.token for each in claims]]
        )
    after = updates(connection)
    assert (after[0] - before[0], after[1] - before[1]) == (100, 100)


def updates(connection: Connection) -> tuple[int, int]:
    """All updates of the table so far, and those that were heap-only."""
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'core.outbox'::regclass"
    ).fetchone()
    assert row is not None
    total, heap_only = row
    return int(total), int(heap_only)


def test_a_claim_with_statistics_from_before_the_rows_were_claimed_is_still_cheap(connection: Connection) -> None:
    # Statistics say that everything is in flight; the truth is the opposite.
    for _ in range(20):
        outbox_row(connection, "in_flight")
    connection.execute("analyze core.outbox")
    for _ in range(200):
        outbox_row(connection, event_type=EVENT_TYPE)
    assert costly({"claim": explained(connection, claim_ten)}, "with wrong statistics") == []
