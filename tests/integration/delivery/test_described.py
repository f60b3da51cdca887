"""What the server says of a row is kept without the row: real errors of a real server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from spectral.core.events.describe import describe

CANARY = "canary8472"

STATEMENTS = {
    "a duplicate": "insert into people (name) values ('{canary}'), ('{canary}')",
    "a broken check": "insert into people (name, age) values ('{canary}', -1)",
    "a null": "insert into people (name, age, email) values ('{canary}', 1, null)",
    "a missing parent": "insert into cards (person) values ('{canary}')",
    "no number": "select '{canary}'::integer",
    "no enum": "select '{canary}'::mood",
    "no date": "select '{canary}'::date",
    "no JSON": "select '{canary}'::jsonb",
    "no uuid": "select '{canary}'::uuid",
    "no array": "select '{canary}'::integer[]",
    "no range": "select '[{canary},2]'::int4range",
    "too long": "insert into people (name, code) values ('x', '{canary}')",
    "too large": "select '9999999999{digits}'::integer",
    "too large a date": "select '{digits}-13-45'::date",
    "no regular expression": "select 'x' ~ '({canary}'",
    "no time zone": "select now() at time zone '{canary}'",
    "raised with a detail": "do $$ begin raise exception 'no' using detail = '{canary}', hint = '{canary}'; end $$",
}


@pytest.fixture
def people(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Tables with every kind of constraint."""
    connection.execute("create type mood as enum ('fine')")
    connection.execute(
        "create table people (name text primary key, age integer default 1 check (age > 0),"
        " email text not null default 'x', code varchar(3))"
    )
    connection.execute("create table cards (person text references people)")
    return connection


@pytest.mark.parametrize("kind", STATEMENTS)
def test_an_error_of_the_server_is_kept_without_the_datum(people: psycopg.Connection[Any], kind: str) -> None:
    statement = STATEMENTS[kind].replace("{canary}", CANARY).replace("{digits}", "8472")
    with pytest.raises(psycopg.Error) as refused:
        people.execute(statement.encode())
    text = describe(refused.value, "platform.project")
    assert CANARY not in text
    assert "8472" not in text
    assert (refused.value.sqlstate or "") in text


def test_a_group_of_server_errors_is_kept_without_the_data(people: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.Error) as refused:
        people.execute(STATEMENTS["a duplicate"].replace("{canary}", CANARY).encode())
    assert CANARY not in describe(ExceptionGroup("several", [refused.value, OSError("x")]))


def test_an_error_that_quotes_the_servers_error_is_kept_without_the_detail(people: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.Error) as refused:
        people.execute(STATEMENTS["a duplicate"].replace("{canary}", CANARY).encode())
    text = describe(RuntimeError(f"could not save: {refused.value}"))
    assert "could not save" in text
    assert CANARY not in text


def test_a_connection_that_fails_is_told_without_its_password(database: str) -> None:
    with pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect(database, user="nobody_here", password=CANARY, connect_timeout=5)
    assert CANARY not in describe(refused.value)
