"""One look at a real database: what it counts, how far it counts, what it costs, and who may look."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import conninfo, sql
from psycopg.adapt import AdaptersMap
from psycopg.types.json import JsonbDumper

from spectral.core.database import Database, RefusedError, connect
from spectral.core.events import ConfigurationError, metrics
from spectral.core.operations import insights_sql
from spectral.core.operations.documents import as_document
from spectral.core.operations.gauges import gauges
from spectral.core.operations.insights import COUNT_CAP, STRAYS_LOOKED, Amount, Backlog, Snapshot, take_snapshot
from spectral.core.operations.verdict import judge
from spectral.core.operations.verdict_values import Limits
from tests.migrations.schema import role
from tests.migrations.test_schema_plans import EXPLAIN, nodes_of

AGO = timedelta(minutes=4)


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    """What an operator's command holds, here as the superuser."""
    async with connect(database, "test") as opened:
        yield opened


def publish(connection: psycopg.Connection[Any], count: int = 1, **columns: object) -> None:
    """Rows of generation 1 for the platform that have been due for four minutes."""
    given = {
        "event_type": "worlds.scan.completed",
        "source": "worlds",
        "target": "platform",
        "generation": 1,
        "channel": "outbox_gen_1",
        "created_at": datetime.now(UTC) - AGO,
        "next_attempt_at": datetime.now(UTC) - AGO,
        **columns,
    }
    statement = sql.SQL("insert into core.outbox ({}) select {} from generate_series(1, {})").format(
        sql.SQL(", ").join(map(sql.Identifier, given)),
        sql.SQL(", ").join(map(sql.Placeholder, given)),
        sql.Literal(count),
    )
    connection.execute(statement, given)


def in_flight(worker: str, **columns: object) -> dict[str, object]:
    claimed = {"status": "in_flight", "attempts": 1, "claim_token": uuid4(), "claimed_by": worker}
    return {**claimed, "claimed_at": datetime.now(UTC) - AGO, **columns}


def failed(at: datetime) -> dict[str, object]:
    return {"status": "failed", "attempts": 6, "last_error": "ValueError: no", "first_failed_at": at, "claimed_at": at}


def sign_in(connection: psycopg.Connection[Any], name: str, *, alive: bool = True) -> None:
    """What a worker of the platform is to the database: an entry, and a lock that its session holds."""
    connection.execute(
        "select core.worker_sign_in(%s, '{1}', '{platform}', '{outbox_gen_1,outbox_default}', 'box', 4711, '0.1')",
        [name],
    )
    if alive:
        connection.execute("select pg_advisory_lock_shared(core.worker_lock_key(%s))", [name])


def of(snapshot: Snapshot, context: str | None, generation: int = 1) -> Backlog:
    (found,) = [each for each in snapshot.backlogs if (each.context, each.generation) == (context, generation)]
    return found


async def test_an_empty_database_has_nothing_to_show(operator: Database) -> None:
    snapshot = await take_snapshot(operator)
    assert (snapshot.backlogs, snapshot.lanes, snapshot.workers, snapshot.brakes) == ((), (), (), ())
    assert snapshot.live_generation == 1
    assert [(each.generation, each.status) for each in snapshot.deployments] == [
        (2, "allocated"),
        (1, "live"),
        (0, "retired"),
    ]
    assert {table.name for table in snapshot.tables} == {"core.audit", "core.event_handled", "core.outbox"}
    assert all(table.autovacuum for table in snapshot.tables)


async def test_tables_have_their_full_names_whatever_the_search_path(database: str) -> None:
    limits = Limits(partition=-1, relay=-1)
    async with connect(conninfo.make_conninfo(database, options="-c search_path=core,public"), "test") as inside:
        snapshot = await take_snapshot(inside)
    assert [table.name for table in snapshot.tables] == ["core.audit", "core.event_handled", "core.outbox"]
    (partition, relay) = (
        sample.value for sample in gauges(snapshot, limits) if sample.metric is metrics.GROWTH_TRIGGER
    )
    assert snapshot.partitioning is not None
    to_do = not snapshot.partitioning.enabled
    assert (partition, relay) == (to_do, 1), "the rules of growth find the outbox"


