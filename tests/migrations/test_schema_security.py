"""Who may do what, all of it; and functions that run with the owner's rights cannot be led astray.

The whole matrix is in golden/privileges.txt. After a change that is meant, write it anew and read the difference:

    SPECTRAL_UPDATE_GOLDEN=1 python -m pytest tests/migrations/test_schema_security.py

That run fails nevertheless: nobody passes by regenerating.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.migrations.schema import Connection, insert, logged_in, outbox_row, role, value
from tests.migrations.sql import CHANNELS, EVENT_TYPE, Claim, claim, publish, settle

GOLDEN = Path(__file__).parent / "golden" / "privileges.txt"

GROUPS = ("publisher", "worker", "operator", "retention", "readonly")
ROLES = {**{group: f"spectral_{group}" for group in GROUPS}, "public": "public"}
TABLES = (
    "audit",
    "bell",
    "bell_leases",
    "brakes",
    "deployments",
    "event_handled",
    "outbox",
    "subscriptions",
    "sweeper",
    "workers",
)

RUNS_AS_OWNER = {
    "audit_discard",
    "bell_asleep",
    "bell_awake",
    "bell_end_leases",
    "bell_hold",
    "bell_mend",
    "bell_quiet",
    "bell_ring",
    "bell_set",
    "brake_pull",
    "brake_release",
    "deployment_allocate",
    "deployment_drain",
    "deployment_promote",
    "deployment_retire",
    "event_handled_require_settled",
    "insight_failed",
    "insight_in_flight",
    "insight_lanes",
    "insight_oldest_delivered",
    "insight_relay",
    "outbox_became",
    "outbox_begin",
    "outbox_begin_one",
    "outbox_begin_together",
    "outbox_bell_needed",
    "outbox_claim",
    "outbox_claim_aside",
    "outbox_claim_from",
    "outbox_claim_late",
    "outbox_claim_these",
    "outbox_deliver",
    "outbox_deliver_alike",
    "outbox_deliver_together",
    "outbox_discard",
    "outbox_fail_unhandled",
    "outbox_fan_out",
    "outbox_hand_over",
    "outbox_key_lives",
    "outbox_label",
    "outbox_names",
    "outbox_next_due",
    "outbox_partitions",
    "outbox_publish",
    "outbox_publish_many",
    "outbox_reap",
    "outbox_refuse_known",
    "outbox_relay",
    "outbox_relay_lanes",
    "outbox_release",
    "outbox_release_unknown",
    "outbox_renew",
    "outbox_replay",
    "outbox_replay_many",
    "outbox_set_aside",
    "outbox_settle",
    "outbox_subscribe",
    "outbox_unrelay",
    "partition_create",
    "partition_drop",
    "partition_over",
    "partitions_bind",
    "partitions_dedup_copy",
    "partitions_dedup_mirror",
    "partitions_dedup_prepare",
    "partitions_dedup_switch",
    "partitions_dedup_undo",
    "partitions_mend",
    "partitions_mend_bind",
    "partitions_mend_unbind",
    "partitions_mend_validate",
    "partitions_missing",
    "partitions_obstacles",
    "partitions_prepare",
    "partitions_state",
    "partitions_switch",
    "partitions_unbind",
    "partitions_undo",
    "partitions_validate",
    "relay_crew",
    "relay_mode",
    "relay_state",
    "relay_switch",
    "sweep_begin",
    "sweep_finish",
    "sweep_handled",
    "sweep_handled_leaf",
    "sweep_leaves",
    "sweep_outbox",
    "sweep_outbox_leaf",
    "worker_sign_in",
    "worker_sign_out",
}

FUNCTIONS = """\
select p.oid, p.proname, p.oid::regprocedure::text, p.prosecdef, p.proconfig, p.proowner::regrole::text
from pg_proc p
where p.pronamespace = 'core'::regnamespace
order by 3"""

RELATIONS = """\
select c.oid, c.relname, c.relkind::text from pg_class c
where c.relnamespace = 'core'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
order by c.relkind = 'S', c.relname"""


# functions and roles


def test_every_function_pins_its_search_path_with_temporary_objects_last(connection: Connection) -> None:
    for _, _, signature, _, settings, _ in connection.execute(FUNCTIONS):
        pinned = [setting for setting in settings or [] if setting.startswith("search_path=")]
        assert pinned == ["search_path=pg_catalog, pg_temp"], signature


def test_every_function_belongs_to_the_owner_and_not_to_everybody(connection: Connection) -> None:
    for oid, _, signature, _, _, owner in connection.execute(FUNCTIONS).fetchall():
        assert owner == "spectral_owner", signature
        assert not value(connection, "select has_function_privilege('public', %s::oid, 'execute')", [oid]), signature


def test_which_functions_run_with_the_owners_rights_is_a_decision(connection: Connection) -> None:
    assert {name for _, name, _, definer, *_ in connection.execute(FUNCTIONS) if definer} == RUNS_AS_OWNER


def test_no_view_runs_with_the_owners_rights(connection: Connection) -> None:
    found = connection.execute(
        "select relname, reloptions from pg_class where relnamespace = 'core'::regnamespace and relkind in ('v', 'm')"
    ).fetchall()
    assert found
    assert [name for name, options in found if "security_invoker=true" not in (options or [])] == []


def test_our_roles_log_in_nowhere_and_are_nobody_special(connection: Connection) -> None:
    found = connection.execute(
        "select rolname, rolcanlogin or rolsuper or rolcreaterole or rolcreatedb or rolbypassrls or rolreplication"
        " from pg_roles where rolname = any (%s)",
        [["spectral_owner", *(f"spectral_{group}" for group in GROUPS)]],
    ).fetchall()
    assert len(found) == 6
    assert [name for name, special in found if special] == []


def test_our_groups_are_no_members_of_each_other_nor_of_the_owner(connection: Connection) -> None:
    ours = ["spectral_owner", *(f"spectral_{group}" for group in GROUPS)]
    found = connection.execute(
        "select roleid::regrole, member::regrole from pg_auth_members where member::regrole::text = any (%s)",
        [ours],
    ).fetchall()
    assert found == []


# the matrix


def test_the_privileges_are_those_of_the_golden_file(connection: Connection) -> None:
    found = "\n".join(matrix(connection)) + "\n"
    if os.environ.get("SPECTRAL_UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
        pytest.fail(f"{GOLDEN.name} was written anew; read the difference, and run again without the variable")
    assert found == GOLDEN.read_text()


def matrix(connection: Connection) -> Iterator[str]:
    """Every object of the schema with what each role may do to it; what only some columns allow names the columns."""
    yield "schema core"
    for name in ROLES:
        yield line(name, [verb for verb in ("usage", "create") if allowed(connection, "schema", name, "core", verb)])
    for oid, relation, kind in connection.execute(RELATIONS).fetchall():
        yield ""
        yield f"{'sequence' if kind == 'S' else 'view' if kind == 'v' else 'table'} core.{relation}"
        for name in ROLES:
            held = on_sequence(connection, name, oid) if kind == "S" else on_table(connection, name, oid)
            yield line(name, held)
    for oid, _, signature, *_ in connection.execute(FUNCTIONS).fetchall():
        may = [name for name in ROLES if allowed(connection, "function", name, oid, "execute")]
        yield ""
        yield f"function {signature}"
        yield "  execute    " + (", ".join(may) or "-")


def line(name: str, held: Sequence[str]) -> str:
    return f"  {name:<10} {'; '.join(held) or '-'}"


def on_sequence(connection: Connection, name: str, oid: int) -> list[str]:
    return [verb for verb in ("usage", "select", "update") if allowed(connection, "sequence", name, oid, verb)]


def on_table(connection: Connection, name: str, oid: int) -> list[str]:
    held = []
    for verb in ("select", "insert", "update", "delete", "truncate", "references", "trigger"):
        if allowed(connection, "table", name, oid, verb):
            held.append(verb)
        elif verb in {"select", "insert", "update", "references"} and (
            columns := columns_with(connection, name, oid, verb)
        ):
            held.append(f"{verb} ({', '.join(columns)})")
    return held


def columns_with(connection: Connection, name: str, oid: int, verb: str) -> list[str]:
    found = connection.execute(
        "select attname from pg_attribute where attrelid = %s and attnum > 0 and not attisdropped"
        " and has_column_privilege(%s, attrelid, attnum, %s) order by attname",
        [oid, ROLES[name], verb],
    )
    return [column for (column,) in found]


def allowed(connection: Connection, kind: str, name: str, which: int | str, verb: str) -> bool:
    statement = sql.SQL("select {}(%s, %s::{}, %s)").format(
        sql.Identifier(f"has_{kind}_privilege"), sql.SQL("text" if isinstance(which, str) else "oid")
    )
    row = connection.execute(statement, [ROLES[name], which, verb]).fetchone()
    assert row is not None
    return bool(row[0])


# the important ones, by hand


def holders(connection: Connection, table: str, verb: str) -> set[str]:
    """Who may do this to the table or to any column of it."""
    asked = "has_table_privilege(%s, %s, %s)"
    if verb in {"select", "insert", "update", "references"}:
        asked = "has_any_column_privilege(%s, %s, %s)"
    return {name for name in ROLES if value(connection, f"select {asked}", [ROLES[name], f"core.{table}", verb])}


@pytest.mark.parametrize("table", TABLES)
def test_only_retention_deletes_and_only_what_retention_is_about(connection: Connection, table: str) -> None:
    about = {"outbox", "event_handled"}
    assert holders(connection, table, "delete") == ({"retention"} if table in about else set())
    for verb in ("truncate", "references", "trigger"):
        assert holders(connection, table, verb) == set()


def test_nobody_may_maintain_a_table_or_create_in_the_schema(connection: Connection) -> None:
    for name in ROLES.values():
        assert not value(connection, "select has_schema_privilege(%s, 'core', 'create')", [name])
        if connection.info.server_version >= 170000:
            for table in TABLES:
                held = value(connection, "select has_table_privilege(%s, %s, 'maintain')", [name, f"core.{table}"])
                assert not held


def test_a_publisher_writes_what_happened_and_nothing_of_how_far_it_got(connection: Connection) -> None:
    oid = value(connection, "select 'core.outbox'::regclass::oid")
    forbidden = {"status", "attempts", "claim_token", "claimed_by", "claimed_at", "delivered_at", "last_error"}
    forbidden |= {"first_failed_at", "failure_history", "deleted_at", "parent_id", "created_at"}
    assert not forbidden & set(columns_with(connection, "publisher", oid, "insert"))
    assert columns_with(connection, "publisher", oid, "update") == []


@pytest.mark.parametrize("column", ["status", "attempts", "claim_token", "claimed_by", "delivered_at", "parent_id"])
def test_a_publisher_that_tries_is_refused(database: str, column: str) -> None:
    with logged_in(database, "spectral_publisher") as publisher:
        row = {"event_type": EVENT_TYPE, "source": "worlds", "generation": 1, column: None}
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            insert(publisher, "outbox", row)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            publisher.execute(sql.SQL("update core.outbox set {} = null").format(sql.Identifier(column)))


def test_a_worker_touches_no_event_but_through_the_functions(connection: Connection) -> None:
    for table in ("outbox", "event_handled", "audit"):
        for verb in ("select", "insert", "update", "delete"):
            assert "worker" not in holders(connection, table, verb)


def test_read_only_is_read_only(connection: Connection) -> None:
    for table in TABLES:
        for verb in ("insert", "update", "delete"):
            assert "readonly" not in holders(connection, table, verb)
    as_owner = {
        name: value(connection, "select provolatile::text from pg_proc where oid = %s", [oid])
        for oid, name, _, definer, *_ in connection.execute(FUNCTIONS).fetchall()
        if definer and allowed(connection, "function", "readonly", oid, "execute")
    }
    # Counts and states alone; and what is stable cannot write.
    counts = {"insight_failed", "insight_in_flight", "insight_lanes", "insight_oldest_delivered", "insight_relay"}
    states = {"outbox_partitions", "partitions_state", "relay_crew", "relay_mode", "relay_state"}
    assert as_owner == dict.fromkeys(counts | states, "s")


def test_the_audit_is_read_by_operators_and_written_by_nobody(connection: Connection) -> None:
    assert holders(connection, "audit", "select") == {"operator"}
    for verb in ("insert", "update", "delete", "truncate"):
        assert holders(connection, "audit", verb) == set()


@pytest.mark.parametrize(
    "change", ["update core.audit set actor = 'x'", "delete from core.audit", "truncate core.audit"]
)
def test_the_audit_only_grows_even_for_a_superuser(connection: Connection, change: str) -> None:
    insert(connection, "audit", {"action": "replay", "actor": "ada", "affected": 1})
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="append-only"):
        connection.execute(change.encode())
    assert value(connection, "select actor from core.audit") == "ada"


def test_the_trigger_functions_cannot_be_borrowed(database: str) -> None:
    # A trigger on a table of one's own could call them with rows of one's own making.
    for group in GROUPS:
        with role(database, groups=(f"spectral_{group}",)) as own, psycopg.connect(own, autocommit=True) as session:
            session.execute("create temp table forged (id uuid, deleted_at timestamptz)")
            for function in ("audit_discard", "event_handled_refuse_delete", "event_handled_require_settled"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    session.execute(
                        sql.SQL(
                            "create trigger forged after update on forged for each row execute function {}()"
                        ).format(sql.Identifier("core", function))
                    )


# the trap: everything the functions use exists once more, in front of the real thing

PLACES = ("trap", "pg_temp")
COPIED = (
    "outbox",
    "event_handled",
    "deployments",
    "subscriptions",
    "audit",
    "brakes",
    "workers",
    "sweeper",
    "bell",
    "bell_leases",
)

COLUMNS = """\
select string_agg(format('%%I %%s', attname, format_type(atttypid, atttypmod)), ', ' order by attnum)
from pg_attribute where attrelid = ('core.' || %s)::regclass and attnum > 0 and not attisdropped"""

# name, arguments, result and what it answers; each first writes down as whom it ran
FAKES = [
    ("now", "", "timestamptz", "'-infinity'"),
    ("clock_timestamp", "", "timestamptz", "'-infinity'"),
    ("gen_random_uuid", "", "uuid", "null"),
    ("uuid7", "", "uuid", "null"),
    ("unnest", "anyarray", "setof anyelement", None),
    ("cardinality", "anyarray", "integer", "0"),
    ("pg_notify", "text, text", "void", None),
    ("hashtextextended", "text, bigint", "bigint", "0"),
    ("pg_try_advisory_xact_lock", "bigint", "boolean", "false"),
    ("pg_try_advisory_xact_lock_shared", "bigint", "boolean", "true"),
    ("set_config", "text, text, boolean", "text", "'x'"),
    ("bell_lock_key", "text, text", "bigint", "0"),
    ("bell_ring", "text", "void", None),
    ("pg_has_role", "name, name, text", "boolean", "true"),
    ("current_setting", "text, boolean", "text", "null"),
    ("current_database", "", "name", "'x'"),
    ("current_workspace", "", "uuid", "null"),
    ("outbox_channel", "bigint, text", "text", "'x'"),
    ("outbox_child_id", "uuid, text", "uuid", "null"),
    ("outbox_wake", "text, text", "void", None),
    ("pg_notification_queue_usage", "", "double precision", "1"),
    ("worker_lock_key", "text", "bigint", "0"),
    ("require_parallel", "integer[]", "void", None),
    ("require_handler_names", "text[]", "void", None),
    ("require_sweep_range", "bigint, bigint, interval, interval, integer", "void", None),
    ("deployment_status", "bigint", "text", "'allocated'"),
    ("deployment_blockers", "bigint, integer", "bigint", "null"),
    ("worker_lives", "text", "boolean", "false"),
    ("outbox_key_lives", "text", "boolean", "false"),
    ("sweep_renew", "text", "void", None),
    ("sweep_record", "boolean", "void", None),
    ("btrim", "text", "text", "'x'"),
    ("length", "text", "integer", "1"),
    ("jsonb_strip_nulls", "jsonb", "jsonb", "'{}'"),
    ("octet_length", "text", "integer", "0"),
    ('"left"', "text, integer", "text", "'x'"),
    ("regexp_replace", "text, text, text", "text", "'x'"),
    ("starts_with", "text, text", "boolean", "true"),
    ("jsonb_array_length", "jsonb", "integer", "0"),
    ("jsonb_typeof", "jsonb", "text", "'object'"),
    ("encode", "bytea, text", "text", "'x'"),
    ("sha256", "bytea", "bytea", "''"),
    ("substr", "text, integer, integer", "text", "'x'"),
]
OPERATORS = [
    ("=", "uuid", "boolean", "true"),
    ("=", "text", "boolean", "true"),
    ("<>", "text", "boolean", "false"),
    ("=", "bigint", "boolean", "true"),
    ("<=", "timestamptz", "boolean", "true"),
    (">=", "timestamptz", "boolean", "true"),
    ("<", "timestamptz", "boolean", "true"),
    ("||", "text", "text", "'x'"),
    ("||", "jsonb", "jsonb", "'[]'"),
    (">", "text", "boolean", "false"),
    ("=", "tid", "boolean", "true"),
    (">=", "tid", "boolean", "true"),
    ("<", "interval", "boolean", "false"),
]


@dataclass(frozen=True)
class Trap:
    """A session of a role with one group's rights, in which every unqualified name means something of its own."""

    session: Connection
    superuser: Connection
    user: str

    def lay(self) -> None:
        """Build it, with copies of all real rows as bait."""
        self._do("create table trap.calls (function text, as_user text)")
        self._do("grant usage on schema trap to public")
        self._do("grant insert on trap.calls to public")
        for table in COPIED:
            columns = value(self.superuser, COLUMNS, [table])
            real = sql.SQL("select coalesce(jsonb_agg(t), '[]') from {} t").format(sql.Identifier("core", table))
            rows = Jsonb(value(self.superuser, real))
            for schema in PLACES:
                self._do(f"create table {schema}.{table} ({columns})")
                copy = "insert into {place} select * from jsonb_populate_recordset(null::{place}, %s)"
                self.session.execute(copy.format(place=f"{schema}.{table}"), [rows])
        for schema in PLACES:
            self._do(f"create view {schema}.live_generation as select 2::bigint as generation")
            for name, arguments, result, answer in FAKES:
                self._function(f"{schema}.{name}", arguments, result, answer)
            for number, (operator, kind, result, answer) in enumerate(OPERATORS):
                function = f"{schema}.operator_{number}"
                self._function(function, f"{kind}, {kind}", result, answer)
                operands = f"leftarg = {kind}, rightarg = {kind}"
                self._do(f"create operator {schema}.{operator} ({operands}, function = {function})")
        self._do("set search_path = trap, pg_temp, pg_catalog")

    def bait(self) -> list[str]:
        """All rows of all copies."""
        return [
            str(self.session.execute(sql.SQL("table {}").format(sql.Identifier(*place))).fetchall())
            for place in product(PLACES, COPIED)
        ]

    def calls(self) -> list[tuple[str, str]]:
        """Which fakes ran, and as whom."""
        return self.superuser.execute("select function, as_user from trap.calls").fetchall()

    def _function(self, name: str, arguments: str, result: str, answer: str | None) -> None:
        body = f"insert into trap.calls values ('{name}', current_user); return {answer or ''};"  # noqa: S608  constants
        # Its own path, so that writing the record does not call the fakes.
        options = "language plpgsql set search_path = pg_catalog"
        self._do(f"create function {name}({arguments}) returns {result} {options} as $$ begin {body} end $$")

    def _do(self, statement: str) -> psycopg.Cursor[Any]:
        return self.session.execute(statement.encode())


