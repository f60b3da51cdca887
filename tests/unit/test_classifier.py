"""What an error means for its delivery: by SQLSTATE where the server spoke, by type where it did not."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from typing import Final

import asyncpg
import psycopg
import pydantic
import pytest
import sqlalchemy.exc
from django.db import utils as django_errors
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import errors as psycopg_errors
from sqlalchemy.dialects.postgresql.asyncpg import AsyncAdapt_asyncpg_dbapi

from spectral.core.events.failure import (
    DuplicateEventError,
    HandlerTimeoutError,
    NoHandlerError,
    PayloadTooDeepError,
    TerminalHandlerError,
    WorkerLostError,
)
from spectral.core.events.retry import DEFAULT_RETRY_POLICY, RetryPolicy, Verdict, classify, sqlstate_of

TRANSIENT, TERMINAL, RELEASE = Verdict.TRANSIENT, Verdict.TERMINAL, Verdict.RELEASE

# Every class of appendix A of the Postgres manual, in its order.
CLASSES: Final = {
    "00": TRANSIENT,  # successful completion
    "01": TRANSIENT,  # warning
    "02": TRANSIENT,  # no data
    "03": TRANSIENT,  # SQL statement not yet complete
    "08": TRANSIENT,  # connection exception
    "09": TRANSIENT,  # triggered action exception
    "0A": TRANSIENT,  # feature not supported
    "0B": TRANSIENT,  # invalid transaction initiation
    "0F": TRANSIENT,  # locator exception
    "0L": TRANSIENT,  # invalid grantor
    "0P": TRANSIENT,  # invalid role specification
    "0Z": TRANSIENT,  # diagnostics exception
    "10": TRANSIENT,  # XQuery error
    "20": TRANSIENT,  # case not found
    "21": TRANSIENT,  # cardinality violation
    "22": TERMINAL,  # data exception
    "23": TERMINAL,  # integrity constraint violation, but for 23503
    "24": TRANSIENT,  # invalid cursor state
    "25": TRANSIENT,  # invalid transaction state
    "26": TRANSIENT,  # invalid SQL statement name
    "27": TRANSIENT,  # triggered data change violation
    "28": TRANSIENT,  # invalid authorization specification
    "2B": TRANSIENT,  # dependent privilege descriptors still exist
    "2D": TRANSIENT,  # invalid transaction termination
    "2F": TRANSIENT,  # SQL routine exception
    "34": TRANSIENT,  # invalid cursor name
    "38": TRANSIENT,  # external routine exception
    "39": TRANSIENT,  # external routine invocation exception
    "3B": TRANSIENT,  # savepoint exception
    "3D": TRANSIENT,  # invalid catalog name
    "3F": TRANSIENT,  # invalid schema name
    "40": TRANSIENT,  # transaction rollback
    "42": TERMINAL,  # syntax error or access rule violation
    "44": TRANSIENT,  # with check option violation
    "53": TRANSIENT,  # insufficient resources
    "54": TRANSIENT,  # program limit exceeded
    "55": TRANSIENT,  # object not in prerequisite state
    "57": TRANSIENT,  # operator intervention
    "58": TRANSIENT,  # system error
    "72": TRANSIENT,  # snapshot failure
    "F0": TRANSIENT,  # configuration file error
    "HV": TRANSIENT,  # foreign data wrapper error
    "P0": TRANSIENT,  # PL/pgSQL error
    "XX": TRANSIENT,  # internal error
}

# The ones the rules name, and their neighbours.
STATES: Final = {
    "08000": TRANSIENT,  # connection_exception
    "08003": TRANSIENT,  # connection_does_not_exist
    "08006": TRANSIENT,  # connection_failure
    "08P01": TRANSIENT,  # protocol_violation
    "22001": TERMINAL,  # string_data_right_truncation
    "22003": TERMINAL,  # numeric_value_out_of_range
    "22012": TERMINAL,  # division_by_zero
    "22P02": TERMINAL,  # invalid_text_representation
    "22P05": TERMINAL,  # untranslatable_character
    "23000": TERMINAL,  # integrity_constraint_violation
    "23001": TERMINAL,  # restrict_violation
    "23502": TERMINAL,  # not_null_violation
    "23503": TRANSIENT,  # foreign_key_violation: the parent may still arrive
    "23505": TERMINAL,  # unique_violation
    "23514": TERMINAL,  # check_violation
    "23P01": TERMINAL,  # exclusion_violation
    "25006": TRANSIENT,  # read_only_sql_transaction: seen after a failover
    "40001": TRANSIENT,  # serialization_failure
    "40002": TRANSIENT,  # transaction_integrity_constraint_violation
    "40P01": TRANSIENT,  # deadlock_detected
    "42501": TERMINAL,  # insufficient_privilege
    "42601": TERMINAL,  # syntax_error
    "42703": TERMINAL,  # undefined_column
    "42P01": TERMINAL,  # undefined_table
    "53100": TRANSIENT,  # disk_full
    "53200": TRANSIENT,  # out_of_memory
    "53300": TRANSIENT,  # too_many_connections
    "55006": TRANSIENT,  # object_in_use
    "55P03": TRANSIENT,  # lock_not_available
    "57014": TRANSIENT,  # query_canceled
    "57P01": TRANSIENT,  # admin_shutdown
    "57P02": TRANSIENT,  # crash_shutdown
    "57P03": TRANSIENT,  # cannot_connect_now
    "57P05": TRANSIENT,  # idle_session_timeout
    "58030": TRANSIENT,  # io_error
    "P0001": TRANSIENT,  # raise_exception
    "XX000": TRANSIENT,  # internal_error
}


def expected(state: str) -> Verdict:
    return TRANSIENT if state == "23503" else CLASSES.get(state[:2], TRANSIENT)


class ServerError(Exception):
    """Whatever carries an SQLSTATE of its own."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__("the server spoke")
        self.sqlstate = sqlstate


