"""What delivering costs, in numbers that are the same on every machine: round trips, WAL, index updates, buffers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from psycopg import sql

from spectral.core.events import Consumer, EventEnvelope, PublishSettings, Transaction
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.delivery import trust
from spectral.core.events.infrastructure.postgres import script, session
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, Bench, Scan, write_effect
from tests.migrations.schema import Connection, value

OTHERS = "worlds.scan.ignored"


# round trips


class Traffic:
    """What was sent to the server: messages, each of which waits for an answer, and the statements in them."""

    def __init__(self) -> None:
        self.round_trips: Counter[str] = Counter()
        self.statements: Counter[str] = Counter()

    def note(self, connection: psycopg.AsyncConnection[Any], statements: int = 1) -> None:
        name = connection.info.get_parameters().get("application_name", "")
        kind = name.split(" ")[1] if name.startswith("spectral ") else "test"
        self.round_trips[kind] += 1
        self.statements[kind] += statements

    def clear(self) -> None:
        """Begin to count."""
        self.round_trips.clear()
        self.statements.clear()

    def __repr__(self) -> str:
        return f"round trips {dict(self.round_trips)}, statements {dict(self.statements)}"


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Of every connection from now on."""
    seen = Traffic()
    execute, run_script = psycopg.AsyncCursor.execute, script.run_script

    async def counted(self: Any, *given: Any, **options: Any) -> Any:  # noqa: ANN401  as the driver has it
        seen.note(self.connection)
        return await execute(self, *given, **options)

    async def counted_script(connection: Any, statements: Any, within: float) -> Any:  # noqa: ANN401  as above
        given = list(statements)
        seen.note(connection, len(given))
        return await run_script(connection, given, within)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)
    monkeypatch.setattr(session, "run_script", counted_script)
    return seen


async def test_plain_events_share_their_round_trips(bench: Bench, platform: Consumer, traffic: Traffic) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    await bench.publish(*range(500))
    traffic.clear()
    await bench.drain(platform)
    assert await bench.statuses() == {"delivered": 500}
    # 9 and 6 on a machine with nothing else to do; a slow one believes later that it is quick and claims less at once.
    assert traffic.round_trips["claim"] <= 30, traffic
    assert traffic.round_trips["settle"] <= 30, traffic
    # One statement settles a batch. Before core.outbox_deliver it was two: one for the keys, one for the rows.
    assert traffic.statements["settle"] <= traffic.round_trips["settle"] + 1, traffic