@pytest.fixture
def trap(database: str, connection: Connection) -> Iterator[Callable[[str], Trap]]:
    """Lays the trap for one group, once the real rows are there."""
    with ExitStack() as opened:

        def lay(group: str) -> Trap:
            own = opened.enter_context(role(database, groups=(f"spectral_{group}",)))
            user = str(psycopg.conninfo.conninfo_to_dict(own)["user"])
            connection.execute(sql.SQL("create schema trap authorization {}").format(sql.Identifier(user)))
            laid = Trap(opened.enter_context(psycopg.connect(own, autocommit=True)), connection, user)
            laid.lay()
            return laid

        yield lay


def test_the_trap_works_on_what_is_not_protected(trap: Callable[[str], Trap], connection: Connection) -> None:
    publish(connection)
    laid = trap("publisher")
    laid.session.execute("select clock_timestamp(), 'a'::text || 'b'::text, 'a'::text = 'b'::text")
    assert {function for function, _ in laid.calls()} == {"trap.clock_timestamp", "trap.operator_7", "trap.operator_1"}
    assert {user for _, user in laid.calls()} == {laid.user}
    laid.session.execute("delete from outbox")
    assert value(laid.superuser, "select count(*) from core.outbox") == 1
    assert value(laid.superuser, "select count(*) from trap.outbox") == 0


