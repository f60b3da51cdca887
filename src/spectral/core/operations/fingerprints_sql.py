"""Filters and fingerprints as conditions: what narrows the range of an index, and what is asked of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString
from uuid import UUID

from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from spectral.core.operations.events_pages import Place
    from spectral.core.operations.fingerprints import DeadLetterFilter, Fingerprint

_OF_FINGERPRINT: Final[dict[str, LiteralString]] = {
    "event_type": "letter.event_type = %(event_type)s",
    "context": "coalesce(letter.target, '') = %(context)s",
    "error_class": "letter.error_class = %(error_class)s",
    "handler_name": "coalesce(letter.handler_name, '') = %(handler_name)s",
}
_OF_ROW: Final[dict[str, LiteralString]] = {
    "workspace_id": "letter.workspace_id = %(workspace_id)s",
    "generation": "letter.generation = %(generation)s",
}
_OF_TIME: Final[dict[str, LiteralString]] = {
    # The second half keeps out what was still being retried then. It is asked of the row, and holds for nearly all.
    "failed_before": "letter.first_failed_at < %(failed_before)s"
    " and coalesce(letter.failed_at, letter.first_failed_at) < %(failed_before)s",
    "failed_after": "letter.first_failed_at >= %(failed_after)s",
}

_COLUMNS: Final = (
    "letter.event_type",
    "coalesce(letter.target, '')",
    "letter.error_class",
    "coalesce(letter.handler_name, '')",
    "letter.first_failed_at",
    "letter.id",
)
_LAST_ID: Final = UUID(int=2**128 - 1)

SELECTED: Final = sql.SQL(
    "unnest(%(event_types)s::text[], %(contexts)s::text[], %(error_classes)s::text[], %(handler_names)s::text[])"
    " with ordinality as selected (event_type, context, error_class, handler_name, ordinal)"
)

# The range of one fingerprint, as comparisons and not as equalities: then an order by all its columns is the order of
# no other index, whatever the planner believes of the number of rows.
OF_SELECTED: Final = sql.SQL("""\
({columns}) >= (
            selected.event_type, selected.context, selected.error_class, selected.handler_name,
            %(from_at)s::timestamptz, %(from_id)s::uuid
        )
        and ({columns}) < (
            selected.event_type, selected.context, selected.error_class, selected.handler_name,
            %(to_at)s::timestamptz, %(to_id)s::uuid
        )""").format(columns=sql.SQL(", ".join(_COLUMNS)))


def in_order(*, newest_first: bool) -> sql.SQL:
    """The order of a fingerprint's range."""
    return sql.SQL(", ".join(f"{column} desc" if newest_first else column for column in _COLUMNS))


def range_of(wanted: DeadLetterFilter, after: Place | None = None, *, newest_first: bool = True) -> dict[str, object]:
    """Where a fingerprint's range begins and, exclusively, ends: by the times of the filter, beyond a place."""
    first: tuple[datetime | str, UUID] = (wanted.failed_after or "-infinity", UUID(int=0))
    last: tuple[datetime | str, UUID] = ("infinity", _LAST_ID)
    if wanted.failed_before is not None:
        last = (wanted.failed_before, UUID(int=0))
    if after is not None and newest_first:
        last = (after.at, after.id)
    elif after is not None:
        first = (after.at, UUID(int=after.id.int + 1) if after.id != _LAST_ID else _LAST_ID)
    return {"from_at": first[0], "from_id": first[1], "to_at": last[0], "to_id": last[1]}


def conditions_of_time(wanted: DeadLetterFilter) -> sql.Composed:
    """What narrows the range to be read."""
    return _all_of(wanted, [_OF_TIME])


def conditions_of_row(wanted: DeadLetterFilter, *, by_fingerprint: bool) -> sql.Composed:
    """What is asked of each row that is looked at; with its fingerprint, unless that was selected already."""
    return _all_of(wanted, [_OF_ROW, _OF_FINGERPRINT] if by_fingerprint else [_OF_ROW])


def parameters_of(wanted: DeadLetterFilter, selected: Sequence[Fingerprint] = ()) -> dict[str, object]:
    """The values of the conditions, and the fingerprints as arrays."""
    given = {name: getattr(wanted, name) for name in (*_OF_FINGERPRINT, *_OF_ROW, *_OF_TIME)}
    return {
        **given,
        "event_types": [each.event_type for each in selected],
        "contexts": [each.context for each in selected],
        "error_classes": [each.error_class for each in selected],
        "handler_names": [each.handler_name for each in selected],
    }


def _all_of(wanted: DeadLetterFilter, kinds: Sequence[Mapping[str, LiteralString]]) -> sql.Composed:
    given = [
        sql.SQL(condition) for kind in kinds for name, condition in kind.items() if getattr(wanted, name) is not None
    ]
    return sql.SQL(" and ").join(given or [sql.SQL("true")])
