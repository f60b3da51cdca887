"""What a payload may hold: what is accepted arrives as it was, what the table would refuse is refused by name."""

from __future__ import annotations

import enum
import json
import traceback
from collections import OrderedDict, UserDict
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spectral.core.events.failure import PayloadError, PayloadNotJsonError, PayloadTooDeepError, PayloadTooLargeError
from spectral.core.events.payload import encode_payload

LIMIT = 262_144
NUL_ESCAPE = "\\u0000"
"""Six characters, none of them NUL."""

storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable_text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(storable_text, inner, max_size=5),
    max_leaves=20,
)
payloads = st.dictionaries(storable_text, json_values, max_size=5)


def nested(depth: int) -> dict[str, Any]:
    """A payload of exactly this many levels, dictionaries and lists in turn; the payload itself is the first."""
    value: Any = None
    for level in range(depth, 1, -1):
        value = [value] if level % 2 == 0 else {"k": value}
    return {"k": value} if depth > 1 else {}


def padded(payload: dict[str, Any], size: int) -> dict[str, Any]:
    """The payload filled up with text until it has this size as jsonb prints it, if only ASCII was in it."""
    missing = size - len(json.dumps(payload | {"pad": ""}))
    return payload | {"pad": "x" * missing}


# What is accepted


@given(payloads)
@example({})
@example({"": ""})
@example({"a": -0.0, "b": 5e-324, "c": 1.7976931348623157e308})
@settings(deadline=None)
def test_what_is_accepted_is_read_back_as_it_was(payload: dict[str, Any]) -> None:
    assert json.loads(encode_payload(payload)) == payload


@given(payloads)
@settings(deadline=None, max_examples=30)
def test_what_is_accepted_is_text_postgres_can_store(payload: dict[str, Any]) -> None:
    text = encode_payload(payload)
    assert "\x00" not in text
    assert len(text.encode()) <= LIMIT


def test_letters_beyond_ascii_are_written_as_they_are() -> None:
    assert encode_payload({"name": "Müßig 東京 😀"}) == '{"name": "Müßig 東京 😀"}'


def test_tuples_and_named_tuples_are_lists() -> None:
    class Point(NamedTuple):
        x: int
        y: int

    assert encode_payload({"at": Point(1, 2), "of": (3, 4)}) == '{"at": [1, 2], "of": [3, 4]}'


def test_an_ordered_dictionary_is_an_object() -> None:
    assert encode_payload(OrderedDict(b=1, a=OrderedDict(c=2))) == '{"b": 1, "a": {"c": 2}}'


def test_members_of_text_and_integer_enums_are_their_values() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    class Size(enum.IntEnum):
        LARGE = 3

    assert encode_payload({"colour": Colour.RED, "size": Size.LARGE}) == '{"colour": "red", "size": 3}'


@pytest.mark.parametrize("pad", [0, 10_000], ids=["small", "large"])
@pytest.mark.parametrize("text", [NUL_ESCAPE, f"a{NUL_ESCAPE}b", "\\" + NUL_ESCAPE, "\\\\u0000", "\\ud800"])
def test_text_that_only_looks_like_an_escape_is_accepted(text: str, pad: int) -> None:
    payload = {"text": text, text: [text], "pad": "x" * pad}
    assert json.loads(encode_payload(payload)) == payload


def test_brackets_in_text_are_not_levels() -> None:
    payload = {"text": "[{" * 500}
    assert json.loads(encode_payload(payload)) == payload


# What is not JSON


class Opaque:
    """An object nobody taught to be JSON."""


NOT_JSON: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus-infinity": float("-inf"),
    "bytes": b"text",
    "bytearray": bytearray(b"text"),
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "uuid": UUID(int=1),
    "decimal": Decimal("1.5"),
    "set": {1},
    "frozenset": frozenset({1}),
    "generator": iter([1]),
    "complex": 1j,
    "object": Opaque(),
    "class": Opaque,
    "mapping-proxy": MappingProxyType({"a": 1}),
    "user-dict": UserDict({"a": 1}),
    "nul": "a\x00b",
    "only-nul": "\x00",
    "nul-and-escape": NUL_ESCAPE + "\x00",
    "high-surrogate": "a\ud800b",
    "low-surrogate": "\udfff",
    "surrogates-in-wrong-order": "\udc00\ud800",
    "surrogate-pair-in-two-halves": "\ud83d\ude00",
    "integer-key": {1: "a"},
    "boolean-key": {True: "a"},
    "null-key": {None: "a"},
    "float-key": {1.5: "a"},
    "nan-key": {float("nan"): "a"},
    "tuple-key": {(1, 2): "a"},
    "bytes-key": {b"a": "a"},
    "nul-key": {"a\x00": "a"},
    "surrogate-key": {"a\ud800": "a"},
    "mixed-keys": {"a": 1, 2: "b"},
}
PLACES: dict[str, Any] = {
    "at-the-top": lambda bad: {"k": bad},
    "in-a-list": lambda bad: {"k": [1, [bad]]},
    "in-an-object": lambda bad: {"k": {"k": {"k": bad}}},
    "in-a-tuple": lambda bad: {"k": (1, bad)},
    "in-a-large-payload": lambda bad: {"pad": "x" * 20_000, "k": [{"k": bad}]},
}


