"""A handler's error is kept without what it quotes of the payload, however it quotes it."""

from __future__ import annotations

import json
import string
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from psycopg import errors
from pydantic import BaseModel, ConfigDict, ValidationError

from spectral.core.events.conceal import MARK, MAX_PAYLOAD, MAX_TEXT, MIN_STRETCH, conceal
from spectral.core.events.describe import MAX_ERROR_BYTES, WITHHELD, describe, describe_many

CANARY = "canary8472"
PAYLOAD: dict[str, Any] = {
    "customer_reference": CANARY,
    "email": "Ada@example.org",
    "account": 4711_0815,
    "balance": 1234.5,
    "note": "The patient complained of a headache on Tuesday, and again on Friday.",
    "quoted": 'it\'s "said"\nin two lines',
    "address": {"street": "Straße 7", "zip": "10115", "flags": [True, None, 7]},
    "scores": {"grace.hopper@example.org": 3},
}
STORED = json.dumps(PAYLOAD, ensure_ascii=False)


class Address(BaseModel):
    """As a consumer sees it."""

    model_config = ConfigDict(extra="forbid")

    street: str
    zip: str
    flags: list[Any]


QUOTES = {
    "the payload, as Python prints it": (f"cannot handle {PAYLOAD}", "cannot handle "),
    "the payload, as JSON": (f"cannot handle {json.dumps(PAYLOAD)}", "cannot handle "),
    "the payload, as compact JSON": (f"cannot {json.dumps(PAYLOAD, separators=(',', ':'))}", "cannot "),
    "the payload, over several lines": (f"cannot {json.dumps(PAYLOAD, indent=2)}", "cannot "),
    "a part of it": (f"no such place: {PAYLOAD['address']}", "no such place"),
    "a model of a part of it": (f"no such place: {Address(**PAYLOAD['address'])!r}", "no such place"),
    "a value": (f"nobody is called {CANARY}", "nobody is called"),
    "a value inside a word": (f"file x{CANARY}y.txt is missing", "is missing"),
    "a value in other letters": ("no account of ada@EXAMPLE.org", "no account of"),
    "a value in a URL": ("GET https://shop.example/?who=Ada%40example.org: 500", ": 500"),
    "a number": ("account 47110815 is closed", "is closed"),
    "a number with a point": ("1234.5 is too much", "is too much"),
    "the middle of a text": ("cannot index 'patient complained of a head...'", "cannot index"),
    "a text with escapes": (f"cannot read: {PAYLOAD['quoted']!r}", "cannot read: "),
    "a text in two lines": (f"cannot read {PAYLOAD['quoted']}", "cannot read"),
    "a text in ASCII": (f"cannot find {PAYLOAD['address']['street']!a}", "cannot find"),
    "a key that is no name": ("no player grace.hopper@example.org", "no player"),
}
TELLTALES = (CANARY, "example.org", "example%", "47110815", "1234.5", "patient", "said", "two lines", "10115", "Stra")


@pytest.mark.parametrize("kind", QUOTES)
def test_what_is_quoted_of_the_payload_is_not_kept(kind: str) -> None:
    message, kept = QUOTES[kind]
    text = describe(RuntimeError(message), "platform.project", STORED)
    assert text.startswith("RuntimeError: platform.project: ")
    assert MARK in text
    assert kept in text
    assert not [each for each in TELLTALES if each.lower() in text.lower()]


@pytest.mark.parametrize("message", ["customer_reference is too long", "no 'address.street'", "KeyError: 'scores'"])
def test_names_of_fields_stay(message: str) -> None:
    assert describe(RuntimeError(message), payload=STORED) == f"RuntimeError: {message}"


def test_a_message_of_its_own_stays() -> None:
    message = "the index did not answer within 30 s (attempt 2 of 5)"
    assert describe(TimeoutError(message), "platform.project", STORED) == f"TimeoutError: platform.project: {message}"


def test_without_a_payload_nothing_is_looked_for() -> None:
    assert describe(RuntimeError("nobody is called Ada")) == "RuntimeError: nobody is called Ada"


class RefusedError(errors.UniqueViolation):
    """As the server would refuse it."""

    class diag:  # noqa: N801  the driver's name
        """What the server says of it."""

        constraint_name = "people_name_key"


