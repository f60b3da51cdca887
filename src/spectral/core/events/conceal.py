"""What a message quotes of a payload is taken out of it, before anybody keeps or shows the message.

Two rules. A value of the payload, of four characters or digits and more, is found wherever it stands, as it is or as
Python, JSON or a URL would write it. And so is every stretch of twelve letters and digits that the payload has too, be
it the middle of a long text or a part of the whole that was printed; punctuation is overlooked, for everybody sets
his own. Names of fields stay: they are the contract's, and say where to look.

It is done where the failure happens, on the event loop, so that both are bounded: of a long message only the beginning
is looked through and shown, and beside a payload above `MAX_PAYLOAD` nothing is: whoever describes withholds it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

from spectral.core.events.payload import is_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK: Final = "[payload]"
MIN_VALUE: Final = 4
MIN_STRETCH: Final = 12
MAX_PAYLOAD: Final = 12 * 1024
"""Characters of JSON that are looked through in a few milliseconds."""
MAX_TEXT: Final = 2_048
UNKNOWN: Final = " " * (MAX_PAYLOAD + 1)
"""Stands for a payload that is not known: more than can be looked through, so that a message is withheld."""

_MAX_MARKS: Final = 2_500
_LONGEST_CUT: Final = 64
"""So much before the end of a text that was cut a value may have begun, of which the rest is missing: not shown."""
_MAX_QUOTED_LENGTH: Final = 256

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~-]*")
_BETWEEN: Final = re.compile(r"[\W_]+")
_TAIL: Final = re.compile(r"[^\W_]{1,3}[\W_]+")
_HEAD: Final = re.compile(r"[\W_]+[^\W_]{1,3}\Z")
_MARKED: Final = re.compile(rb"\x01+")


def printed(text: str) -> str:
    """The text with a space for each character that is not printed."""
    return text if text.isprintable() else "".join(each if each.isprintable() else " " for each in text)


def one_line(text: str) -> str:
    """The text with single spaces for whatever is not printed."""
    return " ".join(printed(text).split())


def conceal(text: str, payload: str, keep: str | None = None) -> str:
    """One line of text without what it quotes of a payload (the JSON that is stored); `keep` is left as it is.

    It takes time in proportion to both. Whatever cannot be looked through is taken out as a whole, and a text is cut
    at `MAX_TEXT`.
    """
    is_cut = len(text) > MAX_TEXT
    try:
        quoted = _quotable(payload)
        *parts, last = text[:MAX_TEXT].split(keep) if keep else [text[:MAX_TEXT]]
        end = _without(last, quoted, -_LONGEST_CUT) + "..." if is_cut else _without(last, quoted)
        return (keep or "").join([*(_without(part, quoted) for part in parts), end])
    except Exception:  # noqa: BLE001  a payload that nobody can read must not be the reason to show it
        return MARK


@dataclass(frozen=True, slots=True)
class _Quotable:
    """What a message may have of a payload.

    values: as they may be written. whole: the payload as it may be printed, letters and digits alone. words: those
    that the names of its fields are made of.
    """

    values: frozenset[str]
    whole: frozenset[str]
    words: frozenset[str]


@lru_cache(maxsize=2)  # a failure is described twice, for whoever watches and for the row
def _quotable(payload: str) -> _Quotable:
    try:
        document: object = json.loads(payload)
    except (ValueError, RecursionError):  # such as a number of thousands of digits; no handler was given it either
        return _Quotable(frozenset(), frozenset({_letters(_folded(payload))}), frozenset())
    leaves: list[object] = []
    fields: set[str] = set()
    for leaf, is_key in _leaves(document):
        if is_key and is_field(str(leaf)):
            fields.add(str(leaf))
        else:
            leaves.append(leaf)
    shown = {payload, repr(document)}
    if not payload.isascii():
        shown.add(json.dumps(document))
    if "\\" in payload:
        shown.add(" ".join(leaf for leaf in leaves if isinstance(leaf, str)))
    forms = (_folded(one_line(form)) for form in {form for leaf in leaves for form in _forms(leaf)})
    return _Quotable(
        frozenset(form for form in forms if len(form) >= MIN_VALUE),
        frozenset(_letters(_folded(text)) for text in shown),
        frozenset(word for field in fields for word in _BETWEEN.split(_folded(field))),
    )


def _leaves(document: object) -> Iterator[tuple[object, bool]]:
    """Every key and every value that holds no others; true for keys."""
    waiting: list[object] = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key, inner in cast("dict[str, object]", value).items():
                yield key, True
                waiting.append(inner)
        elif isinstance(value, list):
            waiting.extend(cast("list[object]", value))
        else:
            yield value, False


def _forms(leaf: object) -> Iterable[str]:
    """How it may be written in a message."""
    if isinstance(leaf, str):
        if _PLAIN.fullmatch(leaf):
            return (leaf,)
        url = (quote(leaf, safe=""),) if len(leaf) <= _MAX_QUOTED_LENGTH else ()
        return (leaf, repr(leaf)[1:-1], ascii(leaf)[1:-1], encode_basestring_ascii(leaf)[1:-1], *url)
    if isinstance(leaf, int | float) and not isinstance(leaf, bool):
        forms = {str(abs(leaf)), str(abs(int(leaf)))} if leaf == leaf // 1 else {str(abs(leaf))}
        return [form for form in forms if sum(each.isdigit() for each in form) >= MIN_VALUE]
    return ()


def _folded(text: str) -> str:
    """In small letters, and as long as it was."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(each.lower() if len(each.lower()) == 1 else each for each in text)


