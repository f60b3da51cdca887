"""Workers sign in and out; whether one lives is seen by its lock, whatever the table says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, value
from tests.migrations.sql import refusal

SIGN_IN = "select core.worker_sign_in(%s, %s::bigint[], '{platform}', '{outbox_gen_1}', %s, %s, '1.0')"
LIVE = "select pg_advisory_lock_shared(core.worker_lock_key(%s))"


def sign_in(connection: Connection, name: str = "w", host: str = "h", pid: int = 1) -> None:
    connection.execute(SIGN_IN, [name, [1], host, pid])


def names(connection: Connection) -> set[str]:
    return {name for (name,) in connection.execute("select name from core.workers").fetchall()}


def lives(connection: Connection, name: str = "w") -> bool:
    return bool(value(connection, "select core.worker_lives(%s)", [name]))


def worker(connection: Connection, name: str = "w") -> dict[str, Any]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        found = cursor.execute("select * from core.workers where name = %s", [name]).fetchone()
    assert found is not None
    return found


def test_a_worker_that_signed_in_is_on_record(session: Connection) -> None:
    session.execute(
        "select core.worker_sign_in('w', '{7,6}', '{platform,worlds}', '{outbox_gen_7,outbox_default}', 'h', 42, '1')"
    )
    found = worker(session)
    assert abs(found.pop("signed_in_at") - value(session, "select clock_timestamp()")) < timedelta(minutes=1)
    assert found == {
        "name": "w",
        "generation": 7,
        "generations": [7, 6],
        "contexts": ["platform", "worlds"],
        "channels": ["outbox_gen_7", "outbox_default"],
        "host": "h",
        "pid": 42,
        "version": "1",
        "missed_at": None,
    }


def test_a_worker_that_signed_out_is_not_on_record(session: Connection) -> None:
    sign_in(session, "w")
    sign_in(session, "stays")
    for name in ("w", "w", "nobody", None):
        session.execute("select core.worker_sign_out(%s)", [name])
    assert names(session) == {"stays"}


def age(connection: Connection, name: str, by: str) -> None:
    connection.execute("update core.workers set signed_in_at = signed_in_at - %s::interval where name = %s", [by, name])


def test_signing_in_again_after_a_reconnect_is_no_new_beginning(session: Connection) -> None:
    sign_in(session)
    age(session, "w", "1 hour")
    before = worker(session)
    sign_in(session)
    assert worker(session) == before


@pytest.mark.parametrize("given", [{"host": "other"}, {"pid": 2}])
def test_another_process_of_the_same_name_has_only_just_come(session: Connection, given: dict[str, Any]) -> None:
    sign_in(session)
    age(session, "w", "1 hour")
    before = worker(session)
    sign_in(session, **given)
    assert worker(session)["signed_in_at"] - before["signed_in_at"] > timedelta(minutes=59)


def missed(connection: Connection) -> set[str]:
    found = connection.execute("select name from core.workers where missed_at is not null").fetchall()
    return {name for (name,) in found}


def test_who_is_gone_is_noted_by_the_next_one_and_struck_off_a_day_later(connection: Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as living:
        living.execute(LIVE, ["living"])
        living.execute(LIVE, ["lately gone"])
        for name in ("gone", "living", "lately gone"):
            sign_in(connection, name)
            age(connection, name, "9 days")  # how long it had worked does not matter
        sign_in(connection, "new")
        assert missed(connection) == {"gone"}
        assert worker(connection, "gone")["missed_at"] is not None
        living.execute("select pg_advisory_unlock_shared(core.worker_lock_key('lately gone'))")
        connection.execute("update core.workers set missed_at = missed_at - interval '23 hours'")
        sign_in(connection, "new")
        assert missed(connection) == {"gone", "lately gone"}
        connection.execute("update core.workers set missed_at = missed_at - interval '2 hours' where name = 'gone'")
        sign_in(connection, "new")
        assert names(connection) == {"living", "lately gone", "new"}


def test_who_comes_back_is_not_missed_any_more(connection: Connection, database: str) -> None:
    sign_in(connection, "back")
    sign_in(connection, "new")
    assert missed(connection) == {"back"}
    connection.execute("update core.workers set missed_at = missed_at - interval '9 days'")
    with psycopg.connect(database, autocommit=True) as back:
        back.execute(LIVE, ["back"])
        sign_in(connection, "new")  # it lives, and is only about to sign in
        assert "back" in names(connection)
        sign_in(back, "back")
    assert missed(connection) <= {"new"}


@pytest.mark.parametrize("name", [None, "", "w" * 501])
def test_a_worker_has_a_name(session: Connection, name: str | None) -> None:
    said = refusal(session, SIGN_IN, name, [1], "h", 1)
    assert said.sqlstate == "22023"
    assert "name of at most 500 characters" in (said.message_primary or "")


@pytest.mark.parametrize("generations", [[], None, [None]])
def test_a_worker_has_a_generation(session: Connection, generations: list[Any] | None) -> None:
    assert refusal(session, SIGN_IN, "w", generations, "h", 1).sqlstate == "22023"


def test_the_rest_is_for_show_and_keeps_nobody_from_working(session: Connection) -> None:
    session.execute("select core.worker_sign_in('w', '{1}', null, null, null, null, null)")
    session.execute("select core.worker_sign_in('x', '{1}', '{}', '{}', %s, 1, %s)", ["h" * 300, "1" * 100])
    found = worker(session)
    assert (found["contexts"], found["channels"], found["host"], found["pid"], found["version"]) == ([], [], "", 0, "")
    assert (len(worker(session, "x")["host"]), len(worker(session, "x")["version"])) == (255, 60)


def test_it_lives_while_somebody_holds_its_lock(connection: Connection, database: str) -> None:
    name = "€" * 500
    sign_in(connection, name)
    assert not lives(connection, name)
    with psycopg.connect(database, autocommit=True) as ear, psycopg.connect(database, autocommit=True) as keeper:
        for each in (ear, keeper):
            each.execute(LIVE, [name])
        assert lives(connection, name)
        assert not lives(connection, name[:499])
        ear.execute("select pg_advisory_unlock_all()")
        assert lives(connection, name)
        keeper.execute("select pg_advisory_unlock_all()")
        assert not lives(connection, name)


def test_a_lock_in_another_database_is_another_workers(connection: Connection, empty_database: str) -> None:
    key = value(connection, "select core.worker_lock_key('w')")
    with psycopg.connect(empty_database, autocommit=True) as elsewhere:
        elsewhere.execute("select pg_advisory_lock_shared(%s)", [key])
        assert not lives(connection)


def test_workers_that_sign_in_at_once_do_not_wait_for_each_other(connection: Connection, database: str) -> None:
    sign_in(connection, "gone")
    sign_in(connection, "new")
    connection.execute("update core.workers set missed_at = missed_at - interval '9 days'")
    with psycopg.connect(database) as first:
        sign_in(first, "a")
        connection.execute("set lock_timeout = '1ms'")
        sign_in(connection, "b")
        first.commit()
    assert names(connection) == {"a", "b", "new"}


PRIVILEGES: list[tuple[LiteralString, str]] = [
    ("select core.worker_sign_in('w', '{1}', '{}', '{}', 'h', 1, '1')", "spectral_worker"),
    ("select core.worker_sign_out('w')", "spectral_worker"),
    ("select core.worker_lives('w')", "spectral_operator"),
    ("select core.worker_lives(name) from core.workers", "spectral_readonly"),
]


@pytest.mark.parametrize(("statement", "group"), PRIVILEGES)
def test_workers_sign_in_and_people_look(database: str, statement: LiteralString, group: str) -> None:
    with logged_in(database, group) as session:
        session.execute(statement)
    with logged_in(database, "spectral_publisher") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute(statement)
