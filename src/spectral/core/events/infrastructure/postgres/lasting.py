"""Whether a statement may leave more behind than what it wrote: a setting, a lock, a cursor, a temporary table.

Handlers that share a transaction must not find any of it. Told by the text alone; only what is plainly fine is fine:
one statement that reads or writes rows, and calls nothing but functions that are known to do no more than that. What a
table's own triggers leave behind they leave to the next statement of any transaction, so they are not looked for.
"""

from __future__ import annotations

import re
from functools import lru_cache
from string import whitespace
from typing import Final

_MAX_TEXTS: Final = 1_000
_MAX_LENGTH: Final = 10_000

_VERBS: Final = frozenset({"insert", "update", "delete", "merge", "select", "with", "values"})
_INTO: Final = re.compile(r"\b(?:(insert|merge)\s+)?into\s+([\w.\"]+)(?:\s+as\s+\w+)?", re.IGNORECASE)
_SUSPICIOUS: Final = re.compile(r";|--|/\*|\bu&\"|\b(?:temp|temporary|pg_\w*)\b", re.IGNORECASE)
"""A second statement, what may hide a name from us, a temporary table, and the system's own views: one of them sets."""

_PART: Final = r"[\w\"$\x80-\U0010ffff]*"
_NAME_BACKWARDS: Final = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})*")
"""To the server every character beyond ASCII belongs to a name. Read backwards: to search for one that ends there
takes the square of its length, and what a statement quotes may be long."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYNTAX: Final = _words(
    """
    all and any array as between by case conflict cube distinct do else except exists filter from group grouping
    having in ilike intersect into is join key lateral like limit materialized not nothing null offset on or order over
    overlaps partition returning rollup row select set sets similar some then to union using values when where with
    within
    """
)
_TYPES: Final = _words(
    "bit char character decimal interval numeric time timestamp timestamptz timetz varchar varying",
)
_FUNCTIONS: Final = _words(
    """
    abs age array_agg array_append array_cat array_length array_position array_prepend array_remove
    array_to_string avg bool_and bool_or btrim cardinality cast ceil ceiling clock_timestamp coalesce concat concat_ws
    count cume_dist date_part date_trunc decode dense_rank digest encode extract first_value floor format
    gen_random_uuid generate_series greatest hashtext initcap json_agg json_array_elements json_build_array
    json_build_object jsonb_agg jsonb_array_elements jsonb_array_elements_text jsonb_array_length jsonb_build_array
    jsonb_build_object jsonb_each jsonb_each_text jsonb_object_agg jsonb_set jsonb_strip_nulls jsonb_to_record
    jsonb_to_recordset jsonb_typeof lag last_value lead least left length lower lpad ltrim make_date make_interval
    make_timestamptz max md5 min mod nextval now ntile nullif overlay position power random rank regexp_match
    regexp_matches regexp_replace replace right round row_number row_to_json rpad rtrim sha256 split_part sqrt
    starts_with statement_timestamp string_agg string_to_array strpos substr substring sum to_char to_date to_json
    to_jsonb to_number to_timestamp transaction_timestamp trim trunc unnest upper uuidv4 uuidv7
    """
)


def may_last(query: str) -> bool:
    """Whether something of it may stay in the session or the transaction besides the rows it wrote."""
    return len(query) > _MAX_LENGTH or _may_last(query)


@lru_cache(_MAX_TEXTS)
def _may_last(query: str) -> bool:
    """The same, remembered: what is long is not."""
    text = query.strip().removesuffix(";")
    verb = re.match(r"\w*", text)
    if verb is None or verb[0].lower() not in _VERBS or _SUSPICIOUS.search(text):
        return True
    if any(into[1] is None for into in _INTO.finditer(text)):  # SELECT INTO makes a table
        return True
    # What is inserted into may be followed by the names of its columns.
    *before_brackets, _ = _INTO.sub("into", text).split("(")
    return not all(_is_harmless(_last_name(before).lower()) for before in before_brackets)


def _last_name(text: str) -> str:
    """The name it ends with, if it does."""
    name = _NAME_BACKWARDS.match(text.rstrip(whitespace)[::-1])
    return "" if name is None else name[0][::-1]


def _is_harmless(before: str) -> bool:
    """Whether this, before a bracket, is no function, or one that leaves nothing behind."""
    return not before or before in _SYNTAX or before in _TYPES or before in _FUNCTIONS