async def test_a_transactional_event_costs_one_round_trip_beside_those_of_its_handler(
    bench: Bench, platform: Consumer, traffic: Traffic
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await bench.publish(*range(200))
    traffic.clear()
    await bench.drain(platform, lanes=2)
    assert await bench.statuses() == {"delivered": 200}
    # The gate, and the handler's own; a commit for a group of up to fifty, and two to open each lane. Before a handler
    # was accepted together with the next one's gate it was three for each row.
    assert traffic.round_trips["lane"] <= 2 * 200 + 40, traffic
    # Accept, forget what the handler before has left (three), ask for the role, savepoint, gate, and the handler's.
    assert traffic.statements["lane"] <= 8 * 200 + 120, traffic
    assert traffic.round_trips["claim"] <= 30, traffic
    assert traffic.round_trips["settle"] == 0, traffic  # the lane settles what it ran


async def test_an_event_of_a_trusted_handler_costs_hardly_more_than_its_handler_asks(
    bench: Bench, platform: Consumer, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "ENOUGH", 10)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute("select 1")
        await write_effect(tx, "project", scan.number)

    await bench.publish(*range(300))
    traffic.clear()
    await bench.drain(platform, lanes=1)
    assert await bench.statuses() == {"delivered": 300}
    # The first group of fifty has a gate for each. Of the others a group is opened and committed by one message each.
    assert traffic.round_trips["lane"] <= 3 * 50 + 2 * 250 + 40, traffic
    assert traffic.statements["lane"] <= 9 * 50 + 2 * 250 + 15 * 12, traffic
    assert traffic.round_trips["settle"] == 0, traffic


async def test_brief_handlers_share_a_round_trip(
    bench: Bench, platform: Consumer, traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "ENOUGH", 10)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await bench.publish(*range(500))
    traffic.clear()
    await bench.drain(platform, lanes=1)
    assert await bench.statuses() == {"delivered": 500}
    # The first group as above. Then three messages for each group: of ten, of twenty, of forty, of all that is claimed.
    assert traffic.round_trips["lane"] <= 2 * 50 + 3 * 13 + 10, traffic
    assert traffic.round_trips["settle"] == 0, traffic


async def test_a_published_event_costs_one_statement_and_so_do_many(bench: Bench, traffic: Traffic) -> None:
    publisher = publisher_for(bench.connection, publishing(PublishSettings(generation=1)))
    envelopes = [
        EventEnvelope(event_type=COMPLETED, source="worlds", target="platform", payload={"number": number})
        for number in range(101)
    ]
    async with bench.connection.transaction():
        traffic.clear()
        await publisher.publish(envelopes[0])
        assert sum(traffic.round_trips.values()) == 1
        await publisher.publish_many(envelopes[1:])
        assert sum(traffic.round_trips.values()) == 2
    assert await bench.statuses() == {"pending": 101}


# WAL


PUBLISH = """\
insert into core.outbox (event_type, source, target, generation, channel, payload)
select 'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', jsonb_build_object('number', number)
from generate_series(1, 500) as heap (number)"""

CLAIM = """\
select id, claim_token, due_at from core.outbox_claim_from(
    'w', 'platform', '{1}', '{outbox_gen_1,outbox_default}', %s::text[], %s, %s::timestamptz, %s,
    %s::text[], %s::text[])"""

MAIL = ["platform.mail"]
DELIVER = "select core.outbox_deliver(%s::uuid[], %s::uuid[], %s::uuid[], %s::text[])"


def explained(connection: Connection, statement: str, parameters: Sequence[object] = ()) -> dict[str, Any]:
    """What running it cost, nested statements included."""
    row = connection.execute(
        f"explain (analyze, buffers, wal, timing off, format json) {statement}".encode(), parameters
    ).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def wal(plan: Mapping[str, Any]) -> tuple[float, float]:
    """Records and bytes for each of 500 rows; whole pages, which depend on the last checkpoint, do not count."""
    return plan["WAL Records"] / 500, (plan["WAL Bytes"] - 8_300 * plan["WAL FPI"]) / 500


def test_an_event_leaves_little_in_the_log(connection: Connection) -> None:
    connection.execute("alter table core.outbox set (autovacuum_enabled = false)")
    published = wal(explained(connection, PUBLISH))
    with connection.transaction(force_rollback=True):
        claimed = wal(explained(connection, CLAIM, [None, 500, None, None, MAIL, None]))
    (_, token, _), *rows = connection.execute(CLAIM.encode(), [None, 500, None, None, MAIL, None]).fetchall()
    ids = sorted(event_id for event_id, _, _ in rows)
    assert len(ids) == 500
    delivered = wal(explained(connection, DELIVER, [ids, [token] * 500, ids, ["platform.mail"] * 500]))
    # 3 records and 460 bytes; 5 and 510; 7 and 680: the row or its new version, and the indexes that have to know.
    for name, (records, size), most_records, most_bytes in (
        ("publish", published, 5, 700),
        ("claim", claimed, 7, 800),
        ("deliver", delivered, 9, 1_000),
    ):
        assert records <= most_records, (name, records)
        assert size <= most_bytes, (name, size)


def test_renewing_a_lease_touches_no_index(connection: Connection) -> None:
    connection.execute("alter table core.outbox set (autovacuum_enabled = false)")
    connection.execute(PUBLISH.encode())
    (_, token, _), *rows = connection.execute(CLAIM.encode(), [None, 500, None, None, MAIL, None]).fetchall()
    ids = [event_id for event_id, _, _ in rows]
    counted = [hot_updates(connection)]
    for _ in range(6):
        renewed = connection.execute("select core.outbox_renew(%s, %s)", [ids, [token] * 500]).fetchall()
        assert len(renewed) == 500
        counted.append(hot_updates(connection))
    ratios = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(counted)]
    # Half of the first: the pages are full of the versions that publishing and claiming all at once have left, and are
    # pruned by and by. Were an index to know of the lease, it would be none at all.
    assert ratios[0] >= 0.3, ratios
    assert ratios[-1] >= 0.7, ratios


def hot_updates(connection: Connection) -> tuple[int, int]:
    """Updates of the outbox by this session so far, and those that touched no index."""
    connection.execute("select pg_stat_force_next_flush()")
    row = connection.execute(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relid = 'core.outbox'::regclass"
    ).fetchone()
    assert row is not None
    return row[0], row[1]


# buffers


