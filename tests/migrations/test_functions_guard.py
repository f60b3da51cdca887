"""The guards around a handler's transaction: what it must not do with its connection is refused by the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.migrations.schema import logged_in, value
from tests.migrations.sql import Claim, begin, claim, publish, row, settle

Connection = psycopg.Connection[Any]


@pytest.fixture
def effects(connection: Connection) -> None:
    """A table for handlers to write to, with a constraint that is checked at the commit."""
    connection.execute(
        "create table public.effects (key text constraint effects_key unique deferrable initially deferred)"
    )
    connection.execute("grant insert on public.effects to spectral_worker")


@pytest.fixture
def worker(database: str, effects: None) -> Iterator[Connection]:  # noqa: ARG001  it has to be there
    """A worker's guarded session, which begins a transaction with its next statement; its role may read, too."""
    with logged_in(database, "spectral_worker", "spectral_readonly") as session:
        session.execute("set spectral.guarded = on")
        session.autocommit = False
        yield session
        session.rollback()


def start(connection: Connection, worker: Connection, count: int = 1) -> list[Claim]:
    """Publish and claim events, and begin them as the worker does before it hands its connection to the handler."""
    for _ in range(count):
        publish(connection)
    claims = claim(connection)
    assert begin(worker, claims) == ["run"] * count
    worker.execute("insert into public.effects values ('x')")
    return claims


def left(connection: Connection) -> tuple[int, int]:
    """How many effects and keys there are."""
    return (
        value(connection, "select count(*) from public.effects"),
        value(connection, "select count(*) from core.event_handled"),
    )


# the commit


def test_a_commit_before_the_event_is_settled_fails_and_leaves_neither_effect_nor_key(
    connection: Connection, worker: Connection
) -> None:
    start(connection, worker)
    with pytest.raises(psycopg.errors.InvalidTransactionTermination) as refused:
        worker.commit()
    assert refused.value.sqlstate == "2D000"
    assert left(connection) == (0, 0)


def test_the_refusal_names_handler_and_event_and_says_what_to_do(connection: Connection, worker: Connection) -> None:
    (held,) = start(connection, worker)
    with pytest.raises(psycopg.errors.InvalidTransactionTermination) as refused:
        worker.commit()
    assert refused.value.diag.message_primary == (
        f"the transaction of handler platform.project_scan was committed before event {held.id} was settled"
    )
    assert "remove the commit from the handler" in (refused.value.diag.message_hint or "")


def test_after_a_refused_commit_the_claim_stands_and_the_event_can_be_retried(
    connection: Connection, worker: Connection
) -> None:
    (held,) = start(connection, worker)
    with pytest.raises(psycopg.errors.InvalidTransactionTermination):
        worker.commit()
    assert row(connection, held.id)["claim_token"] == held.token
    assert settle(worker, [held], "retry", "HandlerCommitted: x") == [(held.id, "pending")]
    worker.commit()
    assert row(connection, held.id)["status"] == "pending"


@pytest.mark.parametrize(
    ("outcome", "error", "status"),
    [("delivered", None, "delivered"), ("retry", "OSError: x", "pending"), ("dead_letter", "OSError: x", "failed")],
)
def test_a_commit_after_the_event_was_settled_passes(
    connection: Connection, worker: Connection, outcome: str, error: str | None, status: str
) -> None:
    (held,) = start(connection, worker)
    settle(worker, [held], outcome, error)
    worker.commit()
    assert row(connection, held.id)["status"] == status
    assert left(connection) == (1, 1)


def test_one_event_that_is_not_settled_undoes_the_others_of_its_transaction(
    connection: Connection, worker: Connection
) -> None:
    settled, forgotten = start(connection, worker, count=2)
    settle(worker, [settled], "delivered")
    with pytest.raises(psycopg.errors.InvalidTransactionTermination, match=str(forgotten.id)):
        worker.commit()
    assert row(connection, settled.id)["status"] == "in_flight"
    assert left(connection) == (0, 0)


@pytest.mark.parametrize(
    "setting", ["reset spectral.guarded", "set spectral.guarded = off", "set spectral.guarded = ''"]
)
def test_a_session_that_does_not_ask_for_the_guard_commits_when_it_likes(
    connection: Connection, worker: Connection, setting: str
) -> None:
    worker.execute(setting.encode())
    start(connection, worker)
    worker.commit()
    assert left(connection) == (1, 1)


def test_a_handler_cannot_take_the_guard_back(connection: Connection, worker: Connection) -> None:
    start(connection, worker)
    worker.execute("set spectral.guarded = off")
    with pytest.raises(psycopg.errors.InvalidTransactionTermination):
        worker.commit()


def test_a_handler_that_acts_as_somebody_else_cannot_commit_either(connection: Connection, worker: Connection) -> None:
    start(connection, worker)
    worker.execute("set role spectral_readonly")
    with pytest.raises(psycopg.errors.InvalidTransactionTermination):
        worker.commit()


