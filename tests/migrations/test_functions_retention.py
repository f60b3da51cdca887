"""The sweep of the outbox: what is over is put away, then deleted; what is still to be delivered never is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest

from tests.migrations.retention import EVERYTHING, Step, ago, begin, delivered, left, put_away, sweep
from tests.migrations.schema import STATES, Connection, logged_in, outbox_row, update, value
from tests.migrations.sql import claim, fail, held_up, publish, refusal, settle

LONG_AGO = "1970-01-01T00:00Z"
DISCARDED = {"deleted_at": LONG_AGO}


@pytest.fixture
def sweeper(session: Connection) -> Connection:
    """The session of somebody who sweeps."""
    assert begin(session)
    return session


# what is swept and what is not


@pytest.mark.parametrize("status", ["pending", "in_flight", "failed"])
def test_what_is_not_delivered_and_not_discarded_is_never_swept(sweeper: Connection, status: str) -> None:
    moments = {name: LONG_AGO for name in STATES[status] if name.endswith("_at")}
    ancient = {"created_at": LONG_AGO, "occurred_at": LONG_AGO, "next_attempt_at": LONG_AGO}
    outbox_row(sweeper, status, **ancient, **moments)
    outbox_row(sweeper, status, target=None) if status == "pending" else outbox_row(sweeper, status, attempts=99)
    before = sweeper.execute("select * from core.outbox order by id").fetchall()
    for step in (Step(), EVERYTHING, EVERYTHING):
        assert sweep(sweeper, step) == (0, 0, False)
    assert sweeper.execute("select * from core.outbox order by id").fetchall() == before


@pytest.mark.parametrize(
    ("columns", "swept"),
    [
        ({"delivered_at": ago(days=45.1)}, "put_away"),
        ({"delivered_at": ago(days=44.9)}, None),
        ({"delivered_at": ago(days=9_999)}, "put_away"),
        ({"delivered_at": ago(days=9_999), "deleted_at": ago(days=6.9)}, None),
        ({"delivered_at": ago(days=9_999), "deleted_at": ago(days=7.1)}, "deleted"),
        ({"delivered_at": ago(days=1), "deleted_at": ago(days=7.1)}, "deleted"),
        # A clock that was set back since.
        ({"delivered_at": ago(days=-1)}, None),
        ({"delivered_at": ago(days=9_999), "deleted_at": ago(days=-1)}, None),
        # When something is said to have happened decides nothing, nor does when it was written.
        ({"delivered_at": ago(days=1), "occurred_at": LONG_AGO, "created_at": LONG_AGO}, None),
        ({"delivered_at": ago(days=46), "occurred_at": "9000-01-01T00:00Z", "created_at": ago(days=-9)}, "put_away"),
    ],
)
def test_a_delivered_row_is_put_away_and_after_its_grace_deleted(
    sweeper: Connection, columns: dict[str, Any], swept: str | None
) -> None:
    event_id = delivered(sweeper, 0, **columns)
    assert sweep(sweeper) == (swept == "put_away", swept == "deleted", False)
    assert left(sweeper) == (set() if swept == "deleted" else {event_id})
    was_put_away = swept == "put_away" or "deleted_at" in columns
    assert put_away(sweeper) == (left(sweeper) if was_put_away else set())


@pytest.mark.parametrize(("days", "deleted"), [(6.9, False), (7.1, True), (-1, False)])
def test_a_discarded_row_has_its_grace_too(sweeper: Connection, days: float, *, deleted: bool) -> None:
    event_id = outbox_row(sweeper, "failed", deleted_at=ago(days=days))
    assert sweep(sweeper) == (0, deleted, False)
    assert left(sweeper) == (set() if deleted else {event_id})


def test_a_row_is_put_away_first_however_late_the_sweep_comes(sweeper: Connection) -> None:
    event_id = delivered(sweeper, 9_999)
    now = value(sweeper, "select clock_timestamp()")
    assert sweep(sweeper) == (1, 0, False)
    tombstone = value(sweeper, "select deleted_at from core.outbox where id = %s", [event_id])
    assert now <= tombstone <= value(sweeper, "select clock_timestamp()")
    # again, at once: nothing is left to be done
    assert sweep(sweeper) == (0, 0, False)
    assert left(sweeper) == {event_id}


def test_a_broadcast_goes_before_a_share_of_it_that_is_not_delivered(sweeper: Connection) -> None:
    parent = delivered(sweeper, 99, target=None, **DISCARDED)
    child = outbox_row(sweeper, parent_id=parent, idempotency_key=str(parent))
    assert sweep(sweeper) == (0, 1, False)
    assert left(sweeper) == {child}


def test_what_an_event_went_through_is_swept_to_its_end(sweeper: Connection) -> None:
    discarded, kept = fail(sweeper), fail(sweeper)
    handled = publish(sweeper)
    settle(sweeper, claim(sweeper), "delivered")
    sweeper.execute("select core.outbox_discard(%s)", [[discarded]])
    sweeper.execute("select pg_sleep(0.001)")  # the clock has gone on
    assert sweep(sweeper, EVERYTHING).deleted == 1
    assert left(sweeper) == {handled, kept}
    assert sweep(sweeper, EVERYTHING).deleted == 1
    assert left(sweeper) == {kept}


# so much at a time


def test_so_many_rows_of_each_step_at_a_time(sweeper: Connection) -> None:
    for _ in range(5):
        delivered(sweeper, 99)
        delivered(sweeper, 99, **DISCARDED)
    few = Step(limit=2)
    answers = [sweep(sweeper, few) for _ in range(4)]
    assert answers == [(2, 2, True), (2, 2, True), (1, 1, False), (0, 0, False)]


def blocks(connection: Connection) -> dict[int, int]:
    """How many rows lie in which block."""
    found = connection.execute("select (ctid::text::point)[0]::bigint, count(*) from core.outbox group by 1").fetchall()
    return dict(found)


def test_a_sweep_touches_the_blocks_it_was_told_to(sweeper: Connection) -> None:
    for _ in range(120):
        delivered(sweeper, 99, **DISCARDED)
    before = blocks(sweeper)
    first, second, third, *others = sorted(before)
    assert sweep(sweeper, Step(start=second, end=third + 1)).deleted == before[second] + before[third]
    assert sweep(sweeper, Step(start=first, end=first)).deleted == 0
    assert sweep(sweeper, Step(start=third, end=first)).deleted == 0
    assert sweep(sweeper, Step(start=first, end=second)).deleted == before[first]
    assert others
    assert blocks(sweeper) == {number: before[number] for number in others}


@pytest.mark.parametrize("dry_run", [True, None])
def test_a_dry_run_counts_and_changes_nothing(session: Connection, *, dry_run: bool | None) -> None:
    for days in (1, 50, 60):
        delivered(session, days)
    delivered(session, 99, **DISCARDED)
    outbox_row(session, "failed", **DISCARDED)
    outbox_row(session, "failed")
    before = session.execute("select * from core.outbox order by id").fetchall()
    # nor does it need to be the sweeper; the limit is one of changes
    assert sweep(session, Step(sweeper=None, dry_run=dry_run, limit=1)) == (2, 2, False)
    assert session.execute("select * from core.outbox order by id").fetchall() == before
    begin(session)
    assert sweep(session) == (2, 2, False)


@pytest.mark.parametrize("table", ["outbox", "handled"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"start": -1}, {"start": None}, {"end": None}, {"end": -1}, {"end": 4_294_967_296},
        {"active": None}, {"active": "-1 s"}, {"grace": None}, {"grace": "-1 s"}, {"limit": None}, {"limit": 0},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(sweeper: Connection, table: str, wrong: dict[str, Any]) -> None:
    delivered(sweeper, 99, **DISCARDED)
    for dry_run in (False, True):
        with pytest.raises(psycopg.errors.InvalidParameterValue), sweeper.transaction():
            sweep(sweeper, replace(Step(), **wrong, dry_run=dry_run), table)
    assert len(left(sweeper)) == 1


# at the same time as others


@pytest.fixture
def busy(connection: Connection) -> Connection:
    """Somebody who sweeps and commits, while others are at it."""
    assert begin(connection)
    return connection


def test_what_somebody_works_on_is_swept_the_next_time(busy: Connection, database: str) -> None:
    over, old = delivered(busy, 99, **DISCARDED), delivered(busy, 99)
    free = delivered(busy, 99, **DISCARDED)
    busy.execute("set lock_timeout = '1ms'")
    with psycopg.connect(database) as other:
        other.execute("select from core.outbox where id = any (%s) for update", [[over, old]])
        assert sweep(busy) == (0, 1, False)
        assert left(busy) == {over, old}
    assert free not in left(busy)
    assert sweep(busy) == (1, 1, False)


def test_a_discard_that_is_just_being_taken_back_is_respected(busy: Connection, database: str) -> None:
    event_id = outbox_row(busy, "failed", **DISCARDED)
    with psycopg.connect(database) as operator:
        assert update(operator, event_id, deleted_at=None) == 1
        assert sweep(busy, EVERYTHING) == (0, 0, False)
        operator.commit()
    assert sweep(busy, EVERYTHING) == (0, 0, False)
    assert left(busy) == {event_id}


def test_a_discard_cannot_be_taken_back_from_under_the_sweep(connection: Connection, database: str) -> None:
    event_id = outbox_row(connection, "failed", **DISCARDED)
    undo = "update core.outbox set deleted_at = null where id = %s returning id"
    with psycopg.connect(database) as sweeping, psycopg.connect(database, autocommit=True) as operator:
        begin(sweeping)
        assert sweep(sweeping).deleted == 1
        with held_up(connection, sweeping, operator, undo, [event_id]) as answer:
            sweeping.commit()
            assert answer.result() == []
    assert left(connection) == set()
    assert value(connection, "select count(*) from core.audit where action = 'undo_discard'") == 0


def test_a_replay_that_comes_at_the_same_moment_finds_the_row_gone(connection: Connection, database: str) -> None:
    event_id = outbox_row(connection, "failed", **DISCARDED)
    replay = "select refusal from core.outbox_replay_many(%s, 1)"
    with psycopg.connect(database) as sweeping, psycopg.connect(database, autocommit=True) as operator:
        begin(sweeping)
        sweep(sweeping)
        with held_up(connection, sweeping, operator, replay, [[event_id]]) as answer:
            sweeping.commit()
            assert answer.result() == [("unknown",)]


def test_a_discard_that_comes_at_the_same_moment_begins_its_grace(busy: Connection, database: str) -> None:
    event_id = outbox_row(busy, "failed")
    with psycopg.connect(database) as operator:
        operator.execute("select core.outbox_discard(%s)", [[event_id]])
        assert sweep(busy) == (0, 0, False)
        operator.commit()
    assert sweep(busy) == (0, 0, False)
    assert left(busy) == {event_id}


# who may


SWEEPS: list[LiteralString] = [
    "select core.sweep_begin('s')",
    "select core.sweep_outbox('s', 0, 1, '0 s', '0 s')",
    "select core.sweep_outbox('s', 0, 1, '0 s', '0 s', 1, true)",
    "select core.sweep_handled('s', 0, 1, '0 s', '0 s')",
    "select core.sweep_finish('s')",
    "delete from core.outbox",
    "delete from core.event_handled",
]


@pytest.mark.parametrize("group", ["publisher", "worker", "operator", "readonly"])
def test_nobody_but_retention_sweeps_or_deletes(session: Connection, group: LiteralString) -> None:
    session.execute("set local role spectral_" + group)
    for statement in SWEEPS:
        assert refusal(session, statement).sqlstate == "42501"


def test_retention_sweeps(connection: Connection, database: str) -> None:
    delivered(connection, 99, **DISCARDED)
    with logged_in(database, "spectral_retention") as retention:
        for statement in SWEEPS[:5]:
            retention.execute(statement)
    assert left(connection) == set()


@pytest.mark.parametrize("status", ["pending", "in_flight", "failed", "delivered"])
def test_retention_itself_cannot_delete_what_was_not_put_away(session: Connection, status: str) -> None:
    event_id = outbox_row(session, status)
    session.execute("set local role spectral_retention")
    assert session.execute("delete from core.outbox").rowcount == 0
    assert left(session) == {event_id}