class WrappedError(Exception):
    """As SQLAlchemy would raise it."""

    orig = RefusedError()


@pytest.mark.parametrize("kind", ["plain", "orig", "cause"])
def test_class_handler_state_and_constraint_stay_whatever_words_the_payload_has(kind: str) -> None:
    message = 'duplicate key value violates unique constraint "people_name_key"\nDETAIL: Key (name)=(x)'
    error: Exception = {"plain": RefusedError, "orig": WrappedError, "cause": RuntimeError}[kind](message)
    error.__cause__ = None if kind == "plain" else RefusedError(message)
    name = type(error).__name__
    payload = json.dumps({"kind": "people", "handler": "platform.project", "class": name, "word": "violates"})
    text = describe(error, "platform.project", payload)
    assert text.startswith(f"{name}: platform.project: duplicate key value [payload] unique constraint ")
    assert '"people_name_key"' in text
    assert kind == "cause" or text.endswith(" (23505)")


def test_a_key_that_a_strict_model_refuses_is_not_kept_if_it_is_no_name() -> None:
    payload = {"street": "x", "zip": "x", "flags": [], "ada@example.org": 1}
    with pytest.raises(ValidationError) as refused:
        Address.model_validate(payload)
    text = describe(refused.value, "platform.project", json.dumps(payload))
    assert text == "ValidationError: platform.project: 1 of Address: [payload]: extra_forbidden"


def test_what_sqlalchemy_adds_is_not_kept() -> None:
    message = "(psycopg.OperationalError) the connection is lost\n[SQL: insert into x]\n[parameters: {'a': 'secret'}]"
    text = describe(RuntimeError(message))
    assert text == "RuntimeError: (psycopg.OperationalError) the connection is lost"


def test_of_several_errors_none_is_kept_with_the_payload() -> None:
    failures = [("platform.a", RuntimeError(f"no {CANARY}")), ("platform.b", KeyError(CANARY))]
    assert describe_many(failures, STORED) == "RuntimeError: platform.a: no [payload] (also: platform.b KeyError)"
    group = ExceptionGroup(f"all of {CANARY}", [RuntimeError(f"no {CANARY}"), KeyError(CANARY)])
    assert CANARY not in describe(group, "platform.a", STORED)


@pytest.mark.parametrize("payload", ["", "{", "9" * 5_000, '{"a": ' + "9" * 5_000 + "}", "[" * 10_000, "null", '"x"'])
def test_a_payload_that_nobody_can_read_breaks_nothing(payload: str) -> None:
    assert describe(RuntimeError("away"), "platform.project", payload) == "RuntimeError: platform.project: away"


# properties

_unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_payloads = st.dictionaries(
    st.text(min_size=1),
    st.recursive(_leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)),
    max_size=5,
)
_printed = st.text(st.characters(exclude_categories=("C", "Z")), min_size=4, max_size=40)


def _fragments(text: str) -> list[str]:
    """What is left of a message beside the marks."""
    return text.removeprefix("RuntimeError: ").removesuffix("...").split(MARK)


@_unhurried
@given(st.lists(_printed, min_size=1, max_size=6), st.data())
def test_no_text_of_four_letters_and_more_survives(values: list[str], data: st.DataObject) -> None:
    between = st.text(max_size=10)
    message = "".join(data.draw(between) + value for value in values) + data.draw(between)
    text = describe(RuntimeError(message), payload=json.dumps({"values": values}))
    assert not [value for value in values for fragment in _fragments(text) if value in fragment]


@_unhurried
@given(st.integers(min_value=1_000), st.text(string.ascii_letters + " "))
def test_no_number_of_four_digits_and_more_survives(number: int, around: str) -> None:
    text = describe(RuntimeError(f"{around}{number}{around}"), payload=json.dumps({"n": number}))
    assert str(number) not in text


@_unhurried
@given(payload=_payloads, before=st.text(), as_json=st.booleans())
def test_a_payload_that_is_printed_leaves_no_stretch_of_itself(
    payload: dict[str, Any], before: str, *, as_json: bool
) -> None:
    printed = json.dumps(payload) if as_json else repr(payload)
    text = describe(RuntimeError(f"{before} {printed}"), "platform.project", json.dumps(payload))
    assert len(text.encode()) <= MAX_ERROR_BYTES
    values = [
        each for each in payload.values() if isinstance(each, str) and each.isalnum() and len(each) >= MIN_STRETCH
    ]
    assert not [each for each in values for fragment in _fragments(text) if each in fragment]


