"""Publish by SQL, replay and discard: the functions for people and other programs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import psycopg.types.json
import pytest

from tests.migrations.sql import (
    EVENT_TYPE,
    Claim,
    begin,
    claim,
    fail,
    held_up,
    publish,
    row,
    settle,
)

Connection = psycopg.Connection[Any]


@pytest.mark.parametrize("events", [None, "{}", "[1]", '[{"event_type": "a.b.c", "source": "x", "id": "?"}]'], ids=str)
def test_publish_many_refuses_what_is_no_list_of_envelopes(connection: Connection, events: str | None) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute("select core.outbox_publish_many(%s::jsonb, 1)", [events])


def test_publish_many_answers_the_ids_in_the_order_given(connection: Connection) -> None:
    ids = [uuid4() for _ in range(50)]
    events = [{"event_id": str(each), "event_type": EVENT_TYPE, "source": "worlds"} for each in ids]
    rows = connection.execute("select core.outbox_publish_many(%s, 1)", [psycopg.types.json.Jsonb(events)]).fetchall()
    assert [event_id for (event_id,) in rows] == ids


def test_publish_takes_the_live_generation_unless_told(connection: Connection) -> None:
    event_id = publish(connection, p_generation=None)
    assert (row(connection, event_id)["generation"], row(connection, event_id)["channel"]) == (1, "outbox_gen_1")
    connection.execute("update core.deployments set status = 'draining' where generation = 1")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="none is live"):
        publish(connection, p_generation=None)


def test_nobody_jumps_the_queue_by_being_due_before_being_written(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="negative"):
        publish(connection, p_delay=timedelta(days=-1))
    first = publish(connection)
    connection.execute(
        "insert into core.outbox (event_type, source, target, generation, channel, next_attempt_at)"
        " values (%s, 'worlds', 'platform', 1, 'outbox_gen_1', '1999-01-01')",
        [EVENT_TYPE],
    )
    assert claim(connection)[0].id == first


def test_replay_starts_the_row_anew_and_files_the_cycle(connection: Connection) -> None:
    event_id = fail(connection)
    failed = row(connection, event_id)
    connection.execute("listen outbox_gen_2")
    assert connection.execute("select core.outbox_replay(%s, 2, 'ada')", [event_id]).fetchone() == (1,)
    assert [woken.payload for woken in connection.notifies(timeout=10, stop_after=1)] == [str(event_id)]
    replayed = row(connection, event_id)
    assert (replayed["status"], replayed["generation"], replayed["channel"]) == ("pending", 2, "outbox_gen_2")
    assert (replayed["attempts"], replayed["last_error"], replayed["first_failed_at"]) == (0, None, None)
    assert (replayed["claimed_at"], replayed["idempotency_key"]) == (None, failed["idempotency_key"])
    (cycle,) = replayed["failure_history"]
    assert (cycle["cycle"], cycle["attempts"], cycle["replayed_by"]) == (1, 1, "ada")
    assert cycle["last_error"] == failed["last_error"]
    assert cycle["first_failed_at"] <= cycle["failed_at"] <= cycle["replayed_at"]


def test_replay_keeps_the_class_of_the_channel(connection: Connection) -> None:
    event_id = publish(connection, p_class="cold")
    rows = connection.execute(
        "select id, claim_token, attempts from core.outbox_claim('w', 'platform', '{1}', '{outbox_gen_1_cold}', %s)",
        [[EVENT_TYPE]],
    )
    settle(connection, [Claim(*found) for found in rows], "dead_letter", "x: y")
    connection.execute("select core.outbox_replay(%s, 2, null)", [event_id])
    assert row(connection, event_id)["channel"] == "outbox_gen_2_cold"


def test_replay_refuses_rows_that_are_not_in_the_dlq(connection: Connection) -> None:
    pending = publish(connection)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="pending"):
        connection.execute("select core.outbox_replay(%s, 1, null)", [pending])
    settle(connection, claim(connection), "delivered")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="delivered"):
        connection.execute("select core.outbox_replay(%s, 1, null)", [pending])
    discarded = fail(connection)
    connection.execute("select core.outbox_discard(%s)", [[discarded]])
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="discarded"):
        connection.execute("select core.outbox_replay(%s, 1, null)", [discarded])
    for nothing in (uuid4(), None):
        with pytest.raises(psycopg.errors.NoDataFound):
            connection.execute("select core.outbox_replay(%s, 1, null)", [nothing])


@pytest.mark.parametrize("generation", [0, 99, None])
def test_replay_refuses_generations_that_are_retired_or_unknown(connection: Connection, generation: int | None) -> None:
    event_id = fail(connection)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="generation"):
        connection.execute("select core.outbox_replay(%s, %s, null)", [event_id, generation])
    assert row(connection, event_id)["status"] == "failed"


def test_replay_and_discard_do_not_wait_for_a_handler_at_work(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    with psycopg.connect(database) as handler:
        begin(handler, claims)
        connection.execute("set lock_timeout = '1ms'")
        replayed = connection.execute("select refusal from core.outbox_replay_many(%s, 1)", [[event_id]]).fetchall()
        discarded = connection.execute("select refusal from core.outbox_discard(%s)", [[event_id]]).fetchall()
    assert (replayed, discarded) == ([("in_flight",)], [("in_flight",)])


def test_two_operators_replaying_one_row_leave_one_entry(connection: Connection, database: str) -> None:
    event_id = fail(connection)
    with psycopg.connect(database) as ada, psycopg.connect(database) as bob:
        ada.execute("select core.outbox_replay(%s, 1, 'ada')", [event_id])
        bob.execute("set lock_timeout = '200ms'")
        bob.commit()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            bob.execute("select core.outbox_replay(%s, 1, 'bob')", [event_id])
        bob.rollback()
        ada.commit()
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            bob.execute("select core.outbox_replay(%s, 1, 'bob')", [event_id])
    assert [cycle["replayed_by"] for cycle in row(connection, event_id)["failure_history"]] == ["ada"]


LOSERS: list[LiteralString] = [
    "select refusal from core.outbox_replay_many(%s, 1)",
    "select refusal from core.outbox_discard(%s)",
]


@pytest.mark.parametrize("statement", LOSERS)
def test_whoever_was_too_late_wakes_the_channel_again(
    connection: Connection, database: str, statement: LiteralString
) -> None:
    # While it holds the row, claims pass it by; and the first one has knocked already.
    event_id = fail(connection)
    with psycopg.connect(database) as ada, psycopg.connect(database) as bob:
        ada.execute("select core.outbox_replay(%s, 1, 'ada')", [event_id])
        with held_up(connection, ada, bob, statement, [[event_id]]) as answer:
            connection.execute("listen outbox_gen_1")
            ada.commit()
            assert answer.result() == [("pending",)]
        assert [woken.payload for woken in connection.notifies(timeout=10, stop_after=1)] == [str(event_id)]
        assert claim(connection) == []
        bob.commit()
        assert [woken.payload for woken in connection.notifies(timeout=10, stop_after=1)] == [""]
        assert [held.id for held in claim(connection)] == [event_id]


def test_replay_many_answers_for_every_row_and_leaves_one_audit_entry(connection: Connection) -> None:
    failed, pending, unknown = fail(connection), publish(connection), uuid4()
    rows = connection.execute(
        "select id, cycle, refusal from core.outbox_replay_many(%s, 1, 'ada', 'fixed upstream')",
        [[failed, pending, unknown, failed]],
    ).fetchall()
    assert {found: (cycle, refusal) for found, cycle, refusal in rows} == {
        failed: (1, None),
        pending: (None, "pending"),
        unknown: (None, "unknown"),
    }
    audit = connection.execute("select action, actor, reason, affected, event_ids from core.audit").fetchall()
    assert audit == [("replay", "ada", "fixed upstream", 1, [failed])]


def test_discard_takes_the_row_out_of_the_dlq_and_says_who_and_why(connection: Connection) -> None:
    failed, pending = fail(connection), publish(connection)
    rows = connection.execute("select id, refusal from core.outbox_discard(%s, 'ada', 'stale')", [[failed, pending]])
    assert dict(rows.fetchall()) == {failed: None, pending: "pending"}
    assert row(connection, failed)["deleted_at"] is not None
    audit = connection.execute("select action, actor, reason, affected, event_ids from core.audit").fetchall()
    assert audit == [("discard", "ada", "stale", 1, [failed])]


def test_a_plain_update_that_discards_is_audited_and_can_be_undone(connection: Connection) -> None:
    event_id = fail(connection)
    connection.execute("update core.outbox set deleted_at = now() where id = %s and status = 'failed'", [event_id])
    connection.execute("update core.outbox set deleted_at = null where id = %s", [event_id])
    audit = connection.execute("select action, actor, affected, event_ids from core.audit order by id").fetchall()
    assert audit == [("discard", "postgres", 1, [event_id]), ("undo_discard", "postgres", 1, [event_id])]
