"""Which failed rows are meant: by fingerprint (event type, context, error class, handler) first, by the rest after.

A million failed rows have few fingerprints, and the index knows them in order: they are found by stepping from one to
the next. A filter selects fingerprints; what it says beyond that is asked of each row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database

MAX_STEPS: Final = 1_000
"""Fingerprints that are stepped through, at most: a message without an error class may make one for every row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which failed rows; whatever is none does not matter. An empty context or handler means those without one."""

    event_type: str | None = None
    context: str | None = None
    handler_name: str | None = None
    error_class: str | None = None
    workspace_id: UUID | None = None
    generation: int | None = None
    failed_before: datetime | None = None
    """Those that were in the DLQ before this moment: they failed for the last time, and so for the first, before it."""
    failed_after: datetime | None = None
    """Those whose first failure of this cycle was then or later."""

    @property
    def by_fingerprint(self) -> bool:
        """Whether it says anything that a fingerprint has."""
        return not all(each is None for each in (self.event_type, self.context, self.handler_name, self.error_class))

    @property
    def by_row(self) -> bool:
        """Whether it says anything that only the row itself can answer, and that may hold for few of many."""
        return self.workspace_id is not None or self.generation is not None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What failures have in common; the context and the handler are empty where there is none."""

    event_type: str
    context: str
    error_class: str
    handler_name: str


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Those selected, and whether there were too many to step through."""

    selected: tuple[Fingerprint, ...]
    too_many: bool


@dataclass(frozen=True, slots=True)
class ErrorParts:
    """An error as it is kept, `ErrorClass: handler: message`, taken apart; what is no such text has no handler."""

    error_class: str
    handler_name: str | None
    message: str


_ERROR: Final = re.compile(r"([^:]*): (?:([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+): )?(.*)", re.DOTALL)


def take_apart(error: str) -> ErrorParts:
    """The parts of an error, as `core.dead_letters` has them too."""
    parts = _ERROR.fullmatch(error)
    if parts is None:
        return ErrorParts(error.partition(":")[0][:120], None, error)
    error_class, handler_name, message = parts.groups()
    return ErrorParts(error_class[:120], handler_name and handler_name[:200], message)


_STEP: Final = sql.SQL("""\
with recursive step as (
    -- the first fingerprint
    (
        select letter.event_type, coalesce(letter.target, '') as context, letter.error_class,
            coalesce(letter.handler_name, '') as handler_name, 1 as ordinal
        from core.dead_letters as letter
        where {within}
        order by letter.event_type, coalesce(letter.target, ''), letter.error_class, coalesce(letter.handler_name, '')
        limit 1
    )
    union all
    -- the first after that one, and so on; beside the comparison an equality would be where the index is read from
    select following.*, step.ordinal + 1
    from step
    cross join lateral (
        select letter.event_type, coalesce(letter.target, '') as context, letter.error_class,
            coalesce(letter.handler_name, '') as handler_name
        from core.dead_letters as letter
        where (
            letter.event_type, coalesce(letter.target, ''), letter.error_class, coalesce(letter.handler_name, '')
        ) > (step.event_type, step.context, step.error_class, step.handler_name)
        order by letter.event_type, coalesce(letter.target, ''), letter.error_class, coalesce(letter.handler_name, '')
        limit 1
    ) as following
    where step.ordinal < %(steps)s and {still_within}
)
select event_type, context, error_class, handler_name from step""")


async def fingerprints(database: Database, wanted: DeadLetterFilter) -> Fingerprints:
    """The fingerprints that the filter selects, in order."""
    any_type = wanted.event_type is None
    statement = _STEP.format(
        within=sql.SQL("true" if any_type else "letter.event_type = %(event_type)s"),
        still_within=sql.SQL("true" if any_type else "following.event_type = %(event_type)s"),
    )
    parameters = {"event_type": wanted.event_type, "steps": MAX_STEPS}
    found = await database.rows(statement, parameters, into=Fingerprint)
    return Fingerprints(tuple(each for each in found if _fits(each, wanted)), too_many=len(found) >= MAX_STEPS)


def _fits(found: Fingerprint, wanted: DeadLetterFilter) -> bool:
    asked = (wanted.context, wanted.error_class, wanted.handler_name)
    known = (found.context, found.error_class, found.handler_name)
    return all(one is None or one == other for one, other in zip(asked, known, strict=True))