FILL = """\
insert into core.outbox (
    id, event_type, source, target, channel, generation, idempotency_key, status, attempts, next_attempt_at,
    delivered_at
)
-- ids in order: an index is quickly filled from one end
select (case %s when 'pending' then '01' else '02' end || lpad(to_hex(n), 30, '0'))::uuid,
       %s, 'worlds', 'platform', 'outbox_gen_1', 1, 'key-' || n, %s::text,
       case %s when 'pending' then 0 else 1 end, now() - interval '1 day' + n * interval '1 ms',
       case %s when 'delivered' then now() end
from generate_series(1, %s) as n"""


@pytest.fixture
def vast(connection: Connection) -> Connection:
    """A session on a table that is quickly filled, and that nobody vacuums.

    What has no part in how a claim finds its rows goes: the CHECKs, and the indexes that are not asked.
    """
    connection.execute("alter table core.outbox set (autovacuum_enabled = false)")
    connection.execute("alter table core.outbox set unlogged")
    checks = connection.execute(
        "select conname from pg_constraint where conrelid = 'core.outbox'::regclass and contype = 'c'"
    ).fetchall()
    dropped = sql.SQL(", ").join(sql.SQL("drop constraint {}").format(sql.Identifier(name)) for (name,) in checks)
    connection.execute(sql.SQL("alter table core.outbox {}").format(dropped))
    connection.execute("drop index core.outbox_key_idx")
    return connection


def fill(connection: Connection, count: int, status: str, event_type: str = COMPLETED) -> None:
    connection.execute("set session_replication_role = replica")
    connection.execute(FILL.encode(), [status, event_type, status, status, status, count])
    connection.execute("set session_replication_role = origin")


def buffers(connection: Connection, **given: object) -> int:
    """Which a claim of ten rows touches, once its plans are made; nothing stays claimed."""
    asked = {"types": [COMPLETED, STARTED], "limit": 10, "start": None, "window": None} | given
    asked = {"handlers": MAIL, "handler_types": [COMPLETED]} | asked
    parameters = [asked[each] for each in ("types", "limit", "start", "window", "handlers", "handler_types")]
    with connection.transaction(force_rollback=True):
        connection.execute(CLAIM.encode(), parameters)
    with connection.transaction(force_rollback=True):
        plan = explained(connection, CLAIM, parameters)
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.timeout(300)
def test_a_million_delivered_rows_make_no_claim_dearer(vast: Connection) -> None:
    connection = vast
    fill(connection, 1_000, "pending")
    few = buffers(connection)
    fill(connection, 1_000_000, "delivered")
    many = buffers(connection)
    assert few < 400, few
    assert many < few + 200, (few, many)  # the table has 25,000 pages


def test_handlers_of_other_types_make_no_claim_dearer(vast: Connection) -> None:
    """Before a claim knew which handler is for which type, each was looked up for each row."""
    fill(vast, 1_000, "pending")
    many = {"handlers": [f"platform.handler_{number}" for number in range(50)], "limit": 100}
    kinds = [COMPLETED, *(f"worlds.kind_{number}.made" for number in range(49))]
    one = buffers(vast, limit=100)
    assert buffers(vast, **many, handler_types=kinds) < one + 50
    assert buffers(vast, **many, handler_types=None) > one + 49 * 100


@pytest.mark.timeout(300)
def test_a_million_pending_rows_of_another_type_cost_no_more_than_the_window(vast: Connection) -> None:
    connection = vast
    fill(connection, 1_000_000, "pending", OTHERS)
    # Twice over a thousand rows, a page each at worst: to see where the window ends, and to look for its own.
    touched = 0
    for start in (None, datetime.now(UTC) - timedelta(days=1) + timedelta(minutes=5)):
        touched = buffers(connection, window=1_000, start=start)
        assert touched < 2_500, (start, touched)
    assert buffers(connection, window=20_000) > 5 * touched  # it is the window that bounds it


def test_dead_entries_that_a_snapshot_pins_cost_those_who_start_at_the_beginning_only(
    vast: Connection, database: str
) -> None:
    connection = vast
    fill(connection, 50_000, "pending")
    connection.execute(PUBLISH.encode())
    start = value(connection, "select min(next_attempt_at) from core.outbox where payload <> '{}'")
    before = buffers(connection, start=start)
    with psycopg.connect(database) as pinning:
        pinning.execute("set transaction isolation level repeatable read")
        pinning.execute("select from core.outbox limit 1")
        connection.execute("set session_replication_role = replica")
        connection.execute(
            "update core.outbox set status = 'delivered', attempts = 1, delivered_at = now()"
            " where next_attempt_at < %s",
            [start],
        )
        connection.execute("set session_replication_role = origin")
        assert buffers(connection, start=start) < before + 100
        # Each of the dead entries leads to a row version that somebody may still see.
        assert buffers(connection) > 10 * (before + 100)