class Psycopg2LikeError(Exception):
    """psycopg2 sets `pgcode` in C and lets nobody else do it."""

    def __init__(self, pgcode: str | None) -> None:
        super().__init__("the server spoke")
        self.pgcode = pgcode


class IntegrityError(Exception):
    """An integrity error of a driver nobody has heard of."""


class OperationalError(Exception):
    """An operational error of a driver nobody has heard of."""


def raised(error: BaseException, *, cause: BaseException | None = None) -> BaseException:
    error.__cause__ = cause
    return error


def by_sqlalchemy(state: str) -> sqlalchemy.exc.DBAPIError:
    """As SQLAlchemy raises what psycopg raised."""
    return sqlalchemy.exc.DBAPIError("insert ...", {}, psycopg_errors.lookup(state)("refused"))


def by_django(state: str) -> BaseException:
    """As Django raises what psycopg raised."""
    return raised(django_errors.DatabaseError("refused"), cause=psycopg_errors.lookup(state)("refused"))


def validation_error() -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("many")
    return caught.value


def test_the_table_names_every_class_the_drivers_know() -> None:
    by_psycopg = {code[:2] for code in psycopg_errors._sqlcodes if re.fullmatch("[0-9A-Z]{5}", code)}
    by_asyncpg = {kind.sqlstate[:2] for kind in asyncpg_errors()}
    assert (by_psycopg | by_asyncpg) - CLASSES.keys() == set()


@pytest.mark.parametrize("sqlclass", CLASSES)
def test_every_class_of_sqlstates_has_its_verdict(sqlclass: str) -> None:
    assert classify(ServerError(f"{sqlclass}000")) is CLASSES[sqlclass]


@pytest.mark.parametrize("state", STATES)
def test_a_psycopg_error_is_judged_by_its_sqlstate(state: str) -> None:
    assert classify(psycopg_errors.lookup(state)("refused")) is STATES[state]


