"""Rows by workspace and by state: what each group sees and changes of core.outbox, whatever it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.events import DuplicateEventError, EventEnvelope, PublishError
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.infrastructure.postgres import OutboxPublisher
from spectral.core.events.infrastructure.publishers.psycopg_sync import PsycopgSyncOutboxPublisher
from tests.migrations.schema import MINIMAL, Connection, insert, logged_in, outbox_row, role, update, value

# Constants: they are part of the names of tests, which parallel workers must agree on.
MINE = UUID("019a0000-0000-7000-8000-00000000000a")
THEIRS = UUID("019a0000-0000-7000-8000-00000000000b")
PUT_AWAY = "now"  # a tombstone is set now; its age decides when the row goes

SETTING = ("spectral.workspace_id", str(MINE))
CLAIM = ("request.jwt.claims", json.dumps({"sub": "somebody", "role": "authenticated", "workspace_id": str(MINE)}))


@contextmanager
def acting_for(connection: Connection, setting: tuple[str, str] | None) -> Iterator[None]:
    """A transaction in which the session acts for a workspace, the way it is told."""
    with connection.transaction():
        if setting is not None:
            connection.execute("select set_config(%s, %s, true)", setting)
        yield


def seen(connection: Connection) -> set[UUID | None]:
    return {workspace for (workspace,) in connection.execute("select workspace_id from core.outbox")}


@pytest.fixture
def three_rows(connection: Connection) -> None:
    for workspace in (MINE, THEIRS, None):
        outbox_row(connection, workspace_id=workspace)


def test_row_level_security_is_on_and_binds_the_owner_too(connection: Connection) -> None:
    found = connection.execute(
        "select relrowsecurity, relforcerowsecurity from pg_class where oid = 'core.outbox'::regclass"
    ).fetchall()
    assert found == [(True, True)]


def test_the_owner_is_let_in_by_a_policy_and_by_nothing_else(connection: Connection) -> None:
    outbox_row(connection)
    for policies, count in ((True, 1), (False, 0)):
        with connection.transaction(force_rollback=True):
            if not policies:
                connection.execute("drop policy outbox_owner on core.outbox")
            connection.execute("set local role spectral_owner")
            assert value(connection, "select count(*) from core.outbox") == count


# reading


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize("setting", [SETTING, CLAIM], ids=["setting", "token"])
@pytest.mark.parametrize("group", ["spectral_publisher", "spectral_readonly"])
def test_a_session_that_acts_for_a_workspace_sees_its_rows_alone(
    database: str, group: str, setting: tuple[str, str]
) -> None:
    with logged_in(database, group) as session:
        with acting_for(session, setting):
            assert seen(session) == {MINE}
        # After the transaction it acts for nobody again.
        assert seen(session) == {None}


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize("group", ["spectral_publisher", "spectral_readonly"])
def test_a_session_that_acts_for_nobody_sees_what_belongs_to_nobody(database: str, group: str) -> None:
    with logged_in(database, group) as session:
        assert seen(session) == {None}
        with acting_for(session, ("request.jwt.claims", '{"role": "service_role"}')):
            assert seen(session) == {None}
        with acting_for(session, ("spectral.workspace_id", "")):
            assert seen(session) == {None}


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize("group", ["spectral_publisher", "spectral_readonly"])
def test_a_users_token_that_names_no_workspace_sees_nothing(database: str, group: str) -> None:
    token = ("request.jwt.claims", '{"role": "authenticated", "sub": "somebody"}')
    with logged_in(database, group) as session, pytest.raises(psycopg.errors.InsufficientPrivilege, match="token"):  # noqa: SIM117  the error ends the inner block
        with acting_for(session, token):
            seen(session)


def test_a_users_token_that_names_no_workspace_publishes_nothing(database: str, connection: Connection) -> None:
    token = ("request.jwt.claims", '{"role": "authenticated", "sub": "somebody"}')
    with logged_in(database, "spectral_publisher") as session:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), acting_for(session, token):
            insert(session, "outbox", {**MINIMAL, "workspace_id": MINE})
        with pytest.raises(psycopg.errors.InsufficientPrivilege), acting_for(session, token):
            session.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_generation => 1)")
    assert seen(connection) == set()


@pytest.mark.usefixtures("three_rows")
def test_the_setting_goes_before_the_token(database: str) -> None:
    with logged_in(database, "spectral_readonly") as session, acting_for(session, CLAIM):
        session.execute("select set_config('spectral.workspace_id', %s, true)", [str(THEIRS)])
        assert seen(session) == {THEIRS}


@pytest.mark.usefixtures("three_rows")
@pytest.mark.parametrize(
    "setting",
    [
        ("spectral.workspace_id", "not a uuid"),
        ("spectral.workspace_id", "null"),
        ("spectral.workspace_id", str(MINE) + "'"),
        ("request.jwt.claims", '{"workspace_id": "not a uuid"}'),
        ("request.jwt.claims", '{"workspace_id": ""}'),
        ("request.jwt.claims", '{"workspace_id": ["' + str(MINE) + '"]}'),
        ("request.jwt.claims", "{not json"),
    ],
    ids=str,
)
def test_a_workspace_that_cannot_be_read_opens_nothing(database: str, setting: tuple[str, str]) -> None:
    malformed = psycopg.errors.InvalidTextRepresentation
    with logged_in(database, "spectral_publisher", "spectral_readonly") as session:
        with pytest.raises(malformed), acting_for(session, setting):
            seen(session)
        with pytest.raises(malformed), acting_for(session, setting):
            insert(session, "outbox", {**MINIMAL, "workspace_id": MINE})
        with pytest.raises(malformed), acting_for(session, setting):
            session.execute("select core.outbox_publish('worlds.scan.completed', 'worlds')")


@pytest.mark.usefixtures("three_rows")
def test_operators_and_retention_see_every_workspace_and_workers_no_row(database: str) -> None:
    for group in ("spectral_operator", "spectral_retention"):
        with logged_in(database, group) as session:
            assert seen(session) == {MINE, THEIRS, None}
    with logged_in(database, "spectral_worker") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        seen(session)


def test_a_member_of_no_group_sees_nothing(database: str) -> None:
    with logged_in(database) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        seen(session)


# publishing


@pytest.mark.parametrize("setting", [SETTING, CLAIM], ids=["setting", "token"])
def test_a_session_that_acts_for_a_workspace_publishes_for_it_alone(
    database: str, connection: Connection, setting: tuple[str, str]
) -> None:
    with logged_in(database, "spectral_publisher") as publisher:
        with acting_for(publisher, setting):
            insert(publisher, "outbox", {**MINIMAL, "workspace_id": MINE})
        for workspace in (THEIRS, None):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), acting_for(publisher, setting):
                insert(publisher, "outbox", {**MINIMAL, "workspace_id": workspace})
    assert seen(connection) == {MINE}


def test_a_session_that_acts_for_nobody_publishes_for_anybody(database: str, connection: Connection) -> None:
    with logged_in(database, "spectral_publisher") as publisher:
        for workspace in (MINE, THEIRS, None):
            insert(publisher, "outbox", {**MINIMAL, "workspace_id": workspace})
        assert seen(publisher) == {None}
    assert seen(connection) == {MINE, THEIRS, None}


@pytest.mark.parametrize("setting", [SETTING, CLAIM], ids=["setting", "token"])
def test_the_publish_function_fills_in_the_workspace_and_keeps_to_it(
    database: str, connection: Connection, setting: tuple[str, str]
) -> None:
    statement = "select core.outbox_publish('worlds.scan.completed', 'worlds', p_workspace_id => %s)"
    with logged_in(database, "spectral_publisher") as publisher:
        for workspace in (None, MINE):
            with acting_for(publisher, setting):
                publisher.execute(statement, [workspace])
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="own workspace"), acting_for(publisher, setting):
            publisher.execute(statement, [THEIRS])
        mixed = json.dumps([{"event_type": "a.b.c", "source": "a", "workspace_id": str(w)} for w in (MINE, THEIRS)])
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="own workspace"), acting_for(publisher, setting):
            publisher.execute("select core.outbox_publish_many(%s)", [mixed])
    assert connection.execute("select workspace_id from core.outbox").fetchall() == [(MINE,), (MINE,)]


def test_the_publish_function_for_nobody_leaves_the_workspace_as_it_is_given(
    database: str, connection: Connection
) -> None:
    statement = "select core.outbox_publish('worlds.scan.completed', 'worlds', p_workspace_id => %s)"
    with logged_in(database, "spectral_publisher") as publisher:
        for workspace in (None, MINE, THEIRS):
            publisher.execute(statement, [workspace])
    assert seen(connection) == {MINE, THEIRS, None}


def test_only_a_publisher_publishes(database: str) -> None:
    for group in ("spectral_worker", "spectral_operator", "spectral_retention", "spectral_readonly"):
        with logged_in(database, group) as session:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                insert(session, "outbox", MINIMAL)
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute("select core.outbox_publish('worlds.scan.completed', 'worlds')")


# the real publishers, with a publisher's rights and no more


def event(workspace: UUID | None = None) -> EventEnvelope:
    return EventEnvelope(
        event_type="worlds.scan.completed", source="worlds", target="platform", payload={"n": 1}, workspace_id=workspace
    )


@pytest.mark.parametrize("setting", [None, SETTING], ids=["nobody", "workspace"])
def test_the_blocking_publisher_needs_no_more_than_the_publishers_rights(
    database: str, connection: Connection, publishing: Publishing, setting: tuple[str, str] | None
) -> None:
    one, several = event(MINE), [event(MINE), event(MINE), event(MINE)]
    with logged_in(database, "spectral_publisher") as session:
        publisher = PsycopgSyncOutboxPublisher(session, publishing)
        with acting_for(session, setting):
            publisher.publish(one)
            assert publisher.publish_many(several) == 3
            publisher.publish(one, on_conflict="ignore")
            assert publisher.publish_many([*several, event(MINE)], on_conflict="ignore") == 1
        with pytest.raises(DuplicateEventError), acting_for(session, setting):
            publisher.publish(one)
        with pytest.raises(DuplicateEventError), acting_for(session, setting):
            publisher.publish_many([event(MINE), one])
    assert value(connection, "select count(*) from core.outbox") == 5


@pytest.mark.parametrize("setting", [None, SETTING], ids=["nobody", "workspace"])
async def test_the_awaited_publisher_needs_no_more_than_the_publishers_rights(
    database: str, connection: Connection, publishing: Publishing, setting: tuple[str, str] | None
) -> None:
    one, several = event(MINE), [event(MINE), event(MINE), event(MINE)]
    with role(database, groups=("spectral_publisher",)) as own:
        async with await psycopg.AsyncConnection.connect(own) as session:
            publisher = OutboxPublisher(session, publishing)
            if setting is not None:
                await session.execute("select set_config(%s, %s, false)", setting)
                await session.commit()
            async with session.transaction():
                await publisher.publish(one)
                assert await publisher.publish_many(several) == 3
                await publisher.publish(one, on_conflict="ignore")
                assert await publisher.publish_many([*several, event(MINE)], on_conflict="ignore") == 1
            with pytest.raises(DuplicateEventError):
                async with session.transaction():
                    await publisher.publish(one)
            with pytest.raises(DuplicateEventError):
                async with session.transaction():
                    await publisher.publish_many([event(MINE), one])
    assert value(connection, "select count(*) from core.outbox") == 5


def test_the_publisher_names_a_refused_workspace(database: str, connection: Connection, publishing: Publishing) -> None:
    with logged_in(database, "spectral_publisher") as session:
        publisher = PsycopgSyncOutboxPublisher(session, publishing)
        with pytest.raises(PublishError, match="another workspace"), acting_for(session, SETTING):
            publisher.publish(event(THEIRS))
        with pytest.raises(PublishError, match="another workspace"), acting_for(session, SETTING):
            publisher.publish_many([event(MINE), event(THEIRS)])
    assert value(connection, "select count(*) from core.outbox") == 0


def test_a_known_id_of_another_workspace_is_a_duplicate_and_shows_nothing_of_it(
    database: str, connection: Connection, publishing: Publishing
) -> None:
    theirs = outbox_row(connection, workspace_id=THEIRS, payload={"secret": "canary"})
    taken = event(MINE).model_copy(update={"event_id": theirs})
    with logged_in(database, "spectral_publisher") as session:
        publisher = PsycopgSyncOutboxPublisher(session, publishing)
        with pytest.raises(DuplicateEventError) as refused, acting_for(session, SETTING):
            publisher.publish(taken)
        assert "canary" not in str(refused.value)
        with acting_for(session, SETTING):
            publisher.publish(taken, on_conflict="ignore")
    assert value(connection, "select payload from core.outbox") == {"secret": "canary"}


# retention


@pytest.mark.parametrize("status", ["pending", "in_flight", "failed"])
def test_retention_does_not_reach_what_is_not_over(database: str, connection: Connection, status: str) -> None:
    event_id = outbox_row(connection, status)
    with logged_in(database, "spectral_retention") as retention:
        assert update(retention, event_id, deleted_at=PUT_AWAY) == 0
        assert retention.execute("delete from core.outbox").rowcount == 0
    assert value(connection, "select deleted_at from core.outbox") is None


def test_retention_puts_away_what_was_delivered_and_deletes_what_was_put_away(
    database: str, connection: Connection
) -> None:
    delivered, kept = outbox_row(connection, "delivered"), outbox_row(connection, "delivered")
    discarded = outbox_row(connection, "failed", deleted_at=PUT_AWAY)
    with logged_in(database, "spectral_retention") as retention:
        assert update(retention, delivered, deleted_at=PUT_AWAY) == 1
        gone = retention.execute("delete from core.outbox returning id").fetchall()
    assert {event_id for (event_id,) in gone} == {delivered, discarded}
    assert value(connection, "select id from core.outbox") == kept


def test_retention_neither_takes_back_a_discard_nor_a_tombstone(database: str, connection: Connection) -> None:
    discarded = outbox_row(connection, "failed", deleted_at=PUT_AWAY)
    tombstoned = outbox_row(connection, "delivered", deleted_at=PUT_AWAY)
    with logged_in(database, "spectral_retention") as retention:
        assert update(retention, discarded, deleted_at=None) == 0
        with pytest.raises(psycopg.errors.CheckViolation):
            update(retention, tombstoned, deleted_at=None)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            update(retention, tombstoned, status="pending")


def test_retention_locks_what_it_is_about_to_put_away(database: str, connection: Connection) -> None:
    delivered = outbox_row(connection, "delivered")
    outbox_row(connection, "pending")
    with logged_in(database, "spectral_retention") as retention:
        locked = retention.execute("select id from core.outbox order by id limit 10 for update skip locked").fetchall()
    assert locked == [(delivered,)]


def test_retention_sweeps_the_dedup_log(database: str, connection: Connection) -> None:
    insert(connection, "event_handled", {"handler_name": "a.b", "idempotency_key": "k", "event_id": uuid4()})
    with logged_in(database, "spectral_retention") as retention:
        assert retention.execute("update core.event_handled set deleted_at = now()").rowcount == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            retention.execute("update core.event_handled set idempotency_key = 'x'")
        assert retention.execute("delete from core.event_handled where deleted_at is not null").rowcount == 1


# operator


def test_an_operator_discards_by_a_plain_update_and_takes_it_back(database: str, connection: Connection) -> None:
    failed = outbox_row(connection, "failed", workspace_id=THEIRS)
    with logged_in(database, "spectral_operator") as operator:
        discard = "update core.outbox set deleted_at = now() where id = %s and status = 'failed'"
        assert operator.execute(discard, [failed]).rowcount == 1
        assert update(operator, failed, deleted_at=None) == 1
        name = operator.info.user
    audit = connection.execute("select action, actor, session_role, event_ids from core.audit order by id").fetchall()
    assert audit == [("discard", name, name, [failed]), ("undo_discard", name, name, [failed])]


@pytest.mark.parametrize("status", ["pending", "in_flight", "delivered"])
def test_an_operators_discard_reaches_failed_rows_alone(database: str, connection: Connection, status: str) -> None:
    event_id = outbox_row(connection, status)
    with logged_in(database, "spectral_operator") as operator:
        assert update(operator, event_id, deleted_at=PUT_AWAY) == 0
    assert value(connection, "select deleted_at from core.outbox") is None


def test_an_operator_changes_nothing_else(database: str, connection: Connection) -> None:
    failed = outbox_row(connection, "failed")
    columns = connection.execute(
        "select attname from pg_attribute where attrelid = 'core.outbox'::regclass and attnum > 0"
        " and attname <> 'deleted_at'"
    ).fetchall()
    with logged_in(database, "spectral_operator") as operator:
        for (column,) in columns:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                update(operator, failed, **{column: None})
        for change in (
            "delete from core.outbox",
            "truncate core.outbox",
            "update core.event_handled set deleted_at = now()",
            "delete from core.event_handled",
            "insert into core.audit (action, actor, affected) values ('replay', 'ada', 1)",
            "update core.deployments set status = 'live'",
            "delete from core.subscriptions",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute(change.encode())
