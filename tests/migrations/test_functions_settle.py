"""Settle, release and renew: what a worker may do with what it holds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import psycopg.types.json
import pytest

from tests.migrations.sql import (
    Claim,
    begin,
    claim,
    held_by,
    publish,
    row,
    settle,
)

Connection = psycopg.Connection[Any]


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
