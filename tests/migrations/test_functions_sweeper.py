"""One sweeper at a time: elected by a lease, fenced when it lost it, and what it did is on record once."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.migrations.retention import Step, begin, delivered, record, sweep
from tests.migrations.schema import Connection, value
from tests.migrations.sql import audit, held_up, refusal

LONG_AGO = "1970-01-01T00:00Z"


def sweeper(connection: Connection) -> dict[str, Any]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        found = cursor.execute("select * from core.sweeper").fetchone()
    assert found is not None
    return found


def finish(connection: Connection, name: str = "s", result: str | None = '{"complete": true}') -> None:
    connection.execute("select core.sweep_finish(%s, %s)", [name, result])


def silent(connection: Connection, since: str) -> None:
    """Nothing was heard of the sweeper for so long."""
    connection.execute("update core.sweeper set renewed_at = renewed_at - %s::interval", [since])


def test_there_is_one_at_a_time(session: Connection) -> None:
    assert begin(session, "a")
    assert not begin(session, "b")
    assert begin(session, "a")  # which it is already
    finish(session, "a")
    assert begin(session, "b")
    assert sweeper(session)["name"] == "b"


def test_nobody_sweeps_who_did_not_begin(session: Connection) -> None:
    delivered(session, 99)
    for statement in (
        "select core.sweep_outbox('s', 0, 9, '45 days', '7 days')",
        "select core.sweep_handled('s', 0, 9, '45 days', '7 days')",
        "select core.sweep_outbox(null, 0, 9, '45 days', '7 days')",
        "select core.sweep_finish('s')",
    ):
        said = refusal(session, statement)
        assert said.sqlstate == "55000"
        assert (said.message_primary or "").endswith("is not the sweeper, or no longer")
        assert "core.sweep_begin" in (said.message_hint or "")
    assert value(session, "select count(*) from core.outbox where deleted_at is not null") == 0


@pytest.mark.parametrize("name", [None, "", "s" * 201])
def test_a_sweeper_has_a_name(session: Connection, name: str | None) -> None:
    assert refusal(session, "select core.sweep_begin(%s)", name).sqlstate == "22023"
    assert sweeper(session)["name"] is None


@pytest.mark.parametrize("lease", [None, "-1 s"])
def test_a_lease_is_a_time(session: Connection, lease: str | None) -> None:
    begin(session, "a")
    assert refusal(session, "select core.sweep_begin('b', %s)", lease).sqlstate == "22023"
    assert sweeper(session)["name"] == "a"


def test_one_that_is_silent_for_longer_than_the_lease_is_taken_for_gone_and_fenced(session: Connection) -> None:
    delivered(session, 99)
    begin(session, "a")
    silent(session, "119 s")
    assert not begin(session, "b")
    silent(session, "2 s")
    assert begin(session, "b")
    for statement in (
        "select core.sweep_outbox('a', 0, 9, '45 days', '7 days')",
        "select core.sweep_handled('a', 0, 9, '45 days', '7 days')",
        "select core.sweep_finish('a', '{}')",
    ):
        assert refusal(session, statement).message_primary == "'a' is not the sweeper, or no longer"
    assert not begin(session, "a")
    assert sweep(session, Step(sweeper="b")) == (1, 0, False)
    finish(session, "b")


@pytest.mark.parametrize("table", ["outbox", "handled"])
def test_every_step_renews_the_lease(session: Connection, table: str) -> None:
    begin(session, "a")
    silent(session, "1 hour")
    sweep(session, Step(sweeper="a"), table)
    assert not begin(session, "b")


def test_how_the_last_one_ended_is_kept_while_the_next_is_at_work(session: Connection) -> None:
    begin(session, "a")
    finish(session, "a", '{"complete": true}')
    ended = sweeper(session)
    assert (ended["name"], ended["renewed_at"], ended["result"]) == (None, None, {"complete": True})
    begin(session, "b")
    found = sweeper(session)
    assert (found["finished_at"], found["result"]) == (ended["finished_at"], {"complete": True})
    assert found["started_at"] >= ended["finished_at"] >= ended["started_at"]
    finish(session, "b", None)
    assert sweeper(session)["result"] == {}


def test_beginning_again_under_the_same_name_goes_on(session: Connection) -> None:
    delivered(session, 99)
    begin(session)
    sweep(session)
    before = sweeper(session)
    begin(session)
    after = sweeper(session)
    assert after["renewed_at"] > before["renewed_at"]
    assert {**after, "renewed_at": None} == {**before, "renewed_at": None}


def detail(*, complete: bool, **done: int) -> dict[str, Any]:
    tables = (("outbox", "outbox"), ("event_handled", "handled"))
    counts = {
        table: {step: done.get(f"{short}_{step}", 0) for step in ("put_away", "deleted")} for table, short in tables
    }
    return {"complete": complete, **counts}


def test_a_sweep_leaves_one_entry_in_the_audit_however_many_steps_it_took(session: Connection) -> None:
    for number in range(3):
        delivered(session, 99)
        delivered(session, 99, deleted_at=LONG_AGO)
        record(session, f"old-{number}")
        record(session, f"over-{number}", deleted_at=LONG_AGO)
    begin(session)
    for table in ("outbox", "handled"):
        while sweep(session, Step(limit=1), table).more:
            pass
    assert audit(session) == []
    finish(session)
    done = {"outbox_put_away": 3, "outbox_deleted": 3, "handled_put_away": 3, "handled_deleted": 3}
    (found,) = audit(session)
    assert (found["action"], found["actor"], found["session_role"], found["affected"]) == ("sweep", "s", "postgres", 12)
    assert found["detail"] == detail(complete=True, **done)


def test_a_sweep_that_found_nothing_leaves_no_entry(session: Connection) -> None:
    begin(session)
    sweep(session)
    finish(session)
    assert audit(session) == []


def test_a_dry_run_is_not_counted(session: Connection) -> None:
    delivered(session, 99)
    begin(session)
    sweep(session, Step(dry_run=True))
    finish(session)
    assert audit(session) == []


def test_what_a_lost_sweeper_did_is_entered_by_the_one_that_takes_over(session: Connection) -> None:
    delivered(session, 99)
    begin(session, "a")
    sweep(session, Step(sweeper="a"))
    silent(session, "1 hour")
    begin(session, "b")
    finish(session, "b")
    (found,) = audit(session)
    assert (found["actor"], found["affected"]) == ("a", 1)
    assert found["detail"] == detail(complete=False, outbox_put_away=1)


@pytest.mark.parametrize(
    ("result", "complete"), [('{"complete": false}', False), ('{"complete": 0}', True), (None, True)]
)
def test_a_sweep_that_stopped_early_is_not_said_to_be_complete(
    session: Connection, result: str | None, *, complete: bool
) -> None:
    delivered(session, 99)
    begin(session)
    sweep(session)
    finish(session, "s", result)
    assert audit(session)[0]["detail"] == detail(complete=complete, outbox_put_away=1)


# at the same time as others


def test_of_two_that_begin_at_once_one_is_the_sweeper(connection: Connection, database: str) -> None:
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        assert begin(ada, "a")
        with held_up(connection, ada, bob, "select core.sweep_begin('b')") as answer:
            ada.commit()
            assert answer.result() == [(False,)]


def test_one_that_is_in_the_middle_of_a_step_is_not_taken_for_gone(connection: Connection, database: str) -> None:
    delivered(connection, 99)
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        begin(ada, "a")
        ada.commit()
        silent(connection, "1 hour")
        sweep(ada, Step(sweeper="a"))
        with held_up(connection, ada, bob, "select core.sweep_begin('b')") as answer:
            ada.commit()
            assert answer.result() == [(False,)]


def test_a_step_that_is_rolled_back_was_not_taken(connection: Connection, database: str) -> None:
    delivered(connection, 99)
    begin(connection)
    with psycopg.connect(database) as lost:
        assert sweep(lost) == (1, 0, False)
        lost.rollback()
    assert sweep(connection) == (1, 0, False)
    finish(connection)
    assert [each["affected"] for each in audit(connection)] == [1]
