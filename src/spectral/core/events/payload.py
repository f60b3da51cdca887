"""The payload as text: everything the table and its readers would refuse is refused here, by name, before any SQL."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import Any, Final, TypeAlias, cast

from spectral.core.events.envelope import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, is_storable
from spectral.core.events.failure import (
    PayloadError,
    PayloadNotJsonError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    UndecodablePayloadError,
)

_Container: TypeAlias = "dict[object, object] | list[object] | tuple[object, ...]"
_CONTAINERS: Final = (dict, list, tuple)

MAX_INTEGER_DIGITS: Final = 4_000
"""Python refuses to read longer ones back (its own limit is 4,300)."""

_TOO_LARGE_INTEGER: Final = 10**MAX_INTEGER_DIGITS
_MAX_FLOAT_EXPANSION: Final = 64
"""Postgres prints `1e308`, five characters, as 309."""

_SHOWN_STEPS: Final = 8
_FIELD: Final = re.compile(r"[A-Za-z_$@][A-Za-z0-9_$.:-]{0,63}")
_FIELD_DIGITS: Final = 4
_LONGEST_OF_A_FLOAT: Final = 308  # digits
_LONG_NUMBER: Final = re.compile(rf"\d{{{_LONGEST_OF_A_FLOAT + 1}}}")

# The default separators are the ones jsonb prints with.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


class _Refusal(Exception):  # noqa: N818  never leaves this module
    """Something in the payload is unfit; the way to it is added step by step on the way out, so it costs nothing."""

    def __init__(self, kind: type[PayloadError], complaint: str) -> None:
        super().__init__(complaint)
        self.kind = kind
        self.steps: list[str] = []

    def named(self) -> PayloadError:
        path = "payload" + "".join(reversed(self.steps[-_SHOWN_STEPS:]))
        return self.kind(f"{path} {self}")


def encode_payload(payload: dict[str, Any]) -> str:
    """The payload as JSON text, checked against everything the table and every reader would refuse.

    The size is measured as Postgres will print it (`jsonb::text`), which is what the table's own check measures.

    Raises:
        PayloadNotJsonError: something in it is not JSON, or not storable.
        PayloadTooDeepError: nested deeper than 64.
        PayloadTooLargeError: more than 256 KiB.
    """
    try:
        text = _ENCODER.encode(payload)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError):
        _expansion(payload)
        raise PayloadNotJsonError("the payload cannot be written as JSON") from None
    if size <= MAX_PAYLOAD_BYTES and not _is_plainly_fine(payload, text, size):
        size += _expansion(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadTooLargeError(
            f"the payload is {size} bytes serialised, {MAX_PAYLOAD_BYTES} are allowed; "
            "store the large part elsewhere and publish a reference to it"
        )
    return text


def decode_payload(text: str) -> dict[str, Any]:
    """The payload that this text is.

    Raises:
        UndecodablePayloadError: nobody can read it: a number of thousands of digits, nesting without end, no object.
    """
    try:
        payload: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Not the decoder's message: it may quote the payload.
        raise UndecodablePayloadError(f"the payload cannot be read as JSON ({type(error).__name__})") from None
    if not isinstance(payload, dict):
        raise UndecodablePayloadError(f"the payload is a JSON {type(payload).__name__}, not an object")
    return cast("dict[str, Any]", payload)


def is_field(key: str) -> bool:
    """Whether a key is the name of a field, as far as one can tell: addresses, numbers and ids serve as keys too."""
    return _FIELD.fullmatch(key) is not None and sum(each.isdigit() for each in key) < _FIELD_DIGITS


def has_long_number(text: str) -> bool:
    """Whether there may be a number in it that no float can hold."""
    return len(text) > _LONGEST_OF_A_FLOAT and _LONG_NUMBER.search(text) is not None


def _is_plainly_fine(payload: dict[str, Any], text: str, size: int) -> bool:
    """Whether nothing in the text can be wrong, so that the values need not be looked at one by one.

    Too small for a number that is too long, and for numbers that expand beyond the limit; too few brackets to be
    deep; no NUL; no key that JSON would have turned into a string.
    """
    return (
        size <= MAX_INTEGER_DIGITS
        and size * _MAX_FLOAT_EXPANSION <= MAX_PAYLOAD_BYTES
        and text.count("{") + text.count("[") <= MAX_PAYLOAD_DEPTH
        and "\\u0000" not in text
        and _has_text_keys(cast("_Container", payload))
    )


def _has_text_keys(value: _Container) -> bool:
    """Loops, and no call for a value that holds no others: for most payloads this is all that is left to look at."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return False
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, _CONTAINERS) and not _has_text_keys(cast("_Container", item)):
            return False
    return True


def _expansion(payload: dict[str, Any]) -> int:
    """Look at every value; answer by how many bytes Postgres prints the numbers longer than Python does."""
    try:
        return _check(payload, 1)
    except _Refusal as refusal:
        raise refusal.named() from None


def _check(value: object, depth: int) -> int:
    match value:
        case None | bool():
            return 0
        case str():
            _refuse_unstorable(value)
            return 0
        case int():
            if abs(value) >= _TOO_LARGE_INTEGER:
                raise _Refusal(
                    PayloadNotJsonError,
                    f"is an integer of more than {MAX_INTEGER_DIGITS} digits; publish it as a string",
                )
            return 0
        case float():
            return _float_expansion(value)
        case dict() | list() | tuple():
            if depth > MAX_PAYLOAD_DEPTH:
                raise _Refusal(PayloadTooDeepError, f"is nested deeper than {MAX_PAYLOAD_DEPTH} levels; flatten it")
            return _check_items(cast("_Container", value), depth)
        case _:
            raise _Refusal(
                PayloadNotJsonError,
                f"is a {type(value).__name__}, which is not JSON; "
                "convert it first, for instance with a pydantic model's model_dump(mode='json')",
            )


def _check_items(value: _Container, depth: int) -> int:
    expansion = 0
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in entries:
        if isinstance(value, dict):
            _refuse_key(key)
        try:
            expansion += _check(item, depth + 1)
        except _Refusal as refusal:
            refusal.steps.append(_step(key))
            raise
    return expansion


def _step(key: object) -> str:
    """One step of the way, without what may be a value."""
    if not isinstance(key, str):
        return f"[{key}]"
    return f".{key[:40]}" if is_field(key) else ".*"


def _refuse_key(key: object) -> None:
    if not isinstance(key, str):
        raise _Refusal(PayloadNotJsonError, f"has a key that is a {type(key).__name__}; JSON keys are strings")
    _refuse_unstorable(key, "has a key with")


def _refuse_unstorable(text: str, complaint: str = "contains") -> None:
    if not is_storable(text):
        raise _Refusal(
            PayloadNotJsonError,
            f"{complaint} a NUL or a lone surrogate, which Postgres cannot store; remove it before publishing",
        )


def _float_expansion(value: float) -> int:
    if not math.isfinite(value):
        raise _Refusal(PayloadNotJsonError, f"is {value}, which is not JSON; publish null or a string instead")
    printed = float.__repr__(value)
    # Postgres keeps numbers exact and prints them without an exponent: 1e22 becomes twenty-three digits.
    return len(format(Decimal(printed), "f")) - len(printed) if "e" in printed else 0
