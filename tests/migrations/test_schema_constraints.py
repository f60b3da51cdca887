"""Every CHECK of the schema refuses what it is there for, by name; and how little a plain INSERT has to say."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID, uuid4

import psycopg
import pytest

from spectral.core.embedded import PostgresServer
from tests.migrations.schema import (
    MINIMAL,
    STATES,
    Connection,
    insert,
    outbox_row,
    prepared_database,
    undone,
    value,
)

SELF = uuid4()
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HANDLED = {"handler_name": "platform.project_scan", "idempotency_key": "k", "event_id": SELF}
DEPLOYMENT = {"generation": 7}
SUBSCRIPTION = {
    "generation": 1,
    "context": "platform",
    "event_type": "worlds.scan.completed",
    "handler_name": "platform.project_scan",
}
AUDIT = {"action": "replay", "actor": "ada", "affected": 1}
BRAKE = {"context": "platform", "pulled_by": "ada", "reason": "r"}
WORKER: Mapping[str, object] = {
    "name": "worker-1",
    "generation": 1,
    "generations": [1],
    "contexts": ["platform"],
    "channels": ["outbox_gen_1"],
    "host": "h",
    "pid": 1,
    "version": "1",
}
WHOLE: Mapping[str, Mapping[str, object]] = {
    "outbox": {**MINIMAL, "id": SELF},
    "event_handled": HANDLED,
    "deployments": DEPLOYMENT,
    "subscriptions": SUBSCRIPTION,
    "audit": AUDIT,
    "bell": {"mode": "off", "changed_by": "ada"},
    "brakes": BRAKE,
    "workers": WORKER,
    "sweeper": {"singleton": True},
    "relay": {"mode": "nats"},
}


def nested(depth: int, *, arrays: bool) -> str:
    """A payload with that many levels, itself the first."""
    inner = "[" * (depth - 1) + "]" * (depth - 1) if arrays else '{"a":' * (depth - 1) + "1" + "}" * (depth - 1)
    return '{"a":' + inner + "}"


def sized(size: int) -> str:
    """A payload of that many bytes, as the server writes it."""
    frame = '{"a": ""}'
    return '{"a": "' + "x" * (size - len(frame)) + '"}'


@dataclass(frozen=True)
class Bad:
    """Columns that make a row, whole otherwise, break one constraint."""

    constraint: str
    columns: Mapping[str, object] = field(default_factory=dict)
    # The trigger that completes an INSERT mends a date before the CHECK can see it.

    @property
    def table(self) -> str:
        return next(table for table in WHOLE if self.constraint.startswith(f"{table}_"))


def outbox(name: str, **columns: object) -> Bad:
    return Bad(f"outbox_{name}_check", columns)


FAILED = STATES["failed"]
IN_FLIGHT = {**STATES["in_flight"], "claim_token": uuid4()}
DELIVERED = STATES["delivered"]

BAD = [
    outbox("event_type", event_type="scan.completed"),
    outbox("event_type", event_type="worlds.scan.completed.late"),
    outbox("event_type", event_type="worlds.scan.completed.v0"),
    outbox("event_type", event_type="Worlds.scan.completed"),
    outbox("event_type", event_type="worlds.scan.completed\n"),
    outbox("event_type", event_type=""),
    outbox("event_type", event_type="worlds.scan." + "c" * 189),
    outbox("event_version", event_version=0),
    outbox("source", source="Worlds"),
    outbox("source", source=""),
    outbox("source", source="w" * 64),
    outbox("source", source="worlds\n"),
    outbox("target", target="9worlds"),
    outbox("target", target="w" * 64),
    outbox("content_class", content_class="command"),
    outbox("idempotency_key", idempotency_key=""),
    outbox("idempotency_key", idempotency_key="k" * 256),
    outbox("generation", generation=-1),
    outbox("channel", channel="outbox_gen_2"),
    outbox("channel", channel="outbox_gen_10"),
    outbox("channel", channel="outbox_gen_2_hot"),
    outbox("channel", channel="outbox_gen_01"),
    outbox("channel", channel="outbox_gen_1_"),
    outbox("channel", channel="outbox_gen_1_Hot"),
    outbox("channel", channel="outbox_gen_1_9"),
    outbox("channel", channel="outbox_default_hot"),
    outbox("channel", channel="anything"),
    outbox("channel", channel=""),
    outbox("channel", channel="outbox_gen_1_" + "h" * 33),
    outbox("channel", channel="outbox_gen_1_" + "h" * 51),  # 64 bytes: pg_notify itself would refuse
    outbox("channel", channel="outbox_gen_9223372036854775807_" + "h" * 33, generation=2**63 - 1),
    *(outbox("payload_object", payload=payload) for payload in ("[]", "1", '"text"', "null", "true", "[{}]")),
    outbox("payload_size", payload=sized(262_145)),
    outbox("payload_depth", payload=nested(65, arrays=False)),
    outbox("payload_depth", payload=nested(65, arrays=True)),
    outbox("payload_depth", payload=nested(2_000, arrays=True)),
    outbox("payload_depth", payload='{"a": 1, "z": [1, 2, ' + nested(63, arrays=True) + "]}"),
    *(
        outbox("times", **{column: moment})
        for column in ("occurred_at", "next_attempt_at")
        for moment in ("infinity", "20000-01-01")
    ),
    outbox("times", occurred_at="-infinity"),
    outbox("times", occurred_at="0044-03-15 BC"),
    outbox("times", next_attempt_at="infinity"),
    outbox("status", status="lost"),
    outbox("status", status=""),
    outbox("attempts", attempts=-1),
    outbox("last_error", last_error="x" * 4_097),
    outbox("last_error", last_error="€" * 1_366),  # 4,098 bytes
    outbox("failure_history", failure_history="{}"),
    outbox("claim", claim_token=uuid4()),
    outbox("claim", **STATES["in_flight"]),
    outbox("claim", **{**IN_FLIGHT, "claimed_by": None}),
    outbox("claim", **{**IN_FLIGHT, "claimed_at": None}),
    outbox("claim", **FAILED, claim_token=uuid4()),
    outbox("delivered", status="delivered"),
    outbox("delivered", delivered_at="2026-01-01T00:00Z"),
    outbox("delivered", **FAILED, delivered_at="2026-01-01T00:00Z"),
    outbox("failed", **{**FAILED, "last_error": None}),
    outbox("failed", **{**FAILED, "first_failed_at": None}),
    outbox("deleted", deleted_at="2026-01-01T00:00Z"),
    outbox("deleted", **IN_FLIGHT, deleted_at="2026-01-01T00:00Z"),
    outbox("parent", parent_id=uuid4()),
    outbox("parent", parent_id=SELF, target="platform"),
    Bad("event_handled_handler_name_check", {"handler_name": "unscoped"}),
    Bad("event_handled_handler_name_check", {"handler_name": "platform.Project"}),
    Bad("event_handled_handler_name_check", {"handler_name": "platform." + "h" * 192}),
    Bad("event_handled_idempotency_key_check", {"idempotency_key": ""}),
    Bad("event_handled_idempotency_key_check", {"idempotency_key": "k" * 256}),
    Bad("event_handled_content_class_check", {"content_class": "command"}),
    Bad("deployments_generation_check", {"generation": -1}),
    Bad("deployments_status_check", {"status": "paused"}),
    Bad("deployments_label_check", {"label": "x" * 201}),
    Bad("deployments_retired_check", {"status": "retired"}),
    Bad("deployments_retired_check", {"retired_at": "2026-01-01T00:00Z"}),
    Bad("subscriptions_context_check", {"context": "Platform"}),
    Bad("subscriptions_context_check", {"context": "p" * 64}),
    Bad("subscriptions_event_type_check", {"event_type": "scan.completed"}),
    Bad("subscriptions_event_type_check", {"event_type": "worlds.scan." + "c" * 189}),
    Bad("subscriptions_handler_name_check", {"handler_name": "unscoped"}),
    Bad("subscriptions_handler_name_check", {"handler_name": "platform." + "h" * 192}),
    Bad("subscriptions_max_attempts_check", {"max_attempts": 0}),
    Bad("audit_action_check", {"action": "Replay"}),
    Bad("audit_action_check", {"action": "r" * 64}),
    Bad("audit_actor_check", {"actor": ""}),
    Bad("audit_actor_check", {"actor": "a" * 201}),
    Bad("audit_reason_check", {"reason": "r" * 2_001}),
    Bad("audit_affected_check", {"affected": -1}),
    Bad("bell_singleton_check", {"singleton": False}),
    Bad("bell_mode_check", {"mode": "loud"}),
    Bad("bell_changed_by_check", {"changed_by": ""}),
    Bad("bell_changed_by_check", {"changed_by": "a" * 201}),
    Bad("bell_reason_check", {"reason": "r" * 2_001}),
    Bad("brakes_context_check", {"context": "Platform"}),
    Bad("brakes_context_check", {"context": "**"}),
    Bad("brakes_context_check", {"context": "p" * 64}),
    Bad("brakes_pulled_by_check", {"pulled_by": ""}),
    Bad("brakes_pulled_by_check", {"pulled_by": "a" * 201}),
    Bad("brakes_reason_check", {"reason": ""}),
    Bad("brakes_reason_check", {"reason": "r" * 2_001}),
    Bad("workers_name_check", {"name": ""}),
    Bad("workers_name_check", {"name": "w" * 501}),
    Bad("workers_generations_check", {"generation": 2}),
    Bad("workers_generations_check", {"generations": []}),
    Bad("workers_host_check", {"host": "h" * 256}),
    Bad("workers_version_check", {"version": "1" * 61}),
    Bad("relay_singleton_check", {"singleton": False}),
    Bad("relay_mode_check", {"mode": "kafka"}),
    Bad("relay_switched_by_check", {"switched_by": ""}),
    Bad("relay_switched_by_check", {"switched_by": "a" * 201}),
    Bad("relay_reason_check", {"reason": "r" * 2_001}),
    Bad("sweeper_singleton_check", {"singleton": False}),
    Bad("sweeper_name_check", {"name": ""}),
    Bad("sweeper_name_check", {"name": "s" * 201}),
    Bad("sweeper_result_check", {"result": "[]"}),
]

# The last that is still good, beside the first that is not.
GOOD: list[tuple[str, dict[str, object]]] = [
    ("outbox", {"event_type": "worlds.scan." + "c" * 188}),
    ("outbox", {"event_type": "agent.task.dispatched.v12"}),
    ("outbox", {"source": "w" * 63, "target": "p" * 63}),
    ("outbox", {"idempotency_key": "€" * 255}),
    ("outbox", {"trace_context": TRACE}),
    ("outbox", {"generation": 0, "channel": "outbox_gen_0"}),
    ("outbox", {"generation": 2**63 - 1, "channel": "outbox_gen_9223372036854775807_" + "h" * 32}),
    ("outbox", {"payload": nested(64, arrays=False)}),
    ("outbox", {"payload": nested(64, arrays=True)}),
    ("outbox", {"payload": '{"a": 1, "z": [1, 2, ' + nested(62, arrays=True) + "]}"}),
    ("outbox", {"payload": sized(262_144)}),
    ("outbox", {"last_error": "x" * 4_096}),
    ("outbox", {"last_error": "€" * 1_365}),
    ("outbox", {**DELIVERED, "deleted_at": "2026-01-01T00:00Z"}),
    ("outbox", {**FAILED, "deleted_at": "2026-01-01T00:00Z"}),
    ("outbox", {"parent_id": uuid4(), "target": "platform"}),
    ("event_handled", {"handler_name": "platform." + "h" * 191, "idempotency_key": "k" * 255}),
    ("deployments", {"label": "x" * 200}),
    ("subscriptions", {"max_attempts": 1}),
    ("audit", {"actor": "a" * 200, "reason": "r" * 2_000, "affected": 0}),
    ("brakes", {"context": "*", "pulled_by": "a" * 200, "reason": "r" * 2_000}),
    ("brakes", {"context": "p" * 63}),
    ("workers", {"name": "€" * 500, "host": "h" * 255, "version": "1" * 60, "generations": [7, 1]}),
    ("sweeper", {"name": "s" * 200}),
]


OF_THE_DEDUP_LOG_BY_FUNCTION = {bad.constraint for bad in BAD if bad.table == "event_handled"}
BY_FUNCTION = {bad.constraint for bad in BAD if bad.table == "outbox"} - {"outbox_content_class_check"}
"""Raised by core.outbox_complete under the names of constraints; see decision 0022."""


@pytest.fixture(scope="module")
def module_database(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    with prepared_database(postgres, migrated_template) as dsn:
        yield dsn


@pytest.fixture
def session(module_database: str) -> Iterator[Connection]:
    """Every test here starts from no rows and leaves none."""
    with undone(module_database) as connection:
        connection.execute(
            "delete from core.sweeper; delete from core.bell; delete from core.relay"
        )  # their one row comes with the schema
        yield connection


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.constraint)
def test_a_bad_value_is_refused_by_the_constraint_that_names_it(session: Connection, bad: Bad) -> None:
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        insert(session, bad.table, {**WHOLE[bad.table], **bad.columns})
    assert refused.value.diag.constraint_name == bad.constraint


@pytest.mark.parametrize(("table", "columns"), [*((table, {}) for table in WHOLE), *GOOD])
def test_the_last_good_value_is_accepted(session: Connection, table: str, columns: dict[str, object]) -> None:
    insert(session, table, {**WHOLE[table], **columns})


def test_every_check_of_the_schema_has_a_bad_value_here(session: Connection) -> None:
    found = session.execute(
        "select conname from pg_constraint where contype = 'c' and connamespace = 'core'::regnamespace"
    ).fetchall()
    assert {name for (name,) in found} == {bad.constraint for bad in BAD} - BY_FUNCTION - OF_THE_DEDUP_LOG_BY_FUNCTION


def test_every_rule_of_the_insert_has_a_bad_value_here(session: Connection) -> None:
    source = value(session, "select pg_get_functiondef('core.outbox_complete'::regproc)")
    assert set(re.findall(r"'(outbox_\w+_check)'", source)) == BY_FUNCTION
    source = value(session, "select pg_get_functiondef('core.event_handled_check'::regproc)")
    assert set(re.findall(r"'(event_handled_\w+_check)'", source)) == OF_THE_DEDUP_LOG_BY_FUNCTION


def test_a_dedup_record_cannot_be_changed_into_one_that_breaks_a_rule(session: Connection) -> None:
    insert(session, "event_handled", HANDLED)
    for statement, rule in (
        ("update core.event_handled set handler_name = 'unscoped'", "event_handled_handler_name_check"),
        ("update core.event_handled set idempotency_key = ''", "event_handled_idempotency_key_check"),
        ("update core.event_handled set content_class = 'command'", "event_handled_content_class_check"),
    ):
        with pytest.raises(psycopg.errors.CheckViolation) as refused, session.transaction():
            session.execute(statement.encode())
        said = refused.value.diag
        assert (said.schema_name, said.table_name, said.constraint_name) == ("core", "event_handled", rule)


@pytest.mark.parametrize(("table", "few"), [("outbox", 3), ("event_handled", 1)])
def test_a_statement_of_one_row_does_not_plan_the_rules_anew(session: Connection, table: str, few: int) -> None:
    """Postgres does so, for each statement, with every CHECK and every WHEN; see decision 0022."""
    planned = value(
        session,
        "select (select count(*) from pg_constraint where conrelid = 'core.{table}'::regclass and contype = 'c')"
        " + (select count(*) from pg_trigger where tgrelid = 'core.{table}'::regclass and not tgisinternal"
        "    and tgqual is not null and tgattr = '')".replace("{table}", table),
    )
    # The class of content, whether the bell is needed, and whether an update has to be looked at; whether the record is
    # guarded.
    assert planned == few


def test_a_deep_payload_that_another_table_has_compressed_is_refused_too(session: Connection) -> None:
    # A large value is stored compressed, and handed over to the CHECK as it is stored: a few hundred bytes.
    session.execute("create table public.staging (payload jsonb)")
    deep = nested(65, arrays=True)[:-1] + ', "b": "' + "x" * 20_000 + '"}'
    session.execute("insert into public.staging values (%s)", [deep])
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        session.execute(
            "insert into core.outbox (event_type, source, generation, payload)"
            " select 'worlds.scan.completed', 'worlds', 1, payload from public.staging"
        )
    assert refused.value.diag.constraint_name == "outbox_payload_depth_check"


def test_a_key_is_handled_once_by_each_handler(session: Connection) -> None:
    insert(session, "event_handled", HANDLED)
    insert(session, "event_handled", {**HANDLED, "handler_name": "platform.other"})
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        insert(session, "event_handled", {**HANDLED, "event_id": uuid4()})
    assert refused.value.diag.constraint_name == "event_handled_pkey"


def test_a_parent_has_one_child_for_each_context(session: Connection) -> None:
    parent = uuid4()
    outbox_row(session, parent_id=parent)
    outbox_row(session, parent_id=parent, target="worlds")
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        outbox_row(session, parent_id=parent)
    assert refused.value.diag.constraint_name == "outbox_child_key"


def test_one_generation_is_live_at_a_time(session: Connection) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        insert(session, "deployments", {"generation": 7, "status": "live"})
    assert refused.value.diag.constraint_name == "deployments_live_key"


def test_a_subscription_is_of_a_generation_that_is_known(session: Connection) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation) as refused:
        insert(session, "subscriptions", {**SUBSCRIPTION, "generation": 99})
    assert refused.value.diag.constraint_name == "subscriptions_generation_fkey"


# a plain INSERT


def test_a_plain_insert_says_what_where_from_and_which_generation_and_no_more(connection: Connection) -> None:
    connection.execute("listen outbox_default")
    before = datetime.now(UTC) - timedelta(seconds=1)
    insert(connection, "outbox", MINIMAL)
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        row = cursor.execute("select * from core.outbox").fetchone()
    assert row is not None
    assert row["idempotency_key"] == str(row["id"])
    assert (row["status"], row["attempts"], row["channel"]) == ("pending", 0, "outbox_default")
    assert (row["payload"], row["event_version"], row["content_class"]) == ({}, 1, "event")
    assert (row["target"], row["workspace_id"], row["failure_history"]) == (None, None, [])
    now = value(connection, "select clock_timestamp()")
    assert all(before < row[moment] <= now for moment in ("occurred_at", "created_at", "next_attempt_at"))
    woken = list(connection.notifies(timeout=10, stop_after=1))
    assert [(notify.channel, notify.payload) for notify in woken] == [("outbox_default", str(row["id"]))]


def test_an_id_nobody_brought_is_a_uuid_of_version_7(session: Connection) -> None:
    earliest = value(session, "select clock_timestamp()").timestamp() * 1000 - 1
    for _ in range(50):
        insert(session, "outbox", MINIMAL)
    latest = value(session, "select clock_timestamp()").timestamp() * 1000 + 1
    ids: list[UUID] = [found for (found,) in session.execute("select id from core.outbox order by created_at")]
    assert len(set(ids)) == 50
    for found in ids:
        assert (found.version, found.variant) == (7, "specified in RFC 4122")
        assert earliest <= found.int >> 80 <= latest
    assert sorted(found.int >> 80 for found in ids) == [found.int >> 80 for found in ids]
    assert len({found.int & (2**62 - 1) for found in ids}) == 50  # the rest is random


def test_a_key_that_was_brought_is_kept(session: Connection) -> None:
    insert(session, "outbox", {**MINIMAL, "idempotency_key": "mine", "trace_context": "garbage"})
    assert value(session, "select idempotency_key from core.outbox") == "mine"


@pytest.mark.parametrize(
    ("trace", "kept"),
    [
        (TRACE, TRACE),
        ("cc" + TRACE[2:], "cc" + TRACE[2:]),
        (f"00-{'0' * 16}{'1' * 16}-{'1' * 16}-00", f"00-{'0' * 16}{'1' * 16}-{'1' * 16}-00"),
        ("garbage", None),
        (TRACE.upper(), None),
        ("", None),
        ("ff" + TRACE[2:], None),
        (f"00-{'0' * 32}-{'1' * 16}-01", None),
        (f"00-{'1' * 32}-{'0' * 16}-01", None),
        (f"00-{'1' * 31}-{'1' * 17}-01", None),
        (f"00-{'1' * 32}-{'1' * 15}--01", None),
        (TRACE + "-01", None),
        (TRACE + "\n", None),
    ],
)
def test_a_broken_trace_is_dropped_and_costs_no_event(session: Connection, trace: str, kept: str | None) -> None:
    insert(session, "outbox", {**MINIMAL, "trace_context": trace})
    assert value(session, "select trace_context from core.outbox") == kept


@pytest.mark.parametrize("missing", MINIMAL)
def test_a_plain_insert_without_one_of_the_three_is_refused(session: Connection, missing: str) -> None:
    with pytest.raises(psycopg.errors.NotNullViolation) as refused:
        insert(session, "outbox", {name: given for name, given in MINIMAL.items() if name != missing})
    assert refused.value.diag.column_name == missing


def test_ids_the_database_makes_are_of_their_time_and_in_the_order_they_were_made_in(connection: Connection) -> None:
    before = time.time_ns() // 1_000 - 1_000_000
    made = [value(connection, "select core.uuid7()") for _ in range(200)]
    after = time.time_ns() // 1_000 + 1_000_000
    assert {(each.version, each.variant) for each in made} == {(7, RFC_4122)}
    stamps = [(each.int >> 80) * 1_000 + ((each.int >> 64) & 0xFFF) * 1_000 // 4_096 for each in made]
    assert before < stamps[0] < stamps[-1] < after
    assert made == sorted(made)
    assert len({each.int & 0x3FFF_FFFF_FFFF_FFFF for each in made}) == len(made), "the rest of them is random"