def is_refused(payload: dict[str, Any]) -> bool:
    try:
        encode_payload(payload)
    except PayloadNotJsonError:
        return True
    return False


@pytest.mark.parametrize("kind", NOT_JSON)
def test_what_is_not_json_is_refused_wherever_it_stands(kind: str) -> None:
    accepted = [place for place, put in PLACES.items() if not is_refused(put(NOT_JSON[kind]))]
    assert accepted == []


@pytest.mark.parametrize("key", [1, True, None, 1.5, (1, 2), "a\x00", "a\ud800"], ids=repr)
def test_a_key_that_is_no_storable_text_is_refused_at_the_top(key: Any) -> None:  # noqa: ANN401  the point
    with pytest.raises(PayloadNotJsonError, match="key"):
        encode_payload({key: 1})


@given(payloads, storable_text, st.characters(categories=["Cs"]) | st.just("\x00"), storable_text)
@settings(deadline=None, max_examples=40)
def test_one_character_postgres_cannot_store_refuses_the_payload(
    payload: dict[str, Any], before: str, bad: str, after: str
) -> None:
    with pytest.raises(PayloadNotJsonError):
        encode_payload({"rest": payload, "text": before + bad + after})


def test_the_place_of_what_is_refused_is_named() -> None:
    with pytest.raises(PayloadNotJsonError, match=r"^payload\.orders\[1\]\.total is a Decimal.*model_dump"):
        encode_payload({"orders": [{"total": 1}, {"total": Decimal(2)}]})


def test_a_very_long_key_is_not_repeated_in_full() -> None:
    with pytest.raises(PayloadNotJsonError) as caught:
        encode_payload({"k" * 10_000: b""})
    assert len(str(caught.value)) < 300


# Integers


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("pad", [0, 10_000], ids=["small", "large"])
def test_an_integer_of_4000_digits_is_accepted(sign: int, pad: int) -> None:
    payload = {"n": sign * (10**4_000 - 1), "pad": "x" * pad}
    assert json.loads(encode_payload(payload)) == payload


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("digits", [4_001, 4_050, 4_080, 4_100, 4_300, 4_301, 10_000])
@pytest.mark.parametrize("pad", [0, 10_000], ids=["small", "large"])
def test_an_integer_of_more_than_4000_digits_is_refused(sign: int, digits: int, pad: int) -> None:
    with pytest.raises(PayloadNotJsonError, match="more than 4000 digits"):
        encode_payload({"n": sign * 10 ** (digits - 1), "pad": "x" * pad})


# Depth


@pytest.mark.parametrize("beside", [{}, {"pad": "x" * 10_000}, {"wide": [[], {}] * 40}], ids=["bare", "large", "wide"])
@pytest.mark.parametrize("depth", [1, 2, 63, 64])
def test_up_to_64_levels_are_accepted(depth: int, beside: dict[str, Any]) -> None:
    payload = nested(depth) | beside
    assert json.loads(encode_payload(payload)) == payload


@pytest.mark.parametrize("depth", [65, 66, 500, 900, 5_000, 100_000])
def test_more_than_64_levels_are_refused(depth: int) -> None:
    with pytest.raises(PayloadTooDeepError, match="deeper than 64"):
        encode_payload(nested(depth))


@pytest.mark.parametrize("empty", [{}, [], ()], ids=repr)
def test_an_empty_container_is_a_level_too(empty: object) -> None:
    value: Any = empty
    for _ in range(62):
        value = [value]
    assert encode_payload({"k": value})
    with pytest.raises(PayloadTooDeepError):
        encode_payload({"k": [value]})


def test_many_containers_side_by_side_are_not_deep() -> None:
    payload: dict[str, Any] = {"k": [[{}] for _ in range(1_000)]}
    assert json.loads(encode_payload(payload)) == payload


def test_depth_is_that_of_the_deepest_branch() -> None:
    with pytest.raises(PayloadTooDeepError):
        encode_payload({"shallow": list(range(100)), "deep": nested(64)})


def circle_of_dictionaries() -> dict[str, Any]:
    payload: dict[str, Any] = {}
    payload["self"] = payload
    return payload


def circle_of_lists() -> dict[str, Any]:
    members: list[Any] = []
    members.extend([members] * 3)
    return {"members": members}


def circle_of_both() -> dict[str, Any]:
    payload: dict[str, Any] = {"k": []}
    payload["k"].append({"k": payload})
    return payload


@pytest.mark.parametrize("circle", [circle_of_dictionaries, circle_of_lists, circle_of_both])
def test_a_payload_that_contains_itself_is_refused(circle: Any) -> None:  # noqa: ANN401  a function without arguments
    with pytest.raises(PayloadError):
        encode_payload(circle())


