"""The DLQ to look at: the failed rows that nobody discarded, each with its error taken apart."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from spectral.core.events.describe import describe, describe_many
from tests.migrations.schema import Connection, logged_in, outbox_row, value
from tests.migrations.sql import fail, publish, row


def listed(connection: Connection) -> set[UUID]:
    return {event_id for (event_id,) in connection.execute("select id from core.dead_letters").fetchall()}


def taken_apart(connection: Connection, error: str) -> tuple[str, str | None]:
    event_id = outbox_row(connection, "failed", last_error=error)
    found = connection.execute("select error_class, handler_name from core.dead_letters where id = %s", [event_id])
    ((error_class, handler_name),) = found.fetchall()
    return error_class, handler_name


def test_they_are_the_failed_rows_that_nobody_discarded(session: Connection) -> None:
    rows = {status: outbox_row(session, status) for status in ("pending", "in_flight", "delivered", "failed")}
    discarded = outbox_row(session, "failed")
    session.execute("select core.outbox_discard(%s)", [[discarded]])
    assert listed(session) == {rows["failed"]}
    session.execute("update core.outbox set deleted_at = null where id = %s", [discarded])
    assert listed(session) == {rows["failed"], discarded}
    session.execute("select core.outbox_replay(%s, 1)", [discarded])
    assert listed(session) == {rows["failed"]}


def test_what_is_shown_is_what_the_row_says(session: Connection) -> None:
    event_id = fail(session, "ValueError: platform.project_scan: no")
    session.execute("select core.outbox_replay(%s, 1)", [event_id])
    session.execute("select core.outbox_claim('w', 'platform', '{1}', '{outbox_gen_1}', null)")
    session.execute("select core.outbox_reap('0 s', '0 s', 10, 1)")  # suspect
    session.execute("select core.outbox_claim('w', 'platform', '{1}', '{outbox_gen_1}', null)")
    session.execute("select core.outbox_reap('0 s', '0 s', 10, 1)")
    with session.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        shown = cursor.execute("select * from core.dead_letters").fetchone()
    assert shown is not None
    kept = row(session, event_id)
    assert shown.pop("failed_at") == kept["claimed_at"]
    assert (shown.pop("error_class"), shown.pop("handler_name"), shown.pop("replays")) == ("WorkerLostError", None, 1)
    assert shown == {name: kept[name] for name in shown}
    assert "payload" not in shown


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        ("ValueError: platform.project_scan: no", ("ValueError", "platform.project_scan")),
        ("ValueError: platform.project_scan: a: b.c: d", ("ValueError", "platform.project_scan")),
        ("ValueError: no", ("ValueError", None)),
        ("ValueError: no.handler", ("ValueError", None)),
        ("ValueError: Platform.scan: no", ("ValueError", None)),
        ("ValueError: unscoped: no", ("ValueError", None)),
        ("ValueError: see platform.scan: no", ("ValueError", None)),
        ("no class at all", ("no class at all", None)),
        ("", ("", None)),
        (":", ("", None)),
        ("x" * 4096, ("x" * 120, None)),
        ("E: platform." + "h" * 191 + ": no", ("E", "platform." + "h" * 191)),
        ("E: platform." + "h" * 250 + ": no", ("E", "platform." + "h" * 191)),
        ("Two\nLines: platform.a: no", ("Two\nLines", "platform.a")),
    ],
)
def test_an_error_is_taken_apart_whatever_it_says(
    session: Connection, error: str, parts: tuple[str, str | None]
) -> None:
    assert taken_apart(session, error) == parts


def test_what_workers_write_is_taken_apart(session: Connection) -> None:
    one, other = ValueError("platform.other: x"), OSError("y")
    assert taken_apart(session, describe(one, "platform.project_scan")) == ("ValueError", "platform.project_scan")
    both = describe_many([("platform.project_scan", one), ("platform.count", other)])
    assert taken_apart(session, both) == ("ValueError", "platform.project_scan")
    lost = "WorkerLostError: worker platform.a: b is gone"
    assert taken_apart(session, lost) == ("WorkerLostError", None)


STEP = sql.SQL("""\
with recursive step as (
    (
        select event_type, coalesce(target, '') as context, error_class, coalesce(handler_name, '') as handler
        from core.dead_letters order by 1, 2, 3, 4 limit 1
    )
    union all
    select following.*
    from step
    cross join lateral (
        select event_type, coalesce(target, ''), error_class, coalesce(handler_name, '')
        from core.dead_letters
        where (event_type, coalesce(target, ''), error_class, coalesce(handler_name, ''))
            > (step.event_type, step.context, step.error_class, step.handler)
        order by 1, 2, 3, 4
        limit 1
    ) as following
)
table step""")


def test_stepping_from_group_to_group_misses_none(session: Connection) -> None:
    errors = ["A: platform.a: x", "A: platform.b: x", "A: x", "B: platform.a: x", "", "é: x", "a: x"]
    for number, error in enumerate(errors * 4):
        given = {"target": ("platform", "worlds", None)[number % 3], "event_type": f"worlds.scan.t{number % 2}"}
        outbox_row(session, "failed", last_error=error, **given)
    session.execute("set local enable_seqscan = off")
    session.execute("set local enable_sort = off")
    stepped = session.execute(STEP).fetchall()
    grouped = session.execute(
        "select distinct event_type, coalesce(target, ''), error_class, coalesce(handler_name, '')"
        " from core.dead_letters"
    ).fetchall()
    assert sorted(stepped) == sorted(grouped)
    assert len(stepped) == len(set(stepped)) == len(grouped) > 20


def test_operators_see_all_and_read_only_its_own_workspace(connection: Connection, database: str) -> None:
    workspace = "7f2c1f0e-6f0a-4c0b-9d6e-3f1f6a1b2c3d"
    ours, theirs = outbox_row(connection, "failed", workspace_id=workspace), outbox_row(connection, "failed")
    with logged_in(database, "spectral_operator") as operator:
        assert listed(operator) == {ours, theirs}
    with logged_in(database, "spectral_readonly") as readonly:
        assert listed(readonly) == {theirs}
        readonly.execute("select set_config('spectral.workspace_id', %s, false)", [workspace])
        assert listed(readonly) == {ours}
    with logged_in(database, "spectral_publisher") as publisher, pytest.raises(psycopg.errors.InsufficientPrivilege):
        listed(publisher)


def test_it_is_for_looking_only(session: Connection) -> None:
    outbox_row(session, "failed")
    session.execute("set local role spectral_operator")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("delete from core.dead_letters")


def test_what_was_done_to_an_event_is_found_by_its_id(session: Connection) -> None:
    failed = [fail(session) for _ in range(3)]
    for event_id in failed:
        session.execute("select core.outbox_replay(%s, 1, 'ada')", [event_id])
    publish(session)
    session.execute("set local enable_seqscan = off")
    session.execute("set local role spectral_operator")
    statement = "select action, actor from core.audit where event_ids @> array[%s::uuid]"
    assert session.execute(statement, [failed[1]]).fetchall() == [("replay", "ada")]
    plan = value(session, sql.SQL("explain (format json) " + statement).format(), [failed[1]])
    assert "audit_event_ids_idx" in str(plan)
