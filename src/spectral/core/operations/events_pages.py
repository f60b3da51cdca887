"""Pages of lists that may be long: every page looks at a bounded number of rows, and says where to go on.

A list is read from one or more stretches, each the range of an index in order. Of a stretch at most so many rows are
looked at; where that was not the end of it, the last one is its horizon: beyond it nothing is known. A page holds what
was found up to the nearest horizon.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from spectral.core.database import RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from spectral.core.database import Database

WINDOW: Final = 50_000
"""Rows that one page looks at, at most."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

# One snapshot for all statements of a page, and no plan but by index in the index's own order: statistics may be from
# before a million rows failed.
_READ: Final = """\
set transaction isolation level repeatable read read only;
set local statement_timeout = '2s';
set local enable_seqscan = off;
set local enable_bitmapscan = off;
set local enable_sort = off;
set local jit = off"""


@asynccontextmanager
async def reading(database: Database) -> AsyncGenerator[None]:
    """A transaction for one page: a single snapshot, 2 s for each statement, plans that do not trust the statistics."""
    async with database.transaction():
        await database.connection.execute(_READ)
        yield


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands in a list: its time there, then its id. What orders by id alone has the same time for all."""

    at: datetime
    id: UUID


@dataclass(frozen=True, slots=True)
class Order:
    """How places follow each other."""

    newest_first: bool
    ids_descend: bool

    def key(self, place: Place) -> tuple[int, int]:
        """What to sort places by."""
        at, number = (place.at - _EPOCH) // _MICROSECOND, place.id.int
        return (-at if self.newest_first else at, -number if self.ids_descend else number)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was found in one range, and its horizon; without one the range was seen to its end."""

    found: tuple[Place, ...]
    horizon: Place | None


def merge(
    stretches: Iterable[Stretch], limit: int, key: Callable[[Place], tuple[int, int]]
) -> tuple[list[Place], Place | None]:
    """The first places of all stretches together, and the last one that was looked at if there may be more."""
    read = list(stretches)
    horizon = min((each.horizon for each in read if each.horizon is not None), key=key, default=None)
    found = sorted((place for each in read for place in each.found), key=key)
    if horizon is not None:
        found = [place for place in found if key(place) <= key(horizon)]
    if len(found) > limit:
        return found[:limit], found[limit - 1]
    return found, horizon


def stretches(rows: Iterable[tuple[Any, ...]]) -> list[Stretch]:
    """Rows of (number of the stretch, id, time, whether it is the horizon) as stretches."""
    read: dict[int, tuple[list[Place], list[Place]]] = {}
    for number, event_id, at, is_horizon in rows:
        found, horizon = read.setdefault(number, ([], []))
        (horizon if is_horizon else found).append(Place(at, event_id))
    return [Stretch(tuple(found), horizon[0] if horizon else None) for found, horizon in read.values()]


def write_cursor(kind: str, place: Place | None) -> str | None:
    """Where the next page begins, as text that a shell leaves alone."""
    if place is None:
        return None
    return f"{kind}{(place.at - _EPOCH) // _MICROSECOND:x}-{place.id.hex}"


def read_cursor(text: str, kinds: str) -> tuple[str, Place]:
    """The kind and the place again.

    Raises:
        RefusedError: it is no cursor of this list.
    """
    try:
        micros, _, number = text[1:].partition("-")
        place = Place(_EPOCH + int(micros, 16) * _MICROSECOND, UUID(hex=number))
    except (ValueError, OverflowError):
        place = None
    if place is None or text[0] not in kinds:
        raise RefusedError("that is no cursor of this list", "the same command without --cursor")
    return text[0], place
