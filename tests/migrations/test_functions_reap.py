"""Reap and fan out: what is nobody's is taken back, what is everybody's is split."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import psycopg.types.json
import pytest

from tests.migrations.sql import (
    CHANNELS,
    begin,
    claim,
    lose,
    publish,
    reap,
    row,
    settle,
    subscribe,
)

Connection = psycopg.Connection[Any]


def test_reap_takes_back_the_claims_of_a_worker_that_shows_no_life(connection: Connection) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    connection.execute("listen outbox_gen_1")
    assert reap(connection) == [(event_id, "pending", "orphaned", 1)]
    assert [woken.payload for woken in connection.notifies(timeout=10, stop_after=1)] == [str(event_id)]
    assert row(connection, event_id)["last_error"].startswith("WorkerLostError: worker worker-1")
    assert settle(connection, claims, "delivered") == []


def test_reap_spares_the_living_until_their_lease_runs_out(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    claim(connection)
    with psycopg.connect(database, autocommit=True) as ear:
        ear.execute("select pg_advisory_lock(core.worker_lock_key('worker-1'))")
        assert reap(connection) == []
        assert reap(connection, ttl="0 s") == [(event_id, "pending", "expired", 1)]


def test_reap_leaves_a_grace_before_it_calls_a_worker_dead(connection: Connection) -> None:
    publish(connection)
    claim(connection)
    assert reap(connection, grace="1 hour") == []


def test_reap_never_takes_a_row_whose_handler_is_in_its_transaction(connection: Connection, database: str) -> None:
    publish(connection)
    claims = claim(connection)
    with psycopg.connect(database) as handler:
        begin(handler, claims)
        assert reap(connection, ttl="0 s") == []


def test_reap_sends_a_row_out_of_attempts_to_the_dlq(connection: Connection) -> None:
    event_id = publish(connection)
    claim(connection)
    assert reap(connection, attempts=2) == [(event_id, "pending", "orphaned", 1)]
    claim(connection)
    assert reap(connection, attempts=2) == [(event_id, "failed", "orphaned", 2)]
    assert row(connection, event_id)["last_error"].startswith("WorkerLostError:")


def test_the_first_loss_never_leads_to_the_dlq_because_a_neighbour_may_be_to_blame(connection: Connection) -> None:
    subscribe(connection, "platform", max_attempts=1)
    for _ in range(3):
        publish(connection)
    claim(connection)
    assert {status for _, status, *_ in reap(connection)} == {"pending"}


@pytest.mark.parametrize(("allowed", "status"), [(2, "failed"), (3, "pending")])
def test_reap_goes_by_the_attempts_the_subscription_allows(connection: Connection, allowed: int, status: str) -> None:
    subscribe(connection, "platform", max_attempts=allowed)
    event_id = publish(connection)
    lose(connection, event_id)
    claim(connection)
    assert [found for _, found, *_ in reap(connection, attempts=6)] == [status]


def test_a_second_reaper_takes_what_the_first_does_not(connection: Connection, database: str) -> None:
    first = publish(connection)
    claim(connection)
    with psycopg.connect(database) as other:
        assert [found for found, *_ in reap(other)] == [first]  # not committed yet
        second = publish(connection)
        claim(connection)
        assert [found for found, *_ in reap(connection)] == [second]


@pytest.mark.parametrize("wrong", ["'-1 s', '0', 1, 1", "'0', '-1 s', 1, 1", "'0', '0', 0, 1", "'0', '0', 1, 0"])
def test_reap_refuses_senseless_limits(connection: Connection, wrong: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute(f"select core.outbox_reap({wrong})".encode())


def test_rows_nobody_subscribes_to_fail_after_the_grace(connection: Connection) -> None:
    subscribe(connection, "platform")
    handled = publish(connection)
    unhandled = publish(connection, p_event_type="worlds.scan.started")
    statement = "select id from core.outbox_fail_unhandled('platform', '{1}', %s, %s)"
    assert connection.execute(statement, [CHANNELS, "1 hour"]).fetchall() == []
    assert connection.execute(statement, [CHANNELS, "0 s"]).fetchall() == [(unhandled,)]
    assert row(connection, unhandled)["last_error"].startswith("NoHandlerError: ")
    assert row(connection, handled)["status"] == "pending"


def test_fan_out_gives_each_subscribed_context_a_row_of_its_own(connection: Connection) -> None:
    subscribe(connection, "platform")
    subscribe(connection, "worlds")
    subscribe(connection, "core", "worlds.scan.started")
    parent = publish(connection, target=None, p_payload='{"n": 1}', p_class="cold", p_idempotency_key="k")
    connection.execute("listen outbox_gen_1_cold")
    rows = connection.execute(
        "select parent_id, child_id, context from core.outbox_fan_out('{1}', '{outbox_gen_1_cold}')"
    ).fetchall()
    assert [(found, context) for found, _, context in rows] == [(parent, "platform"), (parent, "worlds")]
    assert row(connection, parent)["status"] == "delivered"
    for _, child_id, context in rows:
        child = row(connection, child_id)
        assert (child["target"], child["parent_id"], child["idempotency_key"]) == (context, parent, "k")
        assert (child["payload"], child["channel"], child["generation"]) == ({"n": 1}, "outbox_gen_1_cold", 1)
        assert (child["status"], child["attempts"]) == ("pending", 0)
    woken = {notify.payload for notify in connection.notifies(timeout=10, stop_after=2)}
    assert woken == {str(child_id) for _, child_id, _ in rows}


def test_fan_out_of_a_broadcast_nobody_wants_delivers_it(connection: Connection) -> None:
    parent = publish(connection, target=None)
    rows = connection.execute("select * from core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall()
    assert rows == [(parent, None, None)]
    assert row(connection, parent)["status"] == "delivered"


def test_fan_out_twice_or_at_once_makes_each_child_once(connection: Connection, database: str) -> None:
    subscribe(connection, "platform")
    publish(connection, target=None)
    with psycopg.connect(database) as other:
        assert len(other.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall()) == 1
        assert connection.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall() == []
        other.commit()
    assert connection.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall() == []
    children = connection.execute("select count(*) from core.outbox where parent_id is not null").fetchone()
    assert children == (1,)


def test_fan_out_waits_until_the_broadcast_is_due(connection: Connection) -> None:
    publish(connection, target=None, p_delay=timedelta(hours=1))
    assert connection.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall() == []


def test_an_id_that_somebody_took_does_not_hold_up_other_broadcasts(connection: Connection) -> None:
    subscribe(connection, "platform")
    squatted, innocent = publish(connection, target=None), publish(connection, target=None)
    taken = connection.execute("select core.outbox_child_id(%s, 'platform')", [squatted]).fetchone()
    assert taken is not None
    publish(connection, p_event_id=taken[0], target="worlds")
    rows = connection.execute("select parent_id, child_id from core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall()
    assert {parent for parent, _ in rows} == {squatted, innocent}
    assert taken[0] not in {child for _, child in rows}