def statuses(connection: Connection) -> dict[UUID, str]:
    return dict(connection.execute("select id, status from core.outbox").fetchall())


def untouched(laid: Trap, before: list[str]) -> None:
    assert laid.calls() == []
    assert laid.bait() == before


def test_publishing_is_not_led_astray(trap: Callable[[str], Trap], connection: Connection) -> None:
    laid = trap("publisher")
    before = laid.bait()
    by_function = laid.session.execute("select core.outbox_publish('worlds.scan.completed', 'worlds')").fetchall()
    events = json.dumps([{"event_type": EVENT_TYPE, "source": "worlds", "target": "platform"}] * 2)
    many = laid.session.execute("select core.outbox_publish_many(%s::pg_catalog.jsonb)", [events]).fetchall()
    plain = uuid4()
    insert(laid.session, "outbox", {"event_type": EVENT_TYPE, "source": "core", "generation": 1, "id": plain})
    assert set(statuses(connection)) == {plain} | {event_id for (event_id,) in by_function + many}
    # The live generation is the real one, and the key was completed by the real trigger.
    assert connection.execute("select distinct generation from core.outbox").fetchall() == [(1,)]
    assert value(connection, "select idempotency_key from core.outbox where id = %s", [plain]) == str(plain)
    untouched(laid, before)