def test_every_error_psycopg_knows_is_judged_by_the_table() -> None:
    codes = sorted(code for code in psycopg_errors._sqlcodes if re.fullmatch("[0-9A-Z]{5}", code))
    verdicts = {code: classify(psycopg_errors.lookup(code)()) for code in codes}
    assert verdicts == {code: expected(code) for code in codes}


def asyncpg_errors() -> list[type[asyncpg.PostgresError]]:
    kinds = vars(asyncpg.exceptions).values()
    return [
        kind
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, asyncpg.PostgresError) and isinstance(kind.sqlstate, str)
    ]


def test_every_error_asyncpg_knows_is_judged_by_the_table() -> None:
    kinds = asyncpg_errors()
    assert len(kinds) > 200
    wrong = {kind.__name__ for kind in kinds if classify(kind("refused")) is not expected(kind.sqlstate)}
    assert wrong == set()


@given(st.text("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=5, max_size=5))
@settings(deadline=None)
def test_any_sqlstate_even_one_of_the_users_own_is_judged_by_the_table(state: str) -> None:
    assert classify(ServerError(state)) is expected(state)


def test_an_error_with_a_pgcode_is_judged_by_it() -> None:
    assert {state: classify(Psycopg2LikeError(state)) for state in STATES} == STATES


def test_an_error_wrapped_by_sqlalchemy_is_judged_by_its_sqlstate() -> None:
    assert {state: classify(by_sqlalchemy(state)) for state in STATES} == STATES


def test_a_foreign_key_violation_is_transient_though_sqlalchemy_calls_it_an_integrity_error() -> None:
    missing_parent = psycopg_errors.ForeignKeyViolation("no parent")
    assert classify(sqlalchemy.exc.IntegrityError("insert ...", {}, missing_parent)) is TRANSIENT


def test_a_unique_violation_wrapped_by_sqlalchemy_is_terminal() -> None:
    known = psycopg_errors.UniqueViolation("known")
    assert classify(sqlalchemy.exc.IntegrityError("insert ...", {}, known)) is TERMINAL


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        (asyncpg.UniqueViolationError, TERMINAL),
        (asyncpg.ForeignKeyViolationError, TRANSIENT),
        (asyncpg.DeadlockDetectedError, TRANSIENT),
    ],
)
def test_asyncpg_below_sqlalchemy_is_judged_by_its_sqlstate(
    kind: type[asyncpg.PostgresError], verdict: Verdict
) -> None:
    adapted = AsyncAdapt_asyncpg_dbapi.IntegrityError("refused", kind("refused"))  # type: ignore[no-untyped-call]
    assert classify(sqlalchemy.exc.IntegrityError("insert ...", {}, adapted)) is verdict


def test_an_error_wrapped_by_django_is_judged_by_its_sqlstate() -> None:
    assert {state: classify(by_django(state)) for state in STATES} == STATES


def test_a_foreign_key_violation_is_transient_though_django_calls_it_an_integrity_error() -> None:
    missing_parent = psycopg_errors.ForeignKeyViolation("no parent")
    assert classify(raised(django_errors.IntegrityError("refused"), cause=missing_parent)) is TRANSIENT


def test_an_error_wrapped_twice_is_judged_by_its_sqlstate() -> None:
    inner = raised(django_errors.IntegrityError("refused"), cause=psycopg_errors.SerializationFailure("again"))
    assert classify(raised(django_errors.IntegrityError("refused"), cause=inner)) is TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("connection refused"),
        sqlite3.OperationalError("database is locked"),
        django_errors.OperationalError("connection refused"),
        sqlalchemy.exc.OperationalError("select 1", {}, psycopg.OperationalError("connection refused")),
        Psycopg2LikeError(None),
        OperationalError("gone"),
    ],
    ids=lambda error: type(error).__module__,
)
def test_an_operational_error_without_sqlstate_is_transient(error: BaseException) -> None:
    assert (sqlstate_of(error), classify(error)) == (None, TRANSIENT)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.IntegrityError("broken"),
        sqlite3.IntegrityError("broken"),
        django_errors.IntegrityError("broken"),
        sqlalchemy.exc.IntegrityError("insert ...", {}, sqlite3.IntegrityError("broken")),
        IntegrityError("broken"),
    ],
    ids=lambda error: type(error).__module__,
)
def test_an_integrity_error_without_sqlstate_is_terminal(error: BaseException) -> None:
    assert (sqlstate_of(error), classify(error)) == (None, TERMINAL)


