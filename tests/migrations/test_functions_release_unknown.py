"""A claim whose answer was lost on the way: its worker gives back what it does not know of."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg

from tests.migrations.sql import claim, publish, row

Connection = psycopg.Connection[Any]


def release_unknown(
    connection: Connection, known: list[UUID], *, worker: str = "worker-1", age: str = "0 s"
) -> set[UUID]:
    rows = connection.execute(
        "select * from core.outbox_release_unknown(%s, %s::uuid[], %s)", [worker, known, age]
    ).fetchall()
    return {event_id for (event_id,) in rows}


def test_what_the_worker_does_not_know_is_pending_again_without_a_charge(connection: Connection) -> None:
    event_id = publish(connection)
    claim(connection)
    assert release_unknown(connection, []) == {event_id}
    assert (row(connection, event_id)["status"], row(connection, event_id)["attempts"]) == ("pending", 0)


def test_what_it_knows_stays_claimed(connection: Connection) -> None:
    event_id = publish(connection)
    (held,) = claim(connection)
    assert release_unknown(connection, [held.token]) == set()
    assert row(connection, event_id)["status"] == "in_flight"


def test_a_claim_that_may_still_be_on_its_way_is_left_alone(connection: Connection) -> None:
    publish(connection)
    claim(connection)
    assert release_unknown(connection, [], age="1 minute") == set()


def test_other_workers_claims_are_none_of_its_business(connection: Connection) -> None:
    publish(connection)
    claim(connection, worker="worker-2")
    assert release_unknown(connection, []) == set()


def test_a_row_whose_handler_runs_is_not_waited_for(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    claim(connection)
    with psycopg.connect(database) as handler:
        handler.execute("select from core.outbox where id = %s for update", [event_id])
        assert release_unknown(connection, []) == set()
    assert release_unknown(connection, []) == {event_id}


def test_whoever_may_take_it_is_woken(connection: Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as ear:
        event_id = publish(connection)
        claim(connection)
        ear.execute("listen outbox_gen_1")
        release_unknown(connection, [])
        assert [notify.payload for notify in ear.notifies(timeout=5, stop_after=1)] == [str(event_id)]
