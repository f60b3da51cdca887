"""Walking the failed rows in order, from wherever one stopped: the way of lists, and of replaying and discarding many.

Two ways, each with an order of its own among rows that failed at the same moment, so a cursor says which it was:

    by fingerprint   where the filter selects few fingerprints: their ranges are merged
    by time          otherwise: the DLQ as a whole, and each row is asked whether it is meant
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from spectral.core.database import RefusedError
from spectral.core.operations.events_pages import (
    WINDOW,
    Order,
    Place,
    merge,
    read_cursor,
    stretches,
    write_cursor,
)
from spectral.core.operations.fingerprints import Fingerprint, fingerprints
from spectral.core.operations.fingerprints_sql import (
    OF_SELECTED,
    SELECTED,
    conditions_of_row,
    conditions_of_time,
    in_order,
    parameters_of,
    range_of,
)

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.operations.fingerprints import DeadLetterFilter

MAX_MERGED: Final = 200
"""Ranges that are merged, at most."""

_LEAST: Final = 100
"""Rows that a thrifty step reads of each range, at least."""


class Way(StrEnum):
    """How rows are walked; the first letter of a cursor."""

    FINGERPRINT = "p"
    TIME = "t"


@dataclass(frozen=True, slots=True)
class Walk:
    """A way through the rows that a filter means; made once, walked in steps."""

    wanted: DeadLetterFilter
    way: Way
    selected: tuple[Fingerprint, ...]
    newest_first: bool

    @property
    def order(self) -> Order:
        """As the index of each way has it, read forwards or backwards."""
        ids_descend = self.newest_first if self.way is Way.FINGERPRINT else not self.newest_first
        return Order(newest_first=self.newest_first, ids_descend=ids_descend)


async def choose(
    database: Database, wanted: DeadLetterFilter, *, newest_first: bool, cursor: str | None = None
) -> tuple[Walk, Place | None]:
    """The way to walk, and where a cursor says to begin.

    Raises:
        RefusedError: the cursor is not one of ours.
    """
    way, place = (None, None) if cursor is None else read_cursor(cursor, "".join(Way))
    if way == Way.TIME or not wanted.by_fingerprint:
        if way == Way.FINGERPRINT:
            raise RefusedError("that cursor is of a list with another filter", "the same command without --cursor")
        return Walk(wanted, Way.TIME, (), newest_first), place
    found = await fingerprints(database, wanted)
    if way is None and (found.too_many or len(found.selected) > MAX_MERGED):
        return Walk(wanted, Way.TIME, (), newest_first), place
    if found.too_many:
        raise RefusedError("the DLQ has changed too much since that page", "the same command without --cursor")
    return Walk(wanted, Way.FINGERPRINT, found.selected, newest_first), place


def cursor_of(walk: Walk, place: Place | None) -> str | None:
    """The place as text; none at the end."""
    return write_cursor(walk.way, place)


async def step(
    database: Database, walk: Walk, after: Place | None, limit: int, *, thrifty: bool = False
) -> tuple[list[Place], Place | None]:
    """The next rows that are meant, and where to go on; none at the end. It may find none and not be at the end.

    To fill a page, each range is read as if all of the page came from it. A thrifty step reads about as much as it is
    likely to need, and may find less than there is: it is for whoever walks on anyway.
    """
    if walk.way is Way.FINGERPRINT and not walk.selected:
        return [], None
    ranges = max(1, len(walk.selected))
    window = min(limit + 1, max(_LEAST, 2 * limit // ranges)) if thrifty else limit + 1
    if walk.wanted.by_row or (walk.way is Way.TIME and walk.wanted.by_fingerprint):
        window = max(WINDOW // ranges, limit + 1)
    parameters = {
        **parameters_of(walk.wanted, walk.selected),
        **range_of(walk.wanted, after, newest_first=walk.newest_first),
        "window": window,
        "limit": limit + 1,
        "at": after and after.at,
        "id": after and after.id,
    }
    statement = _by_fingerprint(walk) if walk.way is Way.FINGERPRINT else _by_time(walk, after)
    read = stretches(await database.tuples(statement, parameters))
    return merge(read, limit, walk.order.key)


# What was looked at, of that what is meant, and the last row if there may be more behind it.
_FOUND: Final = sql.SQL("""\
    (
        select looked.id, looked.first_failed_at, false as is_horizon
        from looked
        where looked.fits
        order by looked.position
        limit %(limit)s
    )
    union all
    (
        select looked.id, looked.first_failed_at, true
        from looked
        where looked.position = %(window)s
    )""")

_BY_FINGERPRINT: Final = """\
select selected.ordinal, found.*
from {selected}
cross join lateral (
    with looked as materialized (
        select in_order.*, row_number() over () as position
        from (
            select letter.id, letter.first_failed_at, ({fits}) as fits
            from core.dead_letters as letter
            where {of_selected} and {within}
            order by {order}
            limit %(window)s
        ) as in_order
    )
{found}
) as found"""

_RANGE: Final = """\
        (
            select letter.id, letter.first_failed_at, ({fits}) as fits
            from core.dead_letters as letter
            where {within} and {beyond}
            order by letter.first_failed_at {at_direction}, letter.id {id_direction}
            limit %(window)s
        )"""

_BY_TIME: Final = """\
with looked as materialized (
    select ranges.*,
        row_number() over (order by ranges.first_failed_at {at_direction}, ranges.id {id_direction}) as position
    from (
{ranges}
    ) as ranges
    order by ranges.first_failed_at {at_direction}, ranges.id {id_direction}
    limit %(window)s
)
select 1 as ordinal, found.*
from (
{found}
) as found"""

_DIRECTIONS: Final = {False: sql.SQL("asc"), True: sql.SQL("desc")}


def _by_fingerprint(walk: Walk) -> sql.Composed:
    return sql.SQL(_BY_FINGERPRINT).format(
        selected=SELECTED,
        of_selected=OF_SELECTED,
        fits=conditions_of_row(walk.wanted, by_fingerprint=False),
        within=conditions_of_time(walk.wanted),
        found=_FOUND,
        order=in_order(newest_first=walk.newest_first),
    )


def _by_time(walk: Walk, after: Place | None) -> sql.Composed:
    order = walk.order
    beyond: list[LiteralString] = ["true"]
    if after is not None:
        # The index has its times and its ids in opposite directions, so this takes two ranges.
        beyond = [
            f"letter.first_failed_at = %(at)s and letter.id {'<' if order.ids_descend else '>'} %(id)s",
            f"letter.first_failed_at {'<' if order.newest_first else '>'} %(at)s",
        ]
    directions = {
        "at_direction": _DIRECTIONS[order.newest_first],
        "id_direction": _DIRECTIONS[order.ids_descend],
    }
    ranges = [
        sql.SQL(_RANGE).format(
            fits=conditions_of_row(walk.wanted, by_fingerprint=True),
            within=conditions_of_time(walk.wanted),
            beyond=sql.SQL(each),
            **directions,
        )
        for each in beyond
    ]
    return sql.SQL(_BY_TIME).format(ranges=sql.SQL("\n        union all\n").join(ranges), found=_FOUND, **directions)