def test_a_handler_that_failed_in_its_savepoint_is_not_asked_about(connection: Connection, worker: Connection) -> None:
    publish(connection)
    claims = claim(connection)
    worker.execute("savepoint handler")
    assert begin(worker, claims) == ["run"]
    worker.execute("rollback to savepoint handler")
    worker.commit()
    assert left(connection) == (0, 0)


def test_an_event_that_was_handled_before_is_not_asked_about(connection: Connection, worker: Connection) -> None:
    publish(connection)
    claims = claim(connection)
    assert begin(connection, claims) == ["run"]
    assert begin(worker, claims) == ["handled"]
    worker.commit()
    assert row(connection, claims[0].id)["status"] == "in_flight"


def test_checking_every_constraint_early_is_refused_like_a_commit(connection: Connection, worker: Connection) -> None:
    start(connection, worker)
    with pytest.raises(psycopg.errors.InvalidTransactionTermination) as refused:
        worker.execute("set constraints all immediate")
    assert "names them in SET CONSTRAINTS" in (refused.value.diag.message_hint or "")


def test_a_handler_may_have_its_own_constraints_checked_early(connection: Connection, worker: Connection) -> None:
    claims = start(connection, worker)
    worker.execute("set constraints public.effects_key immediate")
    settle(worker, claims, "delivered")
    worker.commit()
    assert left(connection) == (1, 1)


# the role


def require(worker: Connection, role: str | None) -> None:
    worker.execute("select core.require_role(%s)", [role])


def test_a_session_that_still_acts_as_its_role_passes(worker: Connection) -> None:
    require(worker, worker.info.user)


def test_a_role_that_a_session_was_handed_over_with_by_set_role_passes(worker: Connection) -> None:
    worker.execute("set role spectral_worker")
    require(worker, "spectral_worker")


@pytest.mark.parametrize("change", ["set role", "set local role"])
def test_a_session_that_acts_as_another_role_is_refused(worker: Connection, change: str) -> None:
    worker.execute(f"{change} spectral_readonly".encode())
    with pytest.raises(
        psycopg.errors.InvalidRoleSpecification, match=f"spectral_readonly instead of {worker.info.user}"
    ):
        require(worker, worker.info.user)


def test_a_session_whose_role_gives_it_no_way_to_ask_is_refused_too(worker: Connection, connection: Connection) -> None:
    user = sql.Identifier(worker.info.user)
    connection.execute(sql.SQL("grant pg_read_all_settings to {}").format(user))  # any that knows nothing of the schema
    worker.execute("set role pg_read_all_settings")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        require(worker, worker.info.user)


def test_no_role_at_all_is_not_the_sessions(worker: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidRoleSpecification):
        require(worker, None)


def test_a_role_set_inside_a_savepoint_is_undone_with_it(worker: Connection) -> None:
    worker.execute("savepoint handler")
    worker.execute("set role spectral_readonly")
    worker.execute("rollback to savepoint handler")
    require(worker, worker.info.user)


def test_a_role_set_locally_outlives_a_savepoint_that_is_released(worker: Connection) -> None:
    worker.execute("savepoint handler")
    worker.execute("set local role spectral_readonly")
    worker.execute("release savepoint handler")
    with pytest.raises(psycopg.errors.InvalidRoleSpecification) as refused:
        require(worker, worker.info.user)
    assert "SET LOCAL ROLE does not end with a nested transaction" in (refused.value.diag.message_hint or "")


def test_a_refusal_can_be_rolled_back_to_the_savepoint_together_with_the_role(worker: Connection) -> None:
    worker.execute("savepoint handler")
    worker.execute("set role spectral_readonly")
    with pytest.raises(psycopg.errors.InvalidRoleSpecification):
        require(worker, worker.info.user)
    worker.execute("rollback to savepoint handler")
    require(worker, worker.info.user)


# the wait


def test_begin_gives_up_on_a_key_that_another_handler_holds(
    connection: Connection, worker: Connection, database: str
) -> None:
    publish(connection, p_idempotency_key="same")
    publish(connection, p_idempotency_key="same")
    first, second = claim(connection, limit=1), claim(connection, limit=1)
    worker.execute("set lock_timeout = 0")  # the session's own patience, which is endless, does not matter
    with psycopg.connect(database) as handler:
        assert begin(handler, first) == ["run"]
        with pytest.raises(psycopg.errors.LockNotAvailable) as refused:
            begin(worker, second)
    assert refused.value.sqlstate == "55P03"


def test_begin_leaves_the_sessions_own_patience_as_it_was(connection: Connection, worker: Connection) -> None:
    worker.execute("set lock_timeout = '7s'")
    start(connection, worker)
    assert value(worker, "show lock_timeout") == "7s"
