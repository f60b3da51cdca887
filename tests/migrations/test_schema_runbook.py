"""The operators' runbook as a contract: these statements are in people's hands and keep working on this schema.

Changing one of them here means breaking somebody's habit at 3 am. Only the placeholders are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.migrations.schema import Connection, logged_in, outbox_row

LIST_RECENT_FAILED = """\
select
id,
event_type,
source,
target,
workspace_id,
attempts,
last_error,
first_failed_at,
claimed_at as failed_at,
jsonb_array_length(failure_history) as prior_replay_count
from core.outbox
where status = 'failed'
and deleted_at is null
order by claimed_at desc
limit 50;"""

INSPECT = """\
select *
from core.outbox
where id = %(event_id)s;"""

FAILURES_BY_EVENT_TYPE = """\
select event_type, source, target, count(*)
from core.outbox
where status = 'failed' and deleted_at is null
group by event_type, source, target
order by count(*) desc;"""

FAILURES_BY_ERROR_CLASS = """\
select
split_part(last_error, ':', 1) as error_class,
count(*)
from core.outbox
where status = 'failed' and deleted_at is null
group by error_class
order by count(*) desc;"""

LATEST_GENERATION = "select max(generation) from core.deployments;"

REPLAY = """\
select core.outbox_replay(
p_event_id => %(event_id)s,
p_new_generation => %(generation)s,
p_replayed_by => 'operator-identity' -- nullable; caller's choice
);"""

DISCARD = """\
update core.outbox
set deleted_at = now()
where id = %(event_id)s
and status = 'failed';"""

PENDING_BY_CHANNEL = """\
select channel, count(*)
from core.outbox
where status = 'pending' and deleted_at is null
group by channel;"""

BACKLOG_BY_STATUS = """\
select status, count(*) from core.outbox
where deleted_at is null group by status;"""

STALE_IN_FLIGHT = """\
select id, claimed_at, age(now(), claimed_at) as age
from core.outbox
where status = 'in_flight' and claimed_at < now() - interval '5 minutes'
order by claimed_at;"""

NOTIFY_QUEUE = "select pg_notification_queue_usage();"

BY_GENERATION = """\
select generation, status, count(*)
from core.outbox
where deleted_at is null
group by generation, status
order by generation;"""


@pytest.fixture
def rows(connection: Connection) -> dict[str, UUID]:
    """Rows in every state, by what they are there for."""
    second: dict[str, object] = {"generation": 2, "channel": "outbox_gen_2"}
    history = Jsonb([{"cycle": 1, "last_error": "OSError: before"}])
    return {
        "older": outbox_row(connection, "failed", claimed_at="2026-01-01T00:00Z", last_error="ValueError: a: b"),
        "newer": outbox_row(connection, "failed", claimed_at="2026-01-02T00:00Z", failure_history=history),
        "other": outbox_row(
            connection,
            "failed",
            event_type="worlds.scan.started",
            last_error="OSError: net",
            claimed_at="2026-01-03T00:00Z",
        ),
        "discarded": outbox_row(connection, "failed", deleted_at="2026-01-04T00:00Z"),
        "stale": outbox_row(connection, "in_flight"),
        "fresh": outbox_row(connection, "in_flight", claimed_at="infinity"),
        "pending": outbox_row(connection),
        "pending_hot": outbox_row(connection, channel="outbox_gen_1_hot"),
        "pending_second": outbox_row(connection, "pending", **second),
        "delivered": outbox_row(connection, "delivered", **second),
        "swept": outbox_row(connection, "delivered", deleted_at="2026-01-04T00:00Z"),
    }


@pytest.fixture
def operator(database: str) -> Iterator[Connection]:
    with logged_in(database, "spectral_operator") as session:
        yield session


def asked(operator: Connection, query: str, **parameters: object) -> list[dict[str, Any]]:
    with operator.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(query, parameters or None).fetchall()


def test_list_recent_failed_events(operator: Connection, rows: dict[str, UUID]) -> None:
    found = asked(operator, LIST_RECENT_FAILED)
    assert [row["id"] for row in found] == [rows["other"], rows["newer"], rows["older"]]
    assert [row["prior_replay_count"] for row in found] == [0, 1, 0]
    assert found[0]["failed_at"].isoformat() == "2026-01-03T00:00:00+00:00"
    assert list(found[0]) == [
        *("id", "event_type", "source", "target", "workspace_id", "attempts", "last_error", "first_failed_at"),
        *("failed_at", "prior_replay_count"),
    ]


def test_inspect_a_specific_failed_event(operator: Connection, rows: dict[str, UUID]) -> None:
    (found,) = asked(operator, INSPECT, event_id=str(rows["newer"]))
    assert found["payload"] == {}
    assert found["failure_history"] == [{"cycle": 1, "last_error": "OSError: before"}]
    documented = {
        *("id", "event_type", "event_version", "occurred_at", "source", "target", "content_class", "channel"),
        *("generation", "workspace_id", "payload", "idempotency_key", "trace_context", "status", "attempts"),
        *("last_error", "failure_history", "first_failed_at", "created_at", "claimed_at", "delivered_at", "deleted_at"),
    }
    assert documented <= set(found)


@pytest.mark.usefixtures("rows")
def test_failures_by_event_type(operator: Connection) -> None:
    assert [tuple(row.values()) for row in asked(operator, FAILURES_BY_EVENT_TYPE)] == [
        ("worlds.scan.completed", "worlds", "platform", 2),
        ("worlds.scan.started", "worlds", "platform", 1),
    ]


@pytest.mark.usefixtures("rows")
def test_failures_by_error_class(operator: Connection) -> None:
    found = asked(operator, FAILURES_BY_ERROR_CLASS)
    assert found == [{"error_class": "ValueError", "count": 2}, {"error_class": "OSError", "count": 1}]


def test_replay_into_the_generation_that_was_looked_up(operator: Connection, rows: dict[str, UUID]) -> None:
    (latest,) = asked(operator, LATEST_GENERATION)
    assert latest == {"max": 2}
    replayed = asked(operator, REPLAY, event_id=str(rows["newer"]), generation=latest["max"])
    assert replayed == [{"outbox_replay": 2}]
    (row,) = asked(operator, INSPECT, event_id=rows["newer"])
    assert (row["status"], row["generation"], row["channel"]) == ("pending", 2, "outbox_gen_2")
    assert (row["attempts"], row["last_error"], row["first_failed_at"], row["claimed_at"]) == (0, None, None, None)
    before, cycle = row["failure_history"]
    assert before == {"cycle": 1, "last_error": "OSError: before"}
    assert (cycle["cycle"], cycle["attempts"], cycle["last_error"]) == (2, 6, "ValueError: no")
    assert cycle["replayed_by"] == "operator-identity"
    assert set(cycle) == {
        *("cycle", "attempts", "last_error", "first_failed_at", "failed_at", "replayed_at", "replayed_by")
    }


def test_discard_a_failed_event_for_ever(operator: Connection, rows: dict[str, UUID]) -> None:
    assert operator.execute(DISCARD, {"event_id": str(rows["newer"])}).rowcount == 1
    assert rows["newer"] not in {row["id"] for row in asked(operator, LIST_RECENT_FAILED)}
    (row,) = asked(operator, INSPECT, event_id=rows["newer"])
    assert row["deleted_at"] is not None
    assert len(row["failure_history"]) == 1
    for name in ("pending", "stale", "delivered"):
        assert operator.execute(DISCARD, {"event_id": str(rows[name])}).rowcount == 0


@pytest.mark.usefixtures("rows")
def test_pending_by_channel(operator: Connection) -> None:
    found = {row["channel"]: row["count"] for row in asked(operator, PENDING_BY_CHANNEL)}
    assert found == {"outbox_gen_1": 1, "outbox_gen_1_hot": 1, "outbox_gen_2": 1}


@pytest.mark.usefixtures("rows")
def test_backlog_by_status(operator: Connection) -> None:
    found = {row["status"]: row["count"] for row in asked(operator, BACKLOG_BY_STATUS)}
    assert found == {"pending": 3, "in_flight": 2, "delivered": 1, "failed": 3}


def test_stale_in_flight(operator: Connection, rows: dict[str, UUID]) -> None:
    (found,) = asked(operator, STALE_IN_FLIGHT)
    assert found["id"] == rows["stale"]
    assert found["age"] > timedelta(minutes=5)


def test_health_of_the_notify_queue(operator: Connection) -> None:
    (found,) = asked(operator, NOTIFY_QUEUE)
    assert 0 <= found["pg_notification_queue_usage"] <= 1


@pytest.mark.usefixtures("rows")
def test_generation_distribution(operator: Connection) -> None:
    found = {(row["generation"], row["status"]): row["count"] for row in asked(operator, BY_GENERATION)}
    assert found == {
        (1, "failed"): 3,
        (1, "in_flight"): 2,
        (1, "pending"): 2,
        (2, "delivered"): 1,
        (2, "pending"): 1,
    }
