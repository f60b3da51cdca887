"""Deliver rows of one claim alike: fenced, once for each key; what no longer stood is named, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, value
from tests.migrations.sql import held_up, publish, reap, row
from tests.migrations.test_functions_claim_from import HANDLER, claim, due
from tests.migrations.test_functions_deliver import keys

DELIVER_ALIKE: LiteralString = "select core.outbox_deliver_alike(%s::uuid, %s::uuid[], %s::text[])"


def deliver(
    connection: Connection, token: UUID | None, ids: Sequence[UUID], handlers: Sequence[str] = (HANDLER,)
) -> set[UUID]:
    """Answers what was lost."""
    return {lost for (lost,) in connection.execute(DELIVER_ALIKE, [token, list(ids), list(handlers)])}


def claimed(connection: Connection) -> tuple[UUID, list[UUID]]:
    """A claim of all that is due: its token, and the rows."""
    held = claim(connection).held
    (token,) = {each.token for each in held}
    return token, [each.id for each in held]


def test_rows_are_delivered_and_their_keys_written_in_one_step(session: Connection) -> None:
    first, second = publish(session, p_idempotency_key="k1"), publish(session, p_idempotency_key="k2")
    token, ids = claimed(session)
    assert deliver(session, token, ids, [HANDLER, "platform.other"]) == set()
    for event_id in (first, second):
        settled = row(session, event_id)
        assert (settled["status"], settled["claim_token"], settled["claimed_by"]) == ("delivered", None, "worker-1")
        assert settled["delivered_at"] is not None
    assert keys(session) == [
        ("platform.other", "k1", first),
        ("platform.other", "k2", second),
        (HANDLER, "k1", first),
        (HANDLER, "k2", second),
    ]


def test_rows_of_which_no_handler_took_effect_are_delivered_without_a_key(session: Connection) -> None:
    event_id = publish(session)
    assert deliver(session, *claimed(session), []) == set()
    assert (row(session, event_id)["status"], keys(session)) == ("delivered", [])


def test_a_key_has_the_content_class_of_its_row(session: Connection) -> None:
    due(session, 1, content_class="agent_task")
    deliver(session, *claimed(session))
    assert value(session, "select content_class from core.event_handled") == "agent_task"


def test_a_claim_that_is_no_longer_held_is_named_and_changes_nothing(session: Connection) -> None:
    event_id = publish(session)
    old, _ = claimed(session)
    reap(session)
    new, _ = claimed(session)
    assert deliver(session, old, [event_id]) == {event_id}
    assert (row(session, event_id)["status"], keys(session)) == ("in_flight", [])
    assert deliver(session, new, [event_id]) == set()


def test_without_a_token_nothing_is_delivered_not_even_what_has_none(session: Connection) -> None:
    pending = publish(session)
    assert deliver(session, None, [pending]) == {pending}
    assert row(session, pending)["status"] == "pending"


def test_rows_of_another_claim_and_of_nobody_are_named_beside_those_that_stand(session: Connection) -> None:
    mine = publish(session)
    token, _ = claimed(session)
    foreign = publish(session)
    claim(session)
    unknown = uuid4()
    assert deliver(session, token, [foreign, mine, unknown]) == {foreign, unknown}
    assert (row(session, mine)["status"], row(session, foreign)["status"]) == ("delivered", "in_flight")
    assert [event_id for _, _, event_id in keys(session)] == [mine]


def test_a_row_is_delivered_once(session: Connection) -> None:
    publish(session)
    token, ids = claimed(session)
    assert deliver(session, token, ids) == set()
    assert deliver(session, token, ids) == set(ids)
    assert len(keys(session)) == 1


def test_a_row_and_a_handler_given_twice_count_once(session: Connection) -> None:
    publish(session)
    token, ids = claimed(session)
    assert deliver(session, token, ids * 2, [HANDLER, HANDLER]) == set()
    assert len(keys(session)) == 1


def test_a_key_that_is_there_already_is_no_obstacle(session: Connection) -> None:
    publish(session, p_idempotency_key="same")
    publish(session, p_idempotency_key="same")
    assert deliver(session, *claimed(session)) == set()
    publish(session, p_idempotency_key="same")
    assert deliver(session, *claimed(session)) == set()
    assert [(name, key) for name, key, _ in keys(session)] == [(HANDLER, "same")]


def test_nothing_delivers_nothing(session: Connection) -> None:
    assert deliver(session, uuid4(), []) == set()


def test_a_key_that_somebody_holds_for_long_is_not_waited_for_and_nothing_is_half_done(
    connection: Connection, database: str
) -> None:
    first, second = (publish(connection, p_idempotency_key="same") for _ in range(2))
    token, _ = claimed(connection)
    with psycopg.connect(database) as slow:
        assert deliver(slow, token, [first]) == set()  # not committed yet
        with pytest.raises(psycopg.errors.LockNotAvailable):
            deliver(connection, token, [second])
        assert row(connection, second)["status"] == "in_flight"
    assert deliver(connection, token, [second]) == set()


def test_two_that_deliver_rows_of_one_key_both_succeed(connection: Connection, database: str) -> None:
    first, second = (publish(connection, p_idempotency_key="same") for _ in range(2))
    token, _ = claimed(connection)
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        deliver(one, token, [first])
        with held_up(connection, one, two, DELIVER_ALIKE, [token, [second], [HANDLER]]) as answer:
            one.commit()
            assert answer.result() == []
    assert len(keys(connection)) == 1
    assert row(connection, second)["status"] == "delivered"


def test_a_worker_may_and_nobody_else(shared_database: str) -> None:
    with logged_in(shared_database, "spectral_worker") as worker:
        assert deliver(worker, uuid4(), []) == set()
    for group in ("spectral_publisher", "spectral_operator", "spectral_readonly"):
        with logged_in(shared_database, group) as other, pytest.raises(psycopg.errors.InsufficientPrivilege):
            deliver(other, uuid4(), [])


def test_it_is_the_same_whatever_a_session_has_put_before_the_catalog(session: Connection) -> None:
    session.execute("create temporary table outbox (id integer)")
    session.execute(
        "create function pg_temp.clock_timestamp() returns timestamptz language sql as $$ select null::timestamptz $$"
    )
    session.execute("set local search_path = pg_temp, public")
    due(session, 1)
    token, ids = claimed(session)
    assert deliver(session, token, ids) == set()
    assert row(session, ids[0])["delivered_at"] is not None