async def test_every_row_is_counted_where_it_belongs(operator: Database, connection: psycopg.Connection[Any]) -> None:
    now = datetime.now(UTC)
    publish(connection, 3)
    publish(connection, 2, channel="outbox_gen_1_cold")
    publish(connection, 1, next_attempt_at=now + timedelta(hours=1))
    publish(connection, 1, target="worlds", generation=2, channel="outbox_gen_2")
    publish(connection, 1, target=None)
    publish(connection, 1, generation=9, channel="outbox_default")
    publish(connection, 2, **failed(now))
    publish(connection, 1, **failed(now - timedelta(hours=2)))
    publish(connection, 1, **{**failed(now), "deleted_at": now})  # discarded: no longer a dead letter
    snapshot = await take_snapshot(operator)

    platform = of(snapshot, "platform")
    assert (platform.due, platform.waiting, platform.failed, platform.failed_lately) == (
        Amount(5),
        Amount(1),
        Amount(3),
        Amount(2),
    )
    assert platform.oldest_due is not None
    assert platform.oldest_due >= AGO
    assert of(snapshot, "worlds", 2).due == Amount(1)
    assert of(snapshot, None).due == Amount(1)
    assert of(snapshot, "platform", 9).generation_status is None
    assert {(lane.generation, lane.channel, lane.context, lane.due.value) for lane in snapshot.lanes} == {
        (9, "outbox_default", "platform", 1),
        (2, "outbox_gen_2", "worlds", 1),
        (1, "outbox_gen_1", "platform", 3),
        (1, "outbox_gen_1_cold", "platform", 2),
        (1, "outbox_gen_1", None, 1),
    }


async def test_claims_are_stale_when_their_worker_shows_no_life(
    operator: Database, connection: psycopg.Connection[Any]
) -> None:
    sign_in(connection, "lives")
    sign_in(connection, "vanished", alive=False)
    publish(connection, 2, **in_flight("lives"))
    publish(connection, 3, **in_flight("vanished"))
    publish(connection, 1, **in_flight("vanished", claimed_at=datetime.now(UTC)))  # may be reconnecting
    snapshot = await take_snapshot(operator)
    platform = of(snapshot, "platform")
    assert (platform.in_flight, platform.stale) == (Amount(6), Amount(3))
    assert [(each.name, each.alive, each.in_flight) for each in snapshot.workers] == [
        ("lives", True, 2),
        ("vanished", False, 4),
    ]
    assert [worker.name for worker in snapshot.servants("platform", 1)] == ["lives"]


async def test_counts_stop_at_the_cap_and_say_so(operator: Database, connection: psycopg.Connection[Any]) -> None:
    publish(connection, COUNT_CAP + 5)
    snapshot = await take_snapshot(operator)
    assert str(of(snapshot, "platform").due) == "10,000+"
    assert "platform has 10,000+ events waiting" in judge(snapshot).sentences[1].text


async def test_a_look_reads_no_more_rows_than_it_counts(connection: psycopg.Connection[Any]) -> None:
    publish(connection, 2 * COUNT_CAP)
    publish(connection, COUNT_CAP, status="delivered", delivered_at=datetime.now(UTC))
    publish(connection, 200, **failed(datetime.now(UTC)))
    publish(connection, 200, **in_flight("vanished"))
    cap = 100
    plans = _plans(connection, {"now": datetime.now(UTC), "cap": cap, "lanes": 10})
    nodes = [
        node for plan in plans for node in nodes_of(plan["Plan"]) if node.get("Relation Name", "").startswith("outbox")
    ]
    assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
    assert max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in nodes) == cap


def subscribe(connection: psycopg.Connection[Any], event_type: str) -> None:
    connection.execute(
        "select core.outbox_subscribe(1, '{platform}', array[%s], '{platform.index}', '{6}', true)", [event_type]
    )


