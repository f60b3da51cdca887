"""The bell: whether publishers notify workers only while nobody is awake, always, or never."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from spectral.core.database import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from spectral.core.database import Database

_RECOVERING: Final = "select pg_is_in_recovery()"
_MODE: Final = b"""
select bell.mode, bell.changed_at, bell.changed_by, bell.reason, pg_notification_queue_usage() as queue_usage
from core.bell
"""
_SHOW: Final = b"""
select
    bell.mode, bell.changed_at, bell.changed_by, bell.reason,
    pg_notification_queue_usage() as queue_usage,
    array(
        select distinct lease.worker
        from core.bell_leases as lease
        where lease.awake_until > clock_timestamp()
        order by lease.worker
        limit 500
    ) as awake
from core.bell
"""


class Mode(StrEnum):
    """How publishers ring."""

    BELL = "bell"  # unless an awake worker is known
    ALWAYS = "always"  # for every row
    OFF = "off"  # never: workers poll


@dataclass(frozen=True, slots=True, kw_only=True)
class BellState:
    """The mode and who set it; the workers that are awake; how full the server's queue of notifications is."""

    mode: str
    changed_at: datetime
    changed_by: str
    reason: str | None
    queue_usage: float
    awake: Sequence[str] = ()


async def show_bell(database: Database) -> BellState:
    """How it is set.

    Raises:
        NotFoundError: the row that says so is gone; publishers ring always then.
    """
    # A standby has no leases: they are not logged, and cannot be asked for there.
    recovering = await database.value(_RECOVERING)
    found = await database.rows(_MODE if recovering else _SHOW, into=BellState)
    if not found:
        raise NotFoundError("core.bell is empty: publishers ring for every row", "spectral bell set bell --yes")
    return found[0]


async def set_bell(database: Database, mode: Mode, *, by: str, reason: str) -> bool:
    """Have publishers ring so from now on. Answers whether that is a change.

    Raises:
        RefusedError: there is no reason, or this login may not.
    """
    return bool(await database.value(b"select core.bell_set(%s, %s, %s)", [str(mode), by, reason]))
