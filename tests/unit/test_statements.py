"""The statements say the same in every driver's spelling, and what the server refuses gets its name."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, get_args
from uuid import UUID

import psycopg.errors
import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from spectral.core.events.delivery.publish import Insert, OutboxRow, Stamp
from spectral.core.events.failure import ConfigurationError, DuplicateEventError, NotInTransactionError, PublishError
from spectral.core.events.infrastructure.psycopg_statements import bulk
from spectral.core.events.infrastructure.statements import (
    PARAMETERS,
    ParameterStyle,
    explain,
    insert_many,
    insert_one,
    not_in_transaction,
    positional,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "canary-4111"
NAMES = [
    "id",
    "event_type",
    "event_version",
    "occurred_at",
    "source",
    "target",
    "workspace_id",
    "payload",
    "idempotency_key",
    "trace_context",
    "channel",
    "generation",
    "content_class",
    "delay",
]
NUMBERS = [str(number) for number in range(1, 15)]
STYLES: tuple[ParameterStyle, ...] = ("pyformat", "binary", "named", "dollar")
PLACEHOLDERS = {
    "pyformat": re.compile(r"%\((\w+)\)s"),
    "binary": re.compile(r"%\((\w+)\)b"),
    "named": re.compile(r"(?<!:):(\w+)"),
    "dollar": re.compile(r"\$(\d+)"),
}


def placeholders(style: ParameterStyle, statement: str) -> list[str]:
    return PLACEHOLDERS[style].findall(statement)


def expected_in(style: ParameterStyle) -> list[str]:
    return NUMBERS if style == "dollar" else NAMES


def one(style: ParameterStyle) -> str:
    return insert_one(style)


def one_or_fail(style: ParameterStyle) -> str:
    return insert_one(style, ignore_known=False)


def many(style: ParameterStyle) -> str:
    return insert_many(style, ignore_known=True)


def many_or_fail(style: ParameterStyle) -> str:
    return insert_many(style, ignore_known=False)


STATEMENTS = [one, one_or_fail, many, many_or_fail]


def an_insert(rows: int = 1) -> Insert:
    return Insert(
        tuple(
            OutboxRow(
                id=UUID(int=number + 1),
                event_type="core.card.paid",
                event_version=1,
                occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
                source="core",
                target=None,
                workspace_id=None,
                payload=f'{{"card": "{CANARY}"}}',
                idempotency_key=f"{CANARY}-{number}",
                trace_context=None,
            )
            for number in range(rows)
        ),
        Stamp("outbox_gen_1", 1, "event", timedelta(0)),
        ignore_known=False,
    )


def test_every_style_is_tested_here() -> None:
    assert set(get_args(ParameterStyle)) == set(STYLES)


def test_parameters_are_those_of_the_row_then_those_of_the_stamp() -> None:
    assert [*PARAMETERS] == NAMES == [*OutboxRow._fields, *Stamp._fields]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_parameter_has_one_placeholder(statement: Callable[[ParameterStyle], str], style: ParameterStyle) -> None:
    assert Counter(placeholders(style, statement(style))) == Counter(expected_in(style))


@pytest.mark.parametrize("style", STYLES)
def test_the_placeholders_of_one_row_stand_in_the_order_of_the_parameters(style: ParameterStyle) -> None:
    assert placeholders(style, insert_one(style)) == expected_in(style)


@pytest.mark.parametrize("style", STYLES)
def test_the_arrays_and_the_stamp_of_many_rows_stand_in_the_order_of_the_parameters(style: ParameterStyle) -> None:
    stamp, arrays = insert_many(style, ignore_known=True).split(" from unnest(")
    assert placeholders(style, arrays) + placeholders(style, stamp) == expected_in(style)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_styles_differ_in_nothing_but_their_placeholders(statement: Callable[[ParameterStyle], str]) -> None:
    def spelt(found: re.Match[str]) -> str:
        return f"%({NAMES[int(found[1]) - 1]})s"

    by_number = PLACEHOLDERS["dollar"].sub(spelt, statement("dollar"))
    by_name = PLACEHOLDERS["named"].sub(r"%(\1)s", statement("named"))
    as_binary = PLACEHOLDERS["binary"].sub(r"%(\1)s", statement("binary"))
    assert by_number == by_name == as_binary == statement("pyformat")


@pytest.mark.parametrize("statement", STATEMENTS)
def test_sqlalchemy_finds_the_parameters_and_leaves_the_casts(statement: Callable[[ParameterStyle], str]) -> None:
    compiled = text(statement("named")).compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
    assert set(compiled.params) == set(NAMES)
    assert "::jsonb" in str(compiled)


@pytest.mark.parametrize("style", ["pyformat", "binary"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_percent_sign_stands_outside_a_placeholder(
    statement: Callable[[ParameterStyle], str], style: ParameterStyle
) -> None:
    assert "%" not in PLACEHOLDERS[style].sub("", statement(style))


@pytest.mark.parametrize("statement", STATEMENTS)
def test_every_column_of_the_insert_is_named_in_the_order_of_the_parameters(
    statement: Callable[[ParameterStyle], str],
) -> None:
    found = re.match(r"insert into core\.outbox \(([^)]*)\)", statement("named"))
    assert found is not None
    # The delay is what the column next_attempt_at is made of.
    assert found[1].split(", ") == [*NAMES[:-1], "next_attempt_at"]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_database_owns_the_clock(statement: Callable[[ParameterStyle], str]) -> None:
    assert "clock_timestamp() + cast(:delay as interval)" in statement("named")


@pytest.mark.parametrize(
    ("statement", "ignores"), [(one, True), (one_or_fail, False), (many, True), (many_or_fail, False)]
)
def test_a_known_id_is_ignored_only_where_asked(statement: Callable[[ParameterStyle], str], *, ignores: bool) -> None:
    assert statement("named").endswith(" on conflict do nothing") == ignores


def test_the_arrays_of_many_rows_have_the_types_of_their_columns() -> None:
    casts = dict(re.findall(r"cast\(:(\w+) as (\w+)\[\]\)", insert_many("named", ignore_known=True)))
    assert casts == {
        "id": "uuid",
        "event_type": "text",
        "event_version": "integer",
        "occurred_at": "timestamptz",
        "source": "text",
        "target": "text",
        "workspace_id": "uuid",
        "payload": "text",
        "idempotency_key": "text",
        "trace_context": "text",
    }


def test_what_all_rows_share_is_no_array() -> None:
    shared = ("event_type", "workspace_id", "trace_context")
    statement = insert_many("binary", ignore_known=True, shared=shared)
    assert Counter(placeholders("binary", statement)) == Counter(NAMES)
    values, arrays = statement.split(" from unnest(")
    assert [name for name in placeholders("binary", values) if name in shared] == [*shared]
    assert set(shared).isdisjoint(placeholders("binary", arrays))
    assert "cast(%(workspace_id)b as uuid)" in values


def test_psycopg_sends_once_what_all_rows_share() -> None:
    insert = an_insert(rows=3)
    statement, parameters = bulk(insert)
    assert parameters["id"] == [row.id for row in insert.rows]
    assert (parameters["event_type"], parameters["event_version"], parameters["target"]) == ("core.card.paid", 1, None)
    assert b"cast(%(target)b as text)," in statement
    differs = replace(insert, rows=(*insert.rows, insert.rows[0]._replace(target="core")))
    statement, parameters = bulk(differs)
    assert parameters["target"] == [None, None, None, "core"]
    assert b"cast(%(target)b as text[])" in statement


def test_positional_parameters_stand_where_their_numbers_say() -> None:
    backwards = {name: NAMES.index(name) for name in reversed(NAMES)}
    assert positional(backwards) == list(range(14))


def test_positional_parameters_of_one_row_fit_the_statement() -> None:
    insert = an_insert()
    assert positional(insert.single()) == [*insert.rows[0], *insert.stamp]


def test_positional_parameters_of_many_rows_fit_the_statement() -> None:
    insert = an_insert(rows=3)
    columns = [list(column) for column in zip(*insert.rows, strict=True)]
    assert positional(insert.columns()) == [*columns, *insert.stamp]


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_parameter_is_not_sent_as_nothing(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        positional({name: 1 for name in NAMES if name != missing})


# What the server refused


def test_a_unique_violation_is_a_duplicate_event() -> None:
    named = explain("23505", an_insert())
    assert isinstance(named, DuplicateEventError)
    assert named.event_ids == (UUID(int=1),)


@pytest.mark.parametrize("sqlstate", ["42P01", "3F000", "42703"])
def test_a_missing_table_schema_or_column_means_migrate(sqlstate: str) -> None:
    named = explain(sqlstate, an_insert())
    assert isinstance(named, ConfigurationError)
    assert "spectral migrate up" in str(named)


def test_a_missing_privilege_says_what_to_grant() -> None:
    named = explain("42501", an_insert())
    assert type(named) is PublishError
    assert "grant spectral_publisher" in str(named)


@pytest.mark.parametrize("sqlstate", [None, "", "23514", "23503", "40001", "42883", "57014", "08006", "23505 "])
def test_what_is_not_ours_to_explain_is_not_explained(sqlstate: str | None) -> None:
    assert explain(sqlstate, an_insert()) is None


@pytest.mark.parametrize("sqlstate", ["23505", "42P01", "3F000", "42703", "42501"])
def test_no_explanation_shows_what_the_row_held(sqlstate: str) -> None:
    assert CANARY not in str(explain(sqlstate, an_insert(rows=2)))


def test_what_has_a_name_is_raised_by_it_without_the_drivers_error() -> None:
    driver_error = psycopg.errors.UniqueViolation(f"Key (idempotency_key)=({CANARY}) already exists.")
    with pytest.raises(DuplicateEventError) as caught:
        refuse(driver_error, driver_error.sqlstate, an_insert())
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_what_has_no_name_is_raised_as_the_driver_raised_it() -> None:
    driver_error = psycopg.errors.DeadlockDetected("deadlock detected")
    with pytest.raises(psycopg.errors.DeadlockDetected) as caught:
        refuse(driver_error, driver_error.sqlstate, an_insert())
    assert caught.value is driver_error


def test_the_refusal_outside_a_transaction_says_what_was_found_and_what_to_do() -> None:
    refusal = not_in_transaction("this connection is in no transaction")
    assert isinstance(refusal, NotInTransactionError)
    assert str(refusal).startswith("this connection is in no transaction: ")
    assert "PublishSettings(require_transaction=False)" in str(refusal)