@_unhurried
@given(st.text(), st.text() | _payloads.map(json.dumps), st.none() | st.text(min_size=1, max_size=3))
def test_concealing_never_fails_and_adds_nothing_but_marks(text: str, payload: str, keep: str | None) -> None:
    concealed = conceal(text, payload, keep)
    assume(MARK not in text)
    rest = text
    for fragment in concealed.split(MARK):
        assert fragment in rest
        rest = rest[rest.index(fragment) + len(fragment) :]


# bounds


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"v": [f"{number:05x}" for number in range(1_300)]}, "away"),
        ({"v": [f"{number:05x}" for number in range(1_300)]}, "".join(f"{number:05x} " for number in range(2_700))),
        ({"v": ["a" * length for length in range(4, 140)]}, "a" * 16_000),
        ({"v": "aé\n" * 2_900}, "aé " * 5_000),
        ({"v": ["aaaa" + f"{number:04x}" for number in range(900)]}, "aaaab" * 3_200),
    ],
    ids=["many values", "many quotes", "the same over and over", "one long text", "nearly the same"],
)
def test_the_largest_payloads_that_are_looked_through_are_so_in_bounded_time(
    payload: dict[str, Any], message: str
) -> None:
    stored = json.dumps(payload, ensure_ascii=False)
    assert 0.8 * MAX_PAYLOAD < len(stored) <= MAX_PAYLOAD
    began = time.process_time()
    text = describe(RuntimeError(message), "platform.project", stored)
    # Ten milliseconds at most, here; what grows with the square of it would take seconds.
    assert time.process_time() - began < 0.5
    assert WITHHELD not in text
    assert len(text.encode()) <= MAX_ERROR_BYTES


LARGE = json.dumps({**PAYLOAD, "more": [f"{number:05x}" for number in range(25_000)]})


def test_beside_a_larger_payload_a_message_is_withheld_at_once() -> None:
    began = time.process_time()
    text = describe(RuntimeError(f"nobody is called {CANARY}"), "platform.project", LARGE)
    # Well below a millisecond; looked through, it would be a hundred of them on the event loop.
    assert time.process_time() - began < 0.05
    assert text == f"RuntimeError: platform.project: {WITHHELD}"
    assert describe_many([("a", RuntimeError(CANARY)), ("b", KeyError(CANARY))], LARGE) == (
        f"RuntimeError: a: {WITHHELD} (also: b KeyError)"
    )


def test_what_is_withheld_keeps_the_constraint_and_the_servers_code() -> None:
    error = RefusedError(f'duplicate key value violates unique constraint "people_name_key": {CANARY}')
    text = describe(error, "platform.project", LARGE)
    assert text == f'RefusedError: platform.project: {WITHHELD} "people_name_key" (23505)'


def test_where_a_large_payload_is_wrong_is_told_without_keys_that_are_no_names() -> None:
    with pytest.raises(ValidationError) as refused:
        Address.model_validate({"street": "x", "zip": 1, "flags": [], "ada@example.org": 1, "Headache": 1})
    text = describe(refused.value, "platform.project", LARGE)
    assert text == (
        "ValidationError: platform.project: 3 of Address: zip: string_type; [payload]: extra_forbidden;"
        " [payload]: extra_forbidden"
    )


@pytest.mark.parametrize("keep", [None, "people_name_key"])
def test_of_a_long_message_no_value_is_kept_by_half(keep: str | None) -> None:
    for missing in range(1, len(CANARY)):
        message = f"{keep or ''}{'- ' * MAX_TEXT}"[: MAX_TEXT - len(CANARY) + missing] + CANARY
        text = conceal(message + " and more", json.dumps({"v": CANARY}), keep)
        assert text.startswith(keep or "- - ")
        assert text.endswith("...")
        assert "can" not in text.lower()


def test_a_long_message_is_shown_up_to_its_cut() -> None:
    text = conceal("it is late, " * 1_000, '{"v": "canary"}')
    assert text.startswith("it is late, it is late")
    assert MAX_TEXT - 100 < len(text) <= MAX_TEXT
