"""Claim and begin: who gets a row, and who may run its handler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import psycopg.types.json
import pytest

from tests.migrations.sql import (
    CHANNELS,
    EVENT_TYPE,
    Claim,
    begin,
    claim,
    lose,
    publish,
    reap,
    row,
    settle,
    subscribe,
    waits_for,
)

Connection = psycopg.Connection[Any]


def test_claim_hands_out_due_rows_oldest_first_and_charges_an_attempt(connection: Connection) -> None:
    first, second = publish(connection), publish(connection)
    claims = claim(connection)
    assert [held.id for held in claims] == [first, second]
    assert {held.attempts for held in claims} == {1}
    claimed = row(connection, first)
    assert (claimed["status"], claimed["claimed_by"], claimed["claim_token"]) == (
        "in_flight",
        "worker-1",
        claims[0].token,
    )
    assert claimed["claimed_at"] is not None


def test_claim_leaves_rows_alone_that_are_not_this_workers(connection: Connection) -> None:
    publish(connection, target="worlds")
    publish(connection, p_generation=2)
    publish(connection, p_class="cold")
    publish(connection, p_event_type="worlds.scan.started")
    publish(connection, p_delay=timedelta(hours=1))
    publish(connection, target=None)
    assert claim(connection) == []


def test_claim_takes_rows_of_every_generation_and_channel_it_is_given_in_order_of_age(connection: Connection) -> None:
    connection.execute(
        "insert into core.outbox (event_type, source, target, generation) values (%s, 'worlds', 'platform', 2)",
        [EVENT_TYPE],
    )
    second = publish(connection, p_generation=1)
    third = publish(connection, p_generation=2)
    rows = connection.execute(
        "select id, channel from core.outbox_claim('w', 'platform', '{1,2}',"
        " '{outbox_gen_1,outbox_gen_2,outbox_default}', %s)",
        [[EVENT_TYPE]],
    ).fetchall()
    assert [channel for _, channel in rows] == ["outbox_default", "outbox_gen_1", "outbox_gen_2"]
    assert [event_id for event_id, _ in rows][1:] == [second, third]


def test_claim_is_bounded_by_its_limit(connection: Connection) -> None:
    for _ in range(5):
        publish(connection)
    assert len(claim(connection, limit=3)) == 3
    assert len(claim(connection, limit=3)) == 2


def test_claim_skips_rows_that_another_worker_is_looking_at(connection: Connection, database: str) -> None:
    publish(connection)
    second = publish(connection)
    with psycopg.connect(database) as other:
        assert len(claim(other, limit=1)) == 1  # not committed yet
        assert [held.id for held in claim(connection)] == [second]


def test_a_row_whose_worker_was_lost_is_claimed_alone(connection: Connection) -> None:
    suspect = publish(connection)
    lose(connection, suspect)
    fresh = [publish(connection), publish(connection)]
    assert [held.id for held in claim(connection)] == [suspect]
    assert [held.id for held in claim(connection)] == fresh


def test_neighbours_of_a_lost_worker_are_tried_again_one_by_one(connection: Connection) -> None:
    lost = [publish(connection) for _ in range(3)]
    lose(connection, lost[0])
    assert sorted(held.id for _ in lost for held in claim(connection)) == sorted(lost)
    assert claim(connection) == []


def test_a_suspect_that_is_not_first_waits_for_its_turn(connection: Connection) -> None:
    suspect = publish(connection)
    lose(connection, suspect)
    fresh = publish(connection)
    connection.execute("update core.outbox set next_attempt_at = now() - interval '1 h' where id = %s", [fresh])
    assert [held.id for held in claim(connection)] == [fresh]
    assert [held.id for held in claim(connection)] == [suspect]


def test_rows_whose_handler_failed_in_an_orderly_way_are_claimed_together(connection: Connection) -> None:
    tried = [publish(connection) for _ in range(3)]
    settle(connection, claim(connection), "retry", "OSError: x")
    assert sorted(held.id for held in claim(connection)) == sorted(tried)


def test_a_claim_leaves_what_it_does_not_take_to_others(connection: Connection, database: str) -> None:
    suspect = publish(connection)
    lose(connection, suspect)
    fresh = [publish(connection) for _ in range(3)]
    with psycopg.connect(database) as other:
        assert [held.id for held in claim(other)] == [suspect]  # not committed yet
        assert [held.id for held in claim(connection)] == fresh


def test_a_generation_or_channel_named_twice_counts_once(connection: Connection) -> None:
    for _ in range(5):
        publish(connection)
    rows = connection.execute(
        "select id from core.outbox_claim('w', 'platform', '{1,1}', '{outbox_gen_1,outbox_gen_1}', %s)", [[EVENT_TYPE]]
    ).fetchall()
    assert len(set(rows)) == len(rows) == 5


def test_the_line_that_has_waited_longest_is_served_first(connection: Connection) -> None:
    younger = publish(connection, p_class="hot")
    older = publish(connection)
    connection.execute("update core.outbox set next_attempt_at = now() - interval '1 h' where id = %s", [older])
    statement = "select id from core.outbox_claim('w', 'platform', '{1}', '{outbox_gen_1_hot,outbox_gen_1}', %s, 1)"
    assert connection.execute(statement, [[EVENT_TYPE]]).fetchall() == [(older,)]
    assert connection.execute(statement, [[EVENT_TYPE]]).fetchall() == [(younger,)]


def test_claim_from_a_position_sees_only_what_is_due_after_it(connection: Connection) -> None:
    publish(connection)
    position = connection.execute("select clock_timestamp()").fetchone()
    later = publish(connection)
    rows = connection.execute(
        "select id from core.outbox_claim('w', 'platform', '{1}', %s, %s, 10, %s)",
        [CHANNELS, [EVENT_TYPE], position and position[0]],
    ).fetchall()
    assert rows == [(later,)]


def test_claim_shows_a_childs_envelope_with_the_parents_event_id(connection: Connection) -> None:
    subscribe(connection, "platform")
    parent = publish(connection, target=None)
    connection.execute("select core.outbox_fan_out('{1}', %s)", [CHANNELS])
    found = connection.execute(
        "select id, event_id, target, payload from core.outbox_claim('w', 'platform', '{1}', %s, %s)",
        [CHANNELS, [EVENT_TYPE]],
    ).fetchall()
    assert [(event_id, target, payload) for _, event_id, target, payload in found] == [(parent, "platform", "{}")]
    assert found[0][0] != parent


@pytest.mark.parametrize(("worker", "limit"), [("", 10), ("w", 0)])
def test_claim_refuses_a_nameless_worker_and_a_senseless_limit(connection: Connection, worker: str, limit: int) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        claim(connection, worker=worker, limit=limit)


def test_begin_opens_the_gate_once_for_each_handler_and_key(connection: Connection) -> None:
    publish(connection, p_idempotency_key="same")
    publish(connection, p_idempotency_key="same")
    claims = claim(connection)
    assert sorted(begin(connection, claims)) == ["handled", "run"]
    assert begin(connection, claims) == ["handled", "handled"]
    assert sorted(begin(connection, claims, "platform.other")) == ["handled", "run"]


def test_begin_fences_a_claim_that_is_no_longer_held(connection: Connection) -> None:
    publish(connection)
    (held,) = claim(connection)
    assert begin(connection, [Claim(held.id, uuid4(), 1), Claim(uuid4(), held.token, 1)]) == ["fenced", "fenced"]
    handled = connection.execute("select count(*) from core.event_handled").fetchone()
    assert handled == (0,)


def test_one_row_given_twice_is_a_callers_mistake(connection: Connection) -> None:
    """An old token beside the new one must not pass the fence on the new one's ticket."""
    event_id = publish(connection)
    (old,) = claim(connection)
    reap(connection)
    (new,) = claim(connection)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="twice"):
        begin(connection, [old, new])
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="twice"):
        settle(connection, [old, new], "delivered")
    assert begin(connection, [old]) == ["fenced"]
    assert settle(connection, [old], "dead_letter", "x: y") == []
    assert row(connection, event_id)["status"] == "in_flight"


def test_begin_undone_by_a_rollback_leaves_the_gate_open(connection: Connection) -> None:
    publish(connection)
    claims = claim(connection)
    with connection.transaction(force_rollback=True):
        assert begin(connection, claims) == ["run"]
    assert begin(connection, claims) == ["run"]


def test_two_workers_with_one_key_run_once_whatever_the_order_of_their_commits(
    connection: Connection, database: str
) -> None:
    publish(connection, p_idempotency_key="same")
    publish(connection, p_idempotency_key="same")
    first, second = claim(connection, limit=1), claim(connection, limit=1, worker="worker-2")
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(database, autocommit=True) as two,
        psycopg.connect(database) as one,
    ):
        assert begin(one, first) == ["run"]
        # The second waits for the first to decide; it must neither run nor fail.
        waiting = pool.submit(begin, two, second)
        waits_for(connection, two, one)
        one.commit()
        assert waiting.result() == ["handled"]


def test_a_row_that_was_tried_and_carries_no_error_is_still_claimed(connection: psycopg.Connection[Any]) -> None:
    event_id = publish(connection)
    connection.execute("update core.outbox set attempts = 1 where id = %s", [event_id])
    assert [(held.id, held.attempts) for held in claim(connection)] == [(event_id, 2)]
