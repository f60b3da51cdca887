"""On the partitioned layout: an id is an event's own, a claim costs what it did, who may do what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of
from spectral.core.events import DuplicateEventError, EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.migrations import up
from tests.conftest import TEMPLATE
from tests.integration.partitions.rows import Connection, month, write
from tests.layout import partition


@pytest.fixture
def months(postgres: PostgresServer) -> Iterator[Connection]:
    """A superuser's connection to a database that has been partitioned for a while."""

    def migrate(dsn: str) -> None:
        up(dsn)
        partition(dsn)

    postgres.create_template(f"{TEMPLATE}_months", migrate)
    dsn = postgres.create_database(template=f"{TEMPLATE}_months")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into core.deployments (generation, status, promoted_at) values (1, 'live', now())")
        yield connection
    postgres.drop_database(database_of(dsn))


def envelope(event_id: UUID) -> EventEnvelope:
    return EventEnvelope(event_id=event_id, event_type="worlds.scan.completed", source="worlds", target="platform")


def known_id(connection: Connection, version: int) -> UUID:
    """The id of an event that was published a month ago."""
    then = month(connection, -1) + timedelta(days=3)
    (row_id,) = write(connection, then)
    row: Any = connection.execute("select core.outbox_id_at(%s)::text", [then]).fetchone()
    given = UUID(row[0][:14] + "7" + str(uuid4())[15:]) if version == 7 else uuid4()
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        connection.execute("update core.outbox set id = %s where id = %s", [given, row_id])
    return given


@pytest.mark.parametrize("version", [4, 7])
def test_an_id_of_another_month_is_known(months: Connection, publishing: Publishing, version: int) -> None:
    known = known_id(months, version)
    publisher = publisher_for(months, publishing)
    with pytest.raises(DuplicateEventError), months.transaction():
        publisher.publish(envelope(known))
    with pytest.raises(DuplicateEventError), months.transaction():
        publisher.publish_many([envelope(uuid4()), envelope(known)])
    with pytest.raises(psycopg.errors.UniqueViolation, match="outbox_pkey"):
        months.execute(
            "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform', p_event_id => %s)",
            [known],
        )
    assert months.execute("select count(*) from core.outbox").fetchone() == (1,)


@pytest.mark.parametrize("version", [4, 7])
def test_an_id_of_another_month_is_ignored_where_that_was_asked_for(
    months: Connection, publishing: Publishing, version: int
) -> None:
    known = known_id(months, version)
    fresh = uuid4()
    publisher = publisher_for(months, publishing)
    with months.transaction():
        publisher.publish(envelope(known), on_conflict="ignore")
        publisher.publish_many([envelope(known), envelope(fresh)], on_conflict="ignore")
    rows = months.execute("select id from core.outbox where created_at >= %s", [month(months, 0)]).fetchall()
    assert rows == [(fresh,)]


PLAIN_INSERT = (
    "insert into core.outbox (id, event_type, source, target, generation, channel, idempotency_key, payload)"
    " values ('{id}', 'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', 'k', '{payload}')"
)
IGNORING = PLAIN_INSERT + " on conflict do nothing"
ESCAPED = r'{{"it\'s": "on conflict do nothing"}}'


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(IGNORING, id="as it is"),
        pytest.param(f"-- it's one\n/* * ; */ {IGNORING} returning id; -- done", id="between comments"),
        pytest.param(IGNORING.replace("core.outbox", '"core"."outbox"'), id="quoted"),
        pytest.param(
            f"do $do$ begin perform 1; {IGNORING}; end $do$", id="inside a function, which is not what the client sent"
        ),
    ],
)
def test_a_statement_that_ignores_known_ids_is_known_by_what_it_says(months: Connection, statement: str) -> None:
    known = known_id(months, 4)
    months.execute(statement.format(id=known, payload='{"note": "; it\'\'s"}').encode())
    assert months.execute("select count(*) from core.outbox").fetchone() == (1,)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(PLAIN_INSERT, id="in the payload"),
        pytest.param(f"{PLAIN_INSERT} /* on conflict do nothing */", id="in a comment"),
        pytest.param(f"{PLAIN_INSERT} -- on conflict do nothing", id="in the last comment"),
        pytest.param(PLAIN_INSERT.replace("'{payload}'", f"E'{ESCAPED}'"), id="after an escape"),
        pytest.param(PLAIN_INSERT.replace("'{payload}'", "$x${payload}$x$"), id="between dollars"),
        pytest.param(f"{PLAIN_INSERT}; {IGNORING.replace('{id}', str(uuid4()))}", id="in the next statement"),
    ],
)
def test_an_insert_that_does_not_ignore_known_ids_is_refused_whatever_stands_beside_it(
    months: Connection, statement: str
) -> None:
    known = known_id(months, 4)
    note = '{"note": "on conflict do nothing"}'
    with pytest.raises(psycopg.errors.UniqueViolation, match="outbox_pkey"):
        months.execute(statement.format(id=known, payload=note).encode())
    assert months.execute("select count(*) from core.outbox").fetchone() == (1,)