async def test_what_waits_for_nobody_is_told_from_what_is_behind(
    operator: Database, connection: psycopg.Connection[Any]
) -> None:
    sign_in(connection, "lives")
    subscribe(connection, "worlds.scan.completed")
    publish(connection, 2)
    assert (await take_snapshot(operator)).strays == ()
    earlier = datetime.now(UTC) - 2 * AGO
    publish(connection, 1, event_type="worlds.scan.lost", created_at=earlier, next_attempt_at=earlier)
    publish(connection, 1, event_type="worlds.scan.lost", next_attempt_at=datetime.now(UTC) + AGO)
    snapshot = await take_snapshot(operator)
    (stray,) = snapshot.strays
    assert (stray.context, stray.generation, stray.channel) == ("platform", 1, "outbox_gen_1")
    assert (stray.event_types, stray.rows, stray.looked) == (("worlds.scan.lost",), 1, 3)
    assert stray.oldest_due == of(snapshot, "platform").oldest_due
    assert (
        "no handler of platform is on record for worlds.scan.lost in generation 1" in judge(snapshot).sentences[1].text
    )
    assert as_document(snapshot)["strays"][0]["event_types"] == ["worlds.scan.lost"]


async def test_how_a_project_writes_its_lists_is_none_of_ours(
    database: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(connection, "lives")
    earlier = datetime.now(UTC) - 2 * AGO
    publish(connection, 1, event_type="worlds.scan.lost", created_at=earlier, next_attempt_at=earlier)
    taught = AdaptersMap(psycopg.adapters)
    taught.register_dumper(list, JsonbDumper)
    monkeypatch.setattr(psycopg.postgres, "adapters", taught)
    async with connect(database, "test") as own:
        assert (await take_snapshot(own)).strays


async def test_a_moment_s_wait_is_no_reason_to_look_who_is_subscribed(
    operator: Database, connection: psycopg.Connection[Any]
) -> None:
    publish(connection, 1, next_attempt_at=datetime.now(UTC))
    assert (await take_snapshot(operator)).strays == ()


async def test_what_waits_for_nobody_is_looked_for_among_few_rows_and_by_index(
    connection: psycopg.Connection[Any],
) -> None:
    publish(connection, 5000, status="delivered", delivered_at=datetime.now(UTC))
    publish(connection, 5000)
    connection.execute("analyze core.outbox")
    lanes = {"generations": [1], "channels": ["outbox_gen_1"], "contexts": ["platform"]}
    asked = {"now": datetime.now(UTC), "looked": STRAYS_LOOKED, **lanes}
    with connection.transaction():
        connection.execute(insights_sql.BY_INDEX)
        statement = b"explain (analyze, format json) " + insights_sql.STRAYS
        ((plan,),) = connection.execute(statement, asked).fetchall()
    nodes = [node for node in nodes_of(plan[0]["Plan"]) if node.get("Relation Name", "").startswith("outbox")]
    assert {node["Index Name"] for node in nodes} == {"outbox_pending_idx"}
    assert max(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in nodes) == STRAYS_LOOKED


async def test_nobody_has_more_counted_than_the_cap(connection: psycopg.Connection[Any]) -> None:
    publish(connection, COUNT_CAP + 5)
    asked = {"now": datetime.now(UTC), "cap": 10 * COUNT_CAP, "lanes": 10 * COUNT_CAP}
    (lane,) = connection.execute(insights_sql.LANES, asked).fetchall()
    assert lane[4] == COUNT_CAP + 1


def _plans(connection: psycopg.Connection[Any], bounds: dict[str, object]) -> list[dict[str, Any]]:
    """How the statements inside the functions went."""
    said: list[str] = []
    connection.execute(EXPLAIN)
    connection.add_notice_handler(lambda notice: said.append(notice.message_primary or ""))
    for statement in (insights_sql.LANES, insights_sql.IN_FLIGHT, insights_sql.FAILED):
        connection.execute(statement, bounds)
    return [json.loads(text.split("plan:", 1)[1]) for text in said if text.startswith("duration:")]


async def test_whoever_pins_old_rows_is_named(
    operator: Database, connection: psycopg.Connection[Any], database: str
) -> None:
    with psycopg.connect(database, application_name="nightly report") as pinning:
        pinning.execute("insert into core.audit (action, actor, affected) values ('test', 'test', 0)")
        holder = (await take_snapshot(operator)).holders[0]
        assert (holder.kind, holder.name, holder.pid) == ("backend", "nightly report", pinning.info.backend_pid)
        assert holder.state == "idle in transaction"
        assert holder.since is not None
        pinning.rollback()
    assert connection.info.backend_pid not in [each.pid for each in (await take_snapshot(operator)).holders]


async def test_an_operators_login_sees_everything_but_other_logins_activity(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    sign_in(connection, "lives")
    publish(connection, 3, workspace_id=uuid4())
    with role(database, groups=("spectral_operator",)) as own, psycopg.connect(database) as pinning:
        pinning.execute("select txid_current()")
        pid, superuser = pinning.info.backend_pid, pinning.info.user
        async with connect(own, "test") as operator:
            snapshot = await take_snapshot(operator)
    assert not snapshot.activity_visible
    assert of(snapshot, "platform").due == Amount(3)
    assert snapshot.workers[0].alive
    (holder,) = [each for each in snapshot.holders if each.pid == pid]
    assert (holder.user, holder.state, holder.since) == (superuser, None, None)  # named, and nothing guessed


async def test_with_pg_monitor_an_operator_sees_activity_too(database: str) -> None:
    with role(database, groups=("spectral_operator", "pg_monitor")) as own, psycopg.connect(database) as pinning:
        pinning.execute("select txid_current()")
        async with connect(own, "test") as operator:
            holder = (await take_snapshot(operator)).holders[0]
        assert (holder.pid, holder.state) == (pinning.info.backend_pid, "idle in transaction")


@pytest.mark.parametrize("group", ["spectral_worker", "spectral_readonly"])
async def test_whoever_may_not_read_the_events_counts_them_as_an_operator_does(
    database: str, connection: psycopg.Connection[Any], group: str
) -> None:
    now = datetime.now(UTC)
    sign_in(connection, "lives")
    sign_in(connection, "vanished", alive=False)
    publish(connection, 3, workspace_id=uuid4())
    publish(connection, 1, target=None, channel="outbox_default")
    publish(connection, 2, **in_flight("vanished"))
    publish(connection, 1, **failed(now))
    publish(connection, 1, status="delivered", delivered_at=now)
    connection.execute("select core.brake_pull('worlds', 'ada', 'broken')")
    seen = []
    for each in (group, "spectral_operator"):
        with role(database, groups=(each,)) as own:
            async with connect(own, "test") as reader:
                seen.append(await take_snapshot(reader))
    one, other = map(_comparable, seen)
    assert one == other
    assert of(seen[0], "platform") == replace(
        of(seen[1], "platform"), oldest_due=of(seen[0], "platform").oldest_due, due=Amount(3), failed=Amount(1)
    )
    assert seen[0].sweep is not None
    assert seen[0].sweep.oldest_delivered_at == now


def _comparable(snapshot: Snapshot) -> tuple[object, ...]:
    """All that does not depend on when it was looked, or by whom."""
    lanes = [(lane.generation, lane.channel, lane.context, lane.due, lane.waiting) for lane in snapshot.lanes]
    backlogs = [replace(each, oldest_due=None) for each in snapshot.backlogs]
    tables = [(table.name, table.bytes) for table in snapshot.tables]
    return lanes, backlogs, tables, snapshot.workers, snapshot.brakes, snapshot.deployments, snapshot.live_generation


@pytest.mark.parametrize("group", ["spectral_publisher", "spectral_retention"])
async def test_a_login_that_may_not_look_is_told_what_to_grant(database: str, group: str) -> None:
    with role(database, groups=(group,)) as own:
        async with connect(own, "test") as stranger:
            with pytest.raises(RefusedError, match="may not") as caught:
                await take_snapshot(stranger)
    assert caught.value.remedy == "grant spectral_operator to <role>"


async def test_a_login_of_no_group_is_told_the_same(database: str) -> None:
    with role(database) as own:
        async with connect(own, "test") as nobody:
            with pytest.raises(RefusedError, match="may not") as caught:
                await take_snapshot(nobody)
    assert caught.value.remedy == "grant spectral_operator to <role>"


async def test_a_database_without_the_schema_is_told_from_an_empty_one(empty_database: str) -> None:
    async with connect(empty_database, "test") as bare:
        with pytest.raises(ConfigurationError, match="spectral migrate up"):
            await take_snapshot(bare)


async def test_a_look_is_one_json_document(operator: Database, connection: psycopg.Connection[Any]) -> None:
    publish(connection)
    document = as_document(await take_snapshot(operator))
    assert json.loads(json.dumps(document))["backlogs"][0]["due"] == {"value": 1, "capped": False}
    assert "payload" not in json.dumps(document)
