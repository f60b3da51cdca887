"""The payload as text: everything the table and its readers would refuse is refused here, by name, before any SQL."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from spectral.core.events.envelope import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, is_storable
from spectral.core.events.failure import PayloadNotJsonError, PayloadTooDeepError, PayloadTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_Container: TypeAlias = "dict[object, object] | list[object] | tuple[object, ...]"

MAX_INTEGER_DIGITS: Final = 4_000
"""Python refuses to read longer ones back (its own limit is 4,300)."""

_TOO_LARGE_INTEGER: Final = 10**MAX_INTEGER_DIGITS
_MAX_FLOAT_EXPANSION: Final = 64
"""Postgres prints `1e308`, five characters, as 309."""

# The default separators are the ones jsonb prints with.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def encode_payload(payload: Mapping[str, Any]) -> str:
    """The payload as JSON text, checked against everything the table and every reader would refuse.

    The size is measured as Postgres will print it (`jsonb::text`), which is what the table's own check measures.

    Raises:
        PayloadNotJsonError: something in it is not JSON, or not storable.
        PayloadTooDeepError: nested deeper than 64.
        PayloadTooLargeError: more than 256 KiB.
    """
    try:
        text = _ENCODER.encode(payload)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as refusal:
        _check(payload, "payload", 1)
        raise PayloadNotJsonError(f"the payload cannot be written as JSON: {refusal}") from None
    if not _is_plainly_fine(payload, text, size):
        size += _check(payload, "payload", 1)
    if size > MAX_PAYLOAD_BYTES:
        raise PayloadTooLargeError(
            f"the payload is {size} bytes serialised, {MAX_PAYLOAD_BYTES} are allowed; "
            "store the large part elsewhere and publish a reference to it"
        )
    return text


def _is_plainly_fine(payload: Mapping[str, Any], text: str, size: int) -> bool:
    """Whether nothing in the text can be wrong, so that the values need not be looked at one by one.

    Small enough whatever its numbers expand to, too few brackets to be deep, no NUL, and no key that JSON would
    have turned into a string.
    """
    return (
        size * _MAX_FLOAT_EXPANSION <= MAX_PAYLOAD_BYTES
        and text.count("{") + text.count("[") <= MAX_PAYLOAD_DEPTH
        and "\\u0000" not in text
        and _has_text_keys(payload)
    )


def _has_text_keys(value: object) -> bool:
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value).items()
        return all(isinstance(key, str) and _has_text_keys(item) for key, item in entries)
    if isinstance(value, list | tuple):
        return all(map(_has_text_keys, cast("list[object]", value)))
    return True


def _check(value: object, where: str, depth: int) -> int:
    """Refuse what is not JSON; answer by how many bytes Postgres prints the numbers longer than Python does."""
    match value:
        case None | bool():
            return 0
        case str():
            _refuse_unstorable(value, where)
            return 0
        case int():
            if abs(value) >= _TOO_LARGE_INTEGER:
                raise PayloadNotJsonError(
                    f"{where} is an integer of more than {MAX_INTEGER_DIGITS} digits; publish it as a string"
                )
            return 0
        case float():
            return _float_expansion(value, where)
        case dict() | list() | tuple():
            if depth > MAX_PAYLOAD_DEPTH:
                raise PayloadTooDeepError(f"the payload is nested deeper than {MAX_PAYLOAD_DEPTH} levels; flatten it")
            steps = _items(cast("_Container", value), where)
            return sum(_check(item, f"{where}{step}", depth + 1) for step, item in steps)
        case _:
            raise PayloadNotJsonError(
                f"{where} is a {type(value).__name__}, which is not JSON; "
                "convert it first, for instance with a pydantic model's model_dump(mode='json')"
            )


def _items(value: _Container, where: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, dict):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
        return
    for key, item in value.items():
        if not isinstance(key, str):
            raise PayloadNotJsonError(f"{where} has a key that is a {type(key).__name__}; JSON keys are strings")
        _refuse_unstorable(key, f"a key of {where}")
        yield f".{key[:40]}", item


def _refuse_unstorable(text: str, where: str) -> None:
    if not is_storable(text):
        raise PayloadNotJsonError(
            f"{where} contains a NUL or a lone surrogate, which Postgres cannot store; remove it before publishing"
        )


def _float_expansion(value: float, where: str) -> int:
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124  the one value unlike itself is NaN
        raise PayloadNotJsonError(f"{where} is {value}, which is not JSON; publish null or a string instead")
    printed = float.__repr__(value)
    # Postgres keeps numbers exact and prints them without an exponent: 1e22 becomes twenty-three digits.
    return len(format(Decimal(printed), "f")) - len(printed) if "e" in printed else 0