def test_a_function_that_does_not_ignore_known_ids_is_refused_inside_a_statement_that_does(months: Connection) -> None:
    insert = PLAIN_INSERT.format(id=known_id(months, 4), payload="{}")
    months.execute(
        "create function pg_temp.mine() returns text language plpgsql as"
        f" $$ begin {insert}; return 'k'; end $$".encode()
    )
    with pytest.raises(psycopg.errors.UniqueViolation, match="outbox_pkey"):
        months.execute(
            "insert into core.outbox (event_type, source, target, generation, channel, idempotency_key)"
            " values ('worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', pg_temp.mine())"
            " on conflict do nothing"
        )


def test_of_nested_functions_the_inner_statement_decides(months: Connection) -> None:
    stack = (
        "PL/pgSQL function core.outbox_refuse_known() line 9 at GET DIAGNOSTICS\n"
        'SQL statement "insert into core.outbox (id) values (inner_id)%s"\n'
        "PL/pgSQL function public.inner() line 1 at SQL statement\n"
        'SQL statement "insert into core.outbox (id) select public.inner()%s"\n'
        "PL/pgSQL function public.outer() line 1 at SQL statement"
    )
    ask, ignoring = "select core.outbox_ignores_known(%s, 'select public.outer()')", " on conflict do nothing"
    assert months.execute(ask, [stack % ("", ignoring)]).fetchone() == (False,)
    assert months.execute(ask, [stack % (ignoring, "")]).fetchone() == (True,)
    assert months.execute(ask, ['first\nSQL function "mine" statement 1']).fetchone() == (False,)


def test_the_text_of_a_statement_is_read_once_for_all_its_rows(months: Connection) -> None:
    known = known_id(months, 4)
    rows = ", ".join([f"('{known}', 'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', 'k')"] * 20)
    columns = "id, event_type, source, target, generation, channel, idempotency_key"
    with months.transaction():
        months.execute("set local track_functions = 'all'")
        months.execute(f"insert into core.outbox ({columns}) values {rows} on conflict do nothing".encode())  # noqa: S608
        read = "select calls from pg_stat_xact_user_functions where funcname = 'outbox_ignores_known'"
        assert months.execute(read).fetchone() == (1,)
        with pytest.raises(psycopg.errors.UniqueViolation), months.transaction():
            months.execute(f"insert into core.outbox ({columns}) values {rows}".encode())  # noqa: S608
    assert months.execute("select count(*) from core.outbox").fetchone() == (1,)


def test_a_publisher_that_acts_for_a_workspace_meets_the_ids_of_others(months: Connection) -> None:
    known = known_id(months, 4)
    with months.transaction(force_rollback=True):
        months.execute("set local role spectral_publisher")
        months.execute("select set_config('spectral.workspace_id', %s, true)", [str(uuid4())])
        with pytest.raises(psycopg.errors.UniqueViolation):
            months.execute(
                "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform',"
                " p_event_id => %s)",
                [known],
            )


def test_publishers_workers_and_readers_can_look_at_the_layout_and_change_nothing(months: Connection) -> None:
    rows = months.execute(
        "select distinct role, proname from pg_proc,"
        " unnest(array['spectral_publisher', 'spectral_worker', 'spectral_readonly', 'public']) as role"
        " where pronamespace = 'core'::regnamespace and proname ~ '^(partition|outbox_(partition|refuse|ignores"
        "|exchange|views|policies|triggers)|sweep_)' and has_function_privilege(role, oid, 'execute') order by 1, 2"
    ).fetchall()
    assert rows == [
        (role, name)
        for role in ("spectral_readonly", "spectral_worker")
        for name in ("outbox_partitions", "partitions_state")
    ]