def test_a_pydantic_validation_error_is_terminal() -> None:
    assert classify(validation_error()) is TERMINAL


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
        json.JSONDecodeError("Expecting value", "", 0),
        PayloadTooDeepError("too deep"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_value_error_is_terminal(error: BaseException) -> None:
    assert classify(error) is TERMINAL


class OrderGoneError(TerminalHandlerError):
    """A handler's own terminal error."""


@pytest.mark.parametrize("kind", [TerminalHandlerError, OrderGoneError])
def test_a_terminal_handler_error_is_terminal(kind: type[TerminalHandlerError]) -> None:
    assert classify(kind("the order is gone")) is TERMINAL


@pytest.mark.parametrize("cause", [psycopg_errors.DeadlockDetected("again"), ConnectionError("gone")])
def test_a_terminal_handler_error_stays_terminal_whatever_caused_it(cause: BaseException) -> None:
    assert classify(raised(TerminalHandlerError("gave up"), cause=cause)) is TERMINAL


class GaveUpError(TerminalHandlerError):
    """A handler's own terminal error that keeps the driver's at hand, under the name SQLAlchemy made usual."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__("gave up")
        self.orig = orig


def test_a_terminal_handler_error_stays_terminal_whatever_it_carries() -> None:
    assert classify(GaveUpError(psycopg_errors.DeadlockDetected("again"))) is TERMINAL


@pytest.mark.parametrize(
    "kind",
    [ConnectionError, ConnectionResetError, ConnectionRefusedError, ConnectionAbortedError, BrokenPipeError],
)
def test_a_connection_error_is_transient(kind: type[ConnectionError]) -> None:
    assert classify(kind("gone")) is TRANSIENT


@pytest.mark.parametrize("kind", [TimeoutError, asyncio.TimeoutError, HandlerTimeoutError])
def test_a_timeout_is_transient(kind: type[TimeoutError]) -> None:
    assert classify(kind("too long")) is TRANSIENT


class LateAndWrongError(TimeoutError, ValueError):
    """A timeout of a library that makes everything a ValueError."""


def test_a_timeout_that_is_also_a_value_error_is_transient() -> None:
    assert classify(LateAndWrongError("too long")) is TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        Exception("?"),
        RuntimeError("?"),
        KeyError("?"),
        TypeError("?"),
        OSError("?"),
        MemoryError(),
        asyncpg.InterfaceError("?"),
        psycopg.ProgrammingError("?"),
        NoHandlerError("?"),
        WorkerLostError("?"),
        DuplicateEventError([]),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_anything_else_is_transient(error: BaseException) -> None:
    assert classify(error) is TRANSIENT


def test_a_cancellation_is_a_release() -> None:
    assert classify(asyncio.CancelledError()) is RELEASE


def test_a_cancellation_is_a_release_whatever_caused_it() -> None:
    assert classify(raised(asyncio.CancelledError(), cause=ValueError("no"))) is RELEASE


def test_the_cause_of_an_error_that_is_not_a_databases_says_nothing() -> None:
    assert classify(raised(RuntimeError("?"), cause=psycopg_errors.UniqueViolation("known"))) is TRANSIENT


def test_what_was_being_handled_when_an_error_was_raised_says_nothing() -> None:
    error = RuntimeError("?")
    error.__context__ = psycopg_errors.UniqueViolation("known")
    assert classify(error) is TRANSIENT


@pytest.mark.parametrize("nonsense", ["", "2350", "235055", 23505, None, b"23505"])
def test_what_is_no_sqlstate_is_not_taken_for_one(nonsense: object) -> None:
    error = ServerError("23505")
    vars(error)["sqlstate"] = nonsense
    assert sqlstate_of(error) is None


def group(*members: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("several", members)


@pytest.mark.parametrize(
    ("members", "verdict"),
    [
        ([ValueError("no")], TERMINAL),
        ([ConnectionError("gone")], TRANSIENT),
        ([asyncio.CancelledError()], RELEASE),
        ([asyncio.CancelledError(), asyncio.CancelledError()], RELEASE),
        ([asyncio.CancelledError(), ConnectionError("gone")], TRANSIENT),
        ([asyncio.CancelledError(), ValueError("no")], TERMINAL),
        ([ConnectionError("gone"), ValueError("no")], TERMINAL),
        ([ValueError("no"), ConnectionError("gone"), asyncio.CancelledError()], TERMINAL),
        ([psycopg_errors.DeadlockDetected("again"), psycopg_errors.UniqueViolation("known")], TERMINAL),
        ([group(group(asyncio.CancelledError())), group(KeyError("?"))], TRANSIENT),
        ([group(group(group(validation_error()))), ConnectionError("gone")], TERMINAL),
        ([group(group(group(asyncio.CancelledError())))], RELEASE),
    ],
)
def test_a_group_is_as_bad_as_its_worst_member(members: list[BaseException], verdict: Verdict) -> None:
    assert classify(group(*members)) is verdict


leaves = st.sampled_from([ValueError("no"), ConnectionError("gone"), asyncio.CancelledError()])
trees = st.recursive(leaves, lambda members: st.lists(members, min_size=1, max_size=4).map(lambda m: group(*m)))


def leaves_of(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in leaves_of(member)]
    return [error]


@given(trees)
@settings(deadline=None)
def test_nesting_groups_does_not_change_the_verdict(tree: BaseException) -> None:
    severity = [RELEASE, TRANSIENT, TERMINAL]
    assert classify(tree) is max((classify(leaf) for leaf in leaves_of(tree)), key=severity.index)


def test_a_cycle_of_causes_does_not_hang() -> None:
    one, other = django_errors.DatabaseError("one"), django_errors.DatabaseError("other")
    one.__cause__, other.__cause__ = other, one
    assert classify(one) is TRANSIENT


def test_an_error_that_caused_itself_does_not_hang() -> None:
    error = django_errors.IntegrityError("one")
    error.__cause__ = error
    assert classify(error) is TERMINAL


def test_a_cycle_of_wrapped_errors_does_not_hang() -> None:
    error = sqlalchemy.exc.DBAPIError("select 1", {}, psycopg.OperationalError("gone"))
    error.orig = error
    assert classify(error) is TRANSIENT


ADDED: Final = RetryPolicy(terminal_errors=(psycopg_errors.DeadlockDetected, KeyError, ConnectionError))


@pytest.mark.parametrize(
    "error",
    [
        KeyError("?"),
        ConnectionResetError("gone"),
        psycopg_errors.DeadlockDetected("again"),
        group(KeyError("?"), asyncio.CancelledError()),
        group(group(psycopg_errors.DeadlockDetected("again")), RuntimeError("?")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_policy_adds_terminal_errors_that_beat_sqlstate_type_and_group(error: BaseException) -> None:
    assert (classify(error, ADDED), classify(error, DEFAULT_RETRY_POLICY)) == (TERMINAL, TRANSIENT)


def test_a_policy_may_make_a_group_itself_terminal() -> None:
    policy = RetryPolicy(terminal_errors=(ExceptionGroup,))
    assert classify(ExceptionGroup("several", [RuntimeError("?")]), policy) is TERMINAL


def test_terminal_errors_of_a_policy_leave_others_alone() -> None:
    verdicts = [classify(error, ADDED) for error in (RuntimeError("?"), ValueError("no"), asyncio.CancelledError())]
    assert verdicts == [TRANSIENT, TERMINAL, RELEASE]