def test_delivery_is_not_led_astray(trap: Callable[[str], Trap], connection: Connection) -> None:
    connection.execute(
        "insert into core.subscriptions (generation, context, event_type, handler_name)"
        " values (1, 'platform', %s, 'platform.project_scan')",
        [EVENT_TYPE],
    )
    for _ in range(4):
        publish(connection)
    broadcast = publish(connection, target=None)
    unwanted = publish(connection, p_event_type="worlds.scan.started")
    publish(connection, p_delay=timedelta(hours=1))
    laid = trap("worker")
    worker, before = laid.session, laid.bait()

    claims = claim(worker)
    assert len(claims) == 4
    begun, released, renewed, orphaned = claims
    arrays = [[begun.id], [begun.token], ["platform.project_scan"]]
    with worker.transaction():
        worker.execute("set local spectral.guarded = on")
        assert worker.execute("select verdict from core.outbox_begin(%s, %s, %s)", arrays).fetchall() == [("run",)]
        assert settle(worker, [begun], "delivered") == [(begun.id, "delivered")]
        worker.execute("select core.require_role(%s)", [laid.user])
    for function, held in (("outbox_release", released), ("outbox_renew", renewed)):
        statement = sql.SQL("select * from core.{}(%s, %s)").format(sql.Identifier(function))
        assert worker.execute(statement, [[held.id], [held.token]]).fetchall() == [(held.id,)]
    split = worker.execute("select parent_id, context from core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall()
    assert split == [(broadcast, "platform")]
    failed = worker.execute(
        "select id from core.outbox_fail_unhandled('platform', '{1}', %s, '0 s')", [CHANNELS]
    ).fetchall()
    assert failed == [(unwanted,)]
    reaped = worker.execute("select id from core.outbox_reap('0 s', '0 s')").fetchall()
    assert {event_id for (event_id,) in reaped} == {renewed.id, orphaned.id}
    due = worker.execute("select core.outbox_next_due('{platform}', '{1}', %s)", [CHANNELS]).fetchall()
    assert timedelta(minutes=59) < due[0][0] < timedelta(hours=1)
    subscribe = "select handler_name from core.outbox_subscribe(1, '{platform}', %s, '{platform.other}', '{3}', %s)"
    assert worker.execute(subscribe, [[EVENT_TYPE], False]).fetchall() == [("platform.project_scan",)]
    assert worker.execute(subscribe, [[EVENT_TYPE], True]).fetchall() == []
    sign_in = "select core.worker_sign_in(%s, '{1}', '{platform}', '{outbox_gen_1}', 'h', 1, '1')"
    for name in ("stays", "leaves"):
        worker.execute(sign_in, [name])
    worker.execute("select core.worker_sign_out('leaves')")

    found = statuses(connection)
    assert (found[begun.id], found[released.id], found[orphaned.id]) == ("delivered", "pending", "pending")
    assert (found[broadcast], found[unwanted]) == ("delivered", "failed")
    assert value(connection, "select event_id from core.event_handled") == begun.id
    assert value(connection, "select handler_name from core.subscriptions") == "platform.other"
    assert value(connection, "select name from core.workers") == "stays"
    untouched(laid, before)


def test_operating_is_not_led_astray(trap: Callable[[str], Trap], connection: Connection) -> None:
    replayed, replayed_too, discarded, by_hand = (outbox_row(connection, "failed") for _ in range(4))
    reaped = outbox_row(connection, "in_flight")
    laid = trap("operator")
    operator, before = laid.session, laid.bait()

    assert operator.execute("select core.outbox_replay(%s, 1, 'ada')", [replayed]).fetchall() == [(1,)]
    many = operator.execute("select cycle from core.outbox_replay_many(%s, 2, 'ada', 'fixed')", [[replayed_too]])
    assert many.fetchall() == [(1,)]
    gone = operator.execute("select id, refusal from core.outbox_discard(%s, 'ada', 'stale')", [[discarded]])
    assert gone.fetchall() == [(discarded, None)]
    update = "update core.outbox set deleted_at = pg_catalog.now() where id operator(pg_catalog.=) %s"
    assert operator.execute(update, [by_hand]).rowcount == 1
    assert operator.execute("select id from core.outbox_reap()").fetchall() == [(reaped,)]

    found = statuses(connection)
    assert [found[event_id] for event_id in (replayed, replayed_too, reaped)] == ["pending"] * 3
    assert found[discarded] == found[by_hand] == "failed"
    audit = connection.execute("select action, actor, session_role, event_ids from core.audit order by id").fetchall()
    assert audit == [
        ("replay", "ada", laid.user, [replayed]),
        ("replay", "ada", laid.user, [replayed_too]),
        ("discard", "ada", laid.user, [discarded]),
        ("discard", laid.user, laid.user, [by_hand]),
    ]
    untouched(laid, before)


def test_releasing_and_braking_are_not_led_astray(trap: Callable[[str], Trap], connection: Connection) -> None:
    moved = outbox_row(connection)
    laid = trap("operator")
    operator, before = laid.session, laid.bait()

    asked = "'{platform}', '{worlds.scan.completed}', '{platform.project_scan}', '{6}', 'ada'"
    allocated = operator.execute(f"select core.deployment_allocate(null, 'v3', {asked})")
    assert allocated.fetchall() == [(3,)]
    assert operator.execute("select core.deployment_promote(3, 'ada')").fetchall() == [(1,)]
    waiting = operator.execute("select status, rows from core.deployment_blockers(1)")
    assert waiting.fetchall() == [("pending", 1)]
    assert operator.execute("select core.outbox_hand_over(1, 3, 'platform', 10, 'ada')").fetchall() == [(1,)]
    operator.execute("select core.deployment_retire(1, 'ada')")
    operator.execute("select core.deployment_drain(2, 'ada')")
    assert operator.execute("select core.brake_pull('platform', 'ada', 'r')").fetchall() == [(True,)]
    assert operator.execute("select core.brake_release('platform', 'ada')").fetchall() == [(True,)]
    assert operator.execute("select core.worker_lives('nobody')").fetchall() == [(False,)]

    status = dict(connection.execute("select generation, status from core.deployments").fetchall())
    assert status == {0: "retired", 1: "retired", 2: "draining", 3: "live"}
    assert connection.execute("select id, generation from core.outbox").fetchall() == [(moved, 3)]
    assert value(connection, "select count(*) from core.subscriptions where generation = 3") == 1
    actions = ["allocate", "promote", "hand_over", "retire", "drain", "brake", "release_brake"]
    assert connection.execute("select action, actor, session_role from core.audit order by id").fetchall() == [
        (action, "ada", laid.user) for action in actions
    ]
    untouched(laid, before)


def test_sweeping_is_not_led_astray(trap: Callable[[str], Trap], connection: Connection) -> None:
    pending, failed = outbox_row(connection), outbox_row(connection, "failed")
    put_away = outbox_row(connection, "delivered")
    outbox_row(connection, "delivered", deleted_at="2026-01-01T00:00Z")
    for event_id in (failed, uuid4()):
        handled = {"handler_name": "platform.project_scan", "idempotency_key": str(event_id), "event_id": event_id}
        insert(connection, "event_handled", {**handled, "deleted_at": "2026-01-01T00:00Z"})
    laid = trap("retention")
    sweeper, before = laid.session, laid.bait()

    assert sweeper.execute("select core.sweep_begin('s')").fetchall() == [(True,)]
    for function, swept in (("sweep_outbox", (1, 1, False)), ("sweep_handled", (0, 1, False))):
        statement = sql.SQL("select * from core.{}('s', 0, 100, '1 hour', '1 hour')").format(sql.Identifier(function))
        assert sweeper.execute(statement).fetchall() == [swept]
    sweeper.execute("select core.sweep_finish('s')")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        sweeper.execute("delete from core.event_handled")

    assert set(statuses(connection)) == {pending, failed, put_away}
    assert value(connection, "select event_id from core.event_handled") == failed
    assert connection.execute("select action, actor, session_role from core.audit").fetchall() == [
        ("sweep", "s", laid.user)
    ]
    untouched(laid, before)


@pytest.mark.parametrize("group", ["worker", "operator", "readonly"])
def test_looking_is_not_led_astray(trap: Callable[[str], Trap], connection: Connection, group: str) -> None:
    for status in ("pending", "in_flight", "failed", "delivered"):
        outbox_row(connection, status)
    laid = trap(group)
    before = laid.bait()
    now = value(connection, "select clock_timestamp()")

    lanes = laid.session.execute("select context, due from core.insight_lanes(%s, 10, 10)", [now]).fetchall()
    held = laid.session.execute("select rows, stale from core.insight_in_flight(%s, 10)", [now]).fetchall()
    failed = laid.session.execute("select context, rows from core.insight_failed(%s, 10)", [now]).fetchall()
    oldest = laid.session.execute("select core.insight_oldest_delivered()").fetchall()

    assert (lanes, held, failed) == ([("platform", 1)], [(1, 1)], [("platform", 1)])
    assert oldest == connection.execute("select delivered_at from core.outbox where status = 'delivered'").fetchall()
    untouched(laid, before)


def test_the_triggers_cannot_be_switched_off(database: str) -> None:
    for group in GROUPS:
        with logged_in(database, f"spectral_{group}") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("set session_replication_role = replica")


def test_casts_between_the_servers_own_types_are_not_for_us_to_make(trap: Callable[[str], Trap]) -> None:
    laid = trap("worker")
    laid.session.execute("create function trap.cast_it(uuid) returns text language sql as $$ select 'x' $$")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        laid.session.execute("create cast (uuid as text) with function trap.cast_it(uuid) as implicit")


def test_a_claim_is_worth_nothing_to_somebody_who_may_not_settle(database: str, connection: Connection) -> None:
    publish(connection)
    (held,) = claim(connection)
    assert isinstance(held, Claim)
    for group in ("publisher", "operator", "retention", "readonly"):
        with logged_in(database, f"spectral_{group}") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            settle(session, [held], "delivered")
