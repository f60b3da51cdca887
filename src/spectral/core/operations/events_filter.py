"""Which events are meant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from psycopg import sql

if TYPE_CHECKING:
    from uuid import UUID


class EventStatus(StrEnum):
    """How far an event got; a discarded one is failed and put away."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events; whatever is none does not matter. An empty context means broadcasts."""

    status: EventStatus | None = None
    event_type: str | None = None
    context: str | None = None
    workspace_id: UUID | None = None
    generation: int | None = None


STATUS: Final = sql.SQL(
    "case when event.status = 'failed' and event.deleted_at is not null then 'discarded' else event.status end"
)

_CONDITIONS: Final = {
    "status": sql.SQL("{} = %(status)s").format(STATUS),
    "event_type": sql.SQL("event.event_type = %(event_type)s"),
    "context": sql.SQL("coalesce(event.target, '') = %(context)s"),
    "workspace_id": sql.SQL("event.workspace_id = %(workspace_id)s"),
    "generation": sql.SQL("event.generation = %(generation)s"),
}

# Of what was looked at that which is meant, and the last row if there may be more behind it.
FOUND: Final = """\
(select {columns}, false as is_horizon from looked where looked.fits order by looked.position limit %(limit)s)
    union all
    (select {columns}, true from looked where looked.position = %(window)s)"""


def fits(wanted: EventFilter) -> sql.Composed:
    """What is asked of each row that is looked at."""
    given = [condition for name, condition in _CONDITIONS.items() if getattr(wanted, name) is not None]
    return sql.SQL(" and ").join(given or [sql.SQL("true")])


def parameters_of(wanted: EventFilter) -> dict[str, object]:
    """The values of the conditions."""
    return asdict(wanted)
