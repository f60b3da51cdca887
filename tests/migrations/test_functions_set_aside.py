"""Set aside: a row that must run alone is nobody's for a while, but for the worker that waits with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.migrations.sql import CHANNELS, Claim, claim, lose, publish, row, settle

Connection = psycopg.Connection[Any]


def set_aside(connection: Connection, claims: list[Claim], delay: str = "30 s") -> list[UUID]:
    rows = connection.execute(
        "select * from core.outbox_set_aside(%s, %s, %s::interval[])",
        [[held.id for held in claims], [held.token for held in claims], [delay] * len(claims)],
    )
    return [event_id for (event_id,) in rows]


def claim_aside(connection: Connection, event_id: UUID, attempts: int, **given: object) -> list[tuple[Any, ...]]:
    """What was claimed, but for the first row, which is about the claim itself."""
    scope = {"context": "platform", "generations": [1], "channels": CHANNELS, "replays": 0, **given}
    _, *claimed = connection.execute(
        "select id, attempts, suspect from core.outbox_claim_aside('w', %(context)s, %(generations)s, %(channels)s,"
        " %(id)s, %(replays)s, %(attempts)s, '{}', '{}')",
        {"id": event_id, "attempts": attempts, **scope},
    ).fetchall()
    return claimed


def lost_and_aside(connection: Connection) -> UUID:
    event_id = publish(connection)
    lose(connection, event_id)
    assert set_aside(connection, claim(connection)) == [event_id]
    return event_id


def test_it_gives_the_attempt_back_and_nobody_gets_the_row_or_is_woken(connection: Connection) -> None:
    event_id = publish(connection)
    claims = claim(connection)
    connection.execute("listen outbox_gen_1")
    assert set_aside(connection, claims) == [event_id]
    assert list(connection.notifies(timeout=0)) == []
    aside = row(connection, event_id)
    assert (aside["status"], aside["attempts"], aside["claimed_by"]) == ("pending", 0, None)
    assert claim(connection) == []
    assert set_aside(connection, claims) == [], "the claim does not stand any more"


@pytest.mark.parametrize(("asked", "given"), [("-1 day", timedelta(0)), ("1 day", timedelta(minutes=5))])
def test_a_row_is_set_aside_for_minutes_at_most(connection: Connection, asked: str, given: timedelta) -> None:
    event_id = publish(connection)
    set_aside(connection, claim(connection), asked)
    found = connection.execute("select clock_timestamp()").fetchone()
    assert found is not None
    assert abs(row(connection, event_id)["next_attempt_at"] - found[0] - given) < timedelta(minutes=1)


def test_who_waits_with_it_gets_it_before_its_time(connection: Connection) -> None:
    event_id = lost_and_aside(connection)
    assert claim_aside(connection, event_id, 1) == [(event_id, 2, True)]
    assert row(connection, event_id)["claimed_by"] == "w"
    assert claim_aside(connection, event_id, 2) == [], "it is in flight"


def test_what_is_due_by_now_is_had_in_the_same_way(connection: Connection) -> None:
    event_id = publish(connection)
    lose(connection, event_id)
    assert claim_aside(connection, event_id, 1) == [(event_id, 2, True)]


@pytest.mark.parametrize(
    "given",
    [
        {"attempts": 0},
        {"replays": 1},
        {"context": "worlds"},
        {"generations": [2]},
        {"channels": ["outbox_gen_2"]},
    ],
)
def test_it_has_to_be_the_row_that_was_meant(connection: Connection, given: dict[str, object]) -> None:
    event_id = lost_and_aside(connection)
    assert claim_aside(connection, event_id, **{"attempts": 1, **given}) == []  # type: ignore[arg-type]
    assert claim(connection) == []


def test_a_retry_is_not_brought_forward(connection: Connection) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection), "retry", "OSError: later", delay="1 hour")
    assert claim_aside(connection, event_id, 1) == []
    assert row(connection, event_id)["status"] == "pending"


def test_the_brake_holds_it_too(connection: Connection) -> None:
    event_id = lost_and_aside(connection)
    connection.execute("select core.brake_pull('platform', 'ada', 'r')")
    found = connection.execute(
        "select * from core.outbox_claim_aside('w', 'platform', '{1}', %s, %s, 0, 1, '{}', '{}')",
        [CHANNELS, event_id],
    )
    assert found.fetchall() == []
    assert row(connection, event_id)["status"] == "pending"