def test_one_list_in_two_places_is_no_circle() -> None:
    shared = [1, 2]
    assert encode_payload({"a": shared, "b": shared}) == '{"a": [1, 2], "b": [1, 2]}'


# Size


def test_a_payload_of_exactly_the_limit_is_accepted() -> None:
    assert len(encode_payload(padded({}, LIMIT)).encode()) == LIMIT


def test_a_payload_of_one_byte_more_is_refused() -> None:
    with pytest.raises(
        PayloadTooLargeError, match=r"262145 bytes serialised, 262144 are allowed; store the large part"
    ):
        encode_payload(padded({}, LIMIT + 1))


@pytest.mark.parametrize(
    ("character", "size"),
    [("é", 2), ("東", 3), ("😀", 4), ('"', 2), ("\\", 2), ("\n", 2), ("\x01", 6), ("\x1f", 6), ("\x7f", 1), ("/", 1)],
    ids=repr,
)
def test_size_is_counted_in_bytes_as_jsonb_prints_them(character: str, size: int) -> None:
    payload = {"k": character * 1_000}
    room = LIMIT - len('{"k": "", "pad": ""}') - 1_000 * size
    assert encode_payload(payload | {"pad": "x" * room})
    with pytest.raises(PayloadTooLargeError, match="262145 bytes"):
        encode_payload(payload | {"pad": "x" * (room + 1)})


def test_the_spaces_jsonb_prints_are_counted() -> None:
    # '{"k": [' and ']}' around 87,379 times '1, ', the last without comma and space: 262,144 bytes.
    assert len(encode_payload({"k": [1] * 87_379})) == 7 + 3 * 87_379 - 2 + 2
    with pytest.raises(PayloadTooLargeError):
        encode_payload({"k": [1] * 87_380})


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (1e308, 309),  # 1 and 308 zeros
        (-1e308, 310),
        (1.7976931348623157e308, 309),
        (1e22, 23),
        (1e16, 17),
        (1e-7, 9),  # 0.0000001
        (-1e-7, 10),
        (1.5e-7, 10),  # 0.00000015
        (5e-324, 326),
        (123456789.5, 11),
        (0.0001, 6),
        (1.0, 3),
    ],
)
def test_numbers_are_counted_as_jsonb_prints_them(number: float, printed: int) -> None:
    payload = {"k": [number] * 500}
    # 500 numbers with 499 times comma and space between them.
    room = LIMIT - len('{"k": [], "pad": ""}') - 500 * printed - 499 * 2
    assert encode_payload(payload | {"pad": "x" * room})
    with pytest.raises(PayloadTooLargeError, match="262145 bytes"):
        encode_payload(payload | {"pad": "x" * (room + 1)})


def test_few_bytes_of_python_may_be_too_many_of_jsonb() -> None:
    # 311 bytes for each as jsonb prints it, 7 as Python does.
    assert encode_payload({"k": [1e308] * 842})
    with pytest.raises(PayloadTooLargeError):
        encode_payload({"k": [1e308] * 843})


# What a refusal says

CANARY = "canary-4111"


class CanaryError(Exception):
    """Named so that a repr would give it away."""

    def __repr__(self) -> str:
        return CANARY


def canary_in_a_circle() -> dict[str, Any]:
    payload: dict[str, Any] = {"secret": CANARY}
    payload["self"] = payload
    return payload


WITH_CANARY: dict[str, Any] = {
    "nul": {"k": f"{CANARY}\x00"},
    "surrogate": {"k": f"{CANARY}\ud800"},
    "surrogate-elsewhere": {"k": CANARY, "other": "\ud800"},
    "bytes": {"k": CANARY.encode()},
    "object": {"k": CanaryError(CANARY)},
    "nan-elsewhere": {"k": CANARY, "other": float("nan")},
    "integer": {"k": CANARY, "other": 10**4_500},
    "non-text-key": {"k": {1: CANARY}},
    "nul-in-key": {"k": {f"{CANARY}\x00": 1}},
    "surrogate-in-key": {"k": {f"{CANARY}\ud800": 1}},
    "bytes-key": {"k": {CANARY.encode(): 1}},
    "too-deep": {"k": [CANARY], "deep": nested(70)},
    "circle": canary_in_a_circle(),
    "too-large": {"k": CANARY * 100_000},
    "decimal": {"k": Decimal("4111.4111"), "other": CANARY},
}


@pytest.mark.parametrize("case", WITH_CANARY)
def test_a_refusal_never_shows_the_values_of_the_payload(case: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode_payload(WITH_CANARY[case])
    printed = "".join(traceback.format_exception(caught.value))
    assert [secret for secret in (CANARY, "4111.4111") if secret in str(caught.value) + printed] == []


@pytest.mark.parametrize("case", WITH_CANARY)
def test_a_refusal_is_short(case: str) -> None:
    with pytest.raises(PayloadError) as caught:
        encode_payload(WITH_CANARY[case])
    assert len(str(caught.value)) < 300