def test_an_id_of_the_same_month_is_refused_by_the_key(months: Connection) -> None:
    given = "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform', p_event_id => %s)"
    known = uuid4()
    months.execute(given, [known])
    with pytest.raises(psycopg.errors.UniqueViolation):
        months.execute(given, [known])


def test_an_id_that_was_just_made_is_not_looked_for(months: Connection) -> None:
    begin = month(months, 0)
    with months.transaction():
        months.execute("set local track_functions = 'all'")
        months.execute(
            "insert into core.outbox (id, event_type, source, target, generation, channel, idempotency_key, created_at)"
            " select overlay(core.outbox_id_at(%s + i * interval '1 hour')::text placing '7' from 15)::uuid,"
            "  'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', i::text, %s + i * interval '1 hour'"
            " from generate_series(2, 20) as i",
            [begin, begin],
        )
        called = "select calls from pg_stat_xact_user_functions where funcname = 'outbox_refuse_known'"
        assert months.execute(called).fetchone() is None
        months.execute(
            "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform', p_event_id => %s)",
            [uuid4()],
        )
        assert months.execute(called).fetchone() == (1,)


def test_a_claim_reads_no_more_for_all_the_history_of_other_months(months: Connection) -> None:
    def buffers() -> int:
        months.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform')")
        with months.transaction(force_rollback=True):
            read = []
            for _ in range(2):  # the first one plans
                row: Any = months.execute(
                    "explain (analyze, buffers, format json) select * from core.outbox_claim_from("
                    "'w', 'platform', '{1}', '{outbox_gen_1}', null, 1, null, 100, '{}')"
                ).fetchone()
                plan = row[0][0]["Plan"]
                read.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
            return int(read[-1])

    for _ in range(5):
        months.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform')")
    before = buffers()
    for later in (-3, -2, -1):
        write(months, month(months, later), count=5000)
    months.execute("analyze core.outbox")
    after = buffers()
    # Some steps more down the trees of three months, for the few lookups of a claim; the history has 600 pages.
    assert after < before + 60


def test_the_plan_of_a_claim_merges_the_months_in_their_order(months: Connection) -> None:
    months.execute("set enable_seqscan = off")
    months.execute("set enable_bitmapscan = off")
    plan = "\n".join(
        row[0]
        for row in months.execute(
            "explain select id from core.outbox where status = 'pending' and deleted_at is null and generation = 1"
            " and channel = 'outbox_gen_1' and target = 'platform' and next_attempt_at <= now()"
            " order by next_attempt_at, id limit 10 for update skip locked"
        )
    )
    assert "Merge Append" in plan
    assert "Sort  (" not in plan
    assert plan.count("Index Scan") == 8


def test_a_broadcast_has_one_child_for_each_context(months: Connection) -> None:
    months.execute(
        "insert into core.subscriptions (generation, context, event_type, handler_name, max_attempts)"
        " values (1, 'platform', 'worlds.scan.completed', 'platform.project', 6)"
    )
    months.execute("select core.outbox_publish('worlds.scan.completed', 'worlds')")
    fan_out = "select count(child_id) from core.outbox_fan_out('{1}', '{outbox_gen_1}')"
    assert months.execute(fan_out).fetchone() == (1,)
    assert months.execute(fan_out).fetchone() == (0,)
    with pytest.raises(psycopg.errors.UniqueViolation, match="child_key"):
        months.execute(
            "insert into core.outbox (event_type, source, target, generation, channel, idempotency_key, parent_id)"
            " select event_type, source, target, generation, channel, 'again', parent_id"
            " from core.outbox where parent_id is not null"
        )


@pytest.mark.parametrize("role", ["spectral_publisher", "spectral_worker", "spectral_readonly"])
def test_nobody_reaches_a_partition_by_its_own_name(months: Connection, role: str) -> None:
    months.execute(psycopg.sql.SQL("set role {}").format(psycopg.sql.Identifier(role)))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        months.execute("select from core.outbox_default")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        months.execute("select core.partition_drop('outbox_default', '1 day', '1 day', 'me')")
    months.execute("reset role")


def test_rows_of_another_workspace_stay_hidden(months: Connection) -> None:
    months.execute(
        "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform', p_workspace_id => %s)",
        [uuid4()],
    )
    months.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform')")
    months.execute("set role spectral_readonly")
    assert months.execute("select count(*) from core.outbox").fetchone() == (1,)
    months.execute("reset role")