def _letters(text: str) -> str:
    return _BETWEEN.sub("", text)


def _without(text: str, quoted: _Quotable, end: int | None = None) -> str:
    """Up to its end, which may be before what was looked through."""
    folded = _folded(text)
    marks = bytearray(len(folded))
    _mark_values(folded, quoted.values, marks)
    _mark_stretches(folded, quoted, marks)
    parts: list[str] = []
    at = 0
    for found in _MARKED.finditer(marks[:end]):
        parts += [text[at : found.start()], MARK]
        at = found.end()
    return "".join([*parts, text[:end][at:]])


def _mark_values(text: str, values: Iterable[str], marks: bytearray) -> None:
    beginnings = {text[at : at + MIN_VALUE] for at in range(len(text) - MIN_VALUE + 1)}
    left = _MAX_MARKS
    for value in values:
        at = text.find(value) if value[:MIN_VALUE] in beginnings else -1
        while at >= 0:
            marks[at : at + len(value)] = b"\x01" * len(value)
            at = text.find(value, at + 1)
            left -= 1
            if not left:  # text and payload made to take all day
                marks[:] = b"\x01" * len(marks)
                return


def _mark_stretches(text: str, quoted: _Quotable, marks: bytearray) -> None:
    places = [at for at, each in enumerate(text) if each.isalnum()]
    letters = "".join(text[at] for at in places)
    windows = set(_windows(letters))
    if not windows:
        return
    common = set[str]().union(*(windows.intersection(_windows(whole)) for whole in quoted.whole))
    covered = bytearray(len(letters))
    for at, window in enumerate(_windows(letters)):
        if window in common:
            covered[at : at + MIN_STRETCH] = b"\x01" * MIN_STRETCH
    for found in _MARKED.finditer(covered):
        first, end = _trimmed(text, places[found.start()], places[found.end() - 1] + 1)
        if not quoted.words.issuperset(_BETWEEN.split(text[first:end])):
            marks[first:end] = b"\x01" * (end - first)


def _trimmed(text: str, first: int, end: int) -> tuple[int, int]:
    """A stretch without the few letters at its ends that are a neighbouring word's and agree by chance."""
    if text[max(0, first - 1) : first].isalnum() and (tail := _TAIL.match(text, first, end)):
        first = tail.end()
    if text[end : end + 1].isalnum() and (head := _HEAD.search(text, max(first, end - 40), end)):
        end = head.start()
    return first, end


def _windows(letters: str) -> Iterator[str]:
    return (letters[at : at + MIN_STRETCH] for at in range(len(letters) - MIN_STRETCH + 1))
