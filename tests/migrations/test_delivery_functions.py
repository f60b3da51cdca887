"""Each verb of delivery as the database does it: claim, begin, settle, release, renew, reap, fan out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import psycopg.types.json
import pytest

from tests.migrations.sql import CHANNELS, EVENT_TYPE, Claim, claim, fail, publish, row, settle

Connection = psycopg.Connection[Any]


def begin(connection: Connection, claims: list[Claim], handler: str = "platform.project_scan") -> list[str]:
    rows = connection.execute(
        "select verdict from core.outbox_begin(%s, %s, %s)",
        [[held.id for held in claims], [held.token for held in claims], [handler] * len(claims)],
    )
    return [verdict for (verdict,) in rows]


def held_by(connection: Connection, function: str, claims: list[Claim]) -> list[UUID]:
    statement = psycopg.sql.SQL("select * from core.{}(%s, %s)").format(psycopg.sql.Identifier(function))
    rows = connection.execute(statement, [[held.id for held in claims], [held.token for held in claims]])
    return [event_id for (event_id,) in rows]


def reap(connection: Connection, *, ttl: str = "300 s", grace: str = "0 s", attempts: int = 6) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select id, status, reason, attempts from core.outbox_reap(%s, %s, 100, %s)", [ttl, grace, attempts]
    ).fetchall()


def subscribe(connection: Connection, context: str, event_type: str = EVENT_TYPE, max_attempts: int = 6) -> None:
    connection.execute(
        "insert into core.subscriptions (generation, context, event_type, handler_name, max_attempts)"
        " values (1, %s, %s, %s, %s)",
        [context, event_type, f"{context}.handler", max_attempts],
    )


# claim


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


def lose(connection: Connection, event_id: UUID) -> None:
    """Have a worker claim the row and die."""
    assert event_id in [held.id for held in claim(connection, worker="doomed")]
    assert event_id in [found for found, *_ in reap(connection)]


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
    assert sorted(held.id for held in claim(connection)) == tried


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


# begin


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
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        assert begin(one, first) == ["run"]
        # The second waits for the first to decide; it must neither run nor fail.
        two.execute("set lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            begin(two, second)
        one.commit()
        assert begin(two, second) == ["handled"]


# settle


def test_settle_delivered_ends_the_claim(connection: Connection) -> None:
    event_id = publish(connection)
    assert settle(connection, claim(connection), "delivered") == [(event_id, "delivered")]
    settled = row(connection, event_id)
    assert settled["claim_token"] is None
    assert settled["delivered_at"] is not None


def test_settle_retry_comes_back_after_its_delay_with_its_error(connection: Connection) -> None:
    event_id = publish(connection)
    assert settle(connection, claim(connection), "retry", "OSError: later", delay="1 hour") == [(event_id, "pending")]
    waiting = row(connection, event_id)
    assert waiting["last_error"] == "OSError: later"
    assert waiting["attempts"] == 1
    assert waiting["first_failed_at"] is not None
    assert waiting["next_attempt_at"] - waiting["first_failed_at"] == timedelta(hours=1)
    assert claim(connection) == []


def test_settle_dead_letter_keeps_claimed_at_and_the_first_failure(connection: Connection) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection), "retry", "OSError: one")
    first = row(connection, event_id)["first_failed_at"]
    settle(connection, claim(connection), "dead_letter", "OSError: two")
    dead = row(connection, event_id)
    assert (dead["status"], dead["last_error"], dead["attempts"]) == ("failed", "OSError: two", 2)
    assert dead["first_failed_at"] == first
    assert dead["claimed_at"] is not None


@pytest.mark.parametrize(("asked", "given"), [("-1 day", timedelta(0)), ("5 years", timedelta(days=365))])
def test_a_delay_is_kept_within_reason(connection: Connection, asked: str, given: timedelta) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection), "retry", "OSError: x", delay=asked)
    waiting = row(connection, event_id)
    assert waiting["next_attempt_at"] - waiting["first_failed_at"] <= given + timedelta(days=1)
    assert waiting["next_attempt_at"] >= waiting["first_failed_at"] + given - timedelta(days=1)


def test_settle_answers_only_for_claims_that_still_stand(connection: Connection) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    assert settle(connection, [Claim(event_id, uuid4(), 1)], "delivered") == []
    assert settle(connection, claims, "delivered") == [(event_id, "delivered")]
    assert settle(connection, claims, "dead_letter", "x: y") == []
    assert row(connection, event_id)["status"] == "delivered"


def test_settle_cuts_an_error_that_is_too_long_rather_than_keeping_the_row(connection: Connection) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection), "dead_letter", "ValueError: " + "€" * 5000)
    assert len(row(connection, event_id)["last_error"].encode()) <= 4096


@pytest.mark.parametrize(
    ("outcomes", "errors"), [(["lost"], [None]), (["retry"], [None]), ([None], [None]), (["delivered"], [None, None])]
)
def test_settle_refuses_what_makes_no_sense_and_changes_nothing(
    connection: Connection, outcomes: list[str | None], errors: list[str | None]
) -> None:
    event_id = publish(connection)
    (held,) = claim(connection)
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        connection.execute(
            "select core.outbox_settle(%s, %s, %s::text[], %s::text[], %s::interval[])",
            [[held.id], [held.token], outcomes, errors, ["0 s"]],
        )
    assert row(connection, event_id)["status"] == "in_flight"


# release and renew


def test_release_gives_the_attempt_back_and_wakes_the_channel(connection: Connection) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    connection.execute("listen outbox_gen_1")
    assert held_by(connection, "outbox_release", claims) == [event_id]
    assert [woken.payload for woken in connection.notifies(timeout=10, stop_after=1)] == [str(event_id)]
    released = row(connection, event_id)
    assert (released["status"], released["attempts"], released["claimed_by"]) == ("pending", 0, None)
    assert held_by(connection, "outbox_release", claims) == []


def test_renew_moves_the_lease_and_names_what_is_lost(connection: Connection) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    before = row(connection, event_id)["claimed_at"]
    assert held_by(connection, "outbox_renew", [*claims, Claim(uuid4(), uuid4(), 1)]) == [event_id]
    assert row(connection, event_id)["claimed_at"] > before


def test_renew_does_not_wait_for_a_handler_whose_transaction_is_open(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    with psycopg.connect(database) as handler:
        begin(handler, claims)
        connection.execute("set lock_timeout = '1ms'")
        assert held_by(connection, "outbox_renew", claims) == [event_id]


# reap


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


# fan out


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


# publish


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


# replay and discard


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
