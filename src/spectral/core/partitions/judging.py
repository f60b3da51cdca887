"""What is to be done about a partition, and what a person should be told: pure functions of what was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError
from spectral.core.partitions.values import COUNTED_AT_MOST, PartitionKind, Step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from spectral.core.partitions.values import Keep

_STATUS: Final = "spectral partitions status"


@dataclass(frozen=True, slots=True)
class State:
    """How far the conversion is, as the database says it: see `core.partitions_state`."""

    now: datetime
    partitioned: bool
    dedup_partitioned: bool
    prepared: bool
    indexed: bool
    bound: bool
    boundary: datetime | None
    bound_until: datetime | None
    reversible: bool


def steps_done(state: State) -> tuple[Step, ...]:
    """The steps behind us. A step that was taken before an earlier one had to be taken again still counts."""
    taken = (
        (Step.PREPARE, state.prepared),
        (Step.INDEX, state.indexed),
        (Step.BOUND, state.bound),
        (Step.SWITCH, state.partitioned),
    )
    return tuple(step for step, done in taken if done)


def next_step(state: State) -> Step | None:
    """The first step that is not behind us."""
    done = steps_done(state)
    return next((step for step in Step if step not in done), None)


def droppable(
    kind: PartitionKind, upper: datetime | None, left: tuple[int, int], keep: Keep, now: datetime
) -> tuple[bool, str]:
    """Whether a partition may go by its time and by what is left in it (unfinished, failed), and why in words."""
    unfinished, failed = left
    if kind is PartitionKind.DEFAULT or upper is None:
        return False, "the default partition stays; what is over in it is swept row by row"
    if keep.grace is None:
        return False, "events are kept for ever"
    due = upper + keep.active + keep.grace
    if now < due:
        return False, f"its time is over on {due:%Y-%m-%d}"
    if unfinished:
        return False, f"{counted(unfinished)} of its rows are pending or in flight"
    if failed:
        return False, f"{counted(failed)} of its rows are in the DLQ: replay or discard them"
    return True, "its time is over and nothing in it is left to do"


def counted(rows: int) -> str:
    """A count that may have ended at the cap."""
    return f"{min(rows, COUNTED_AT_MOST):,}{'+' if rows > COUNTED_AT_MOST else ''}"


def months_ahead(uppers: Sequence[datetime | None], now: datetime) -> int:
    """Whole months after the current one that end at or before the last bound."""
    last = max((each for each in uppers if each is not None), default=None)
    if last is None:
        return 0
    return max((last.year - now.year) * 12 + last.month - now.month - 1, 0)


def require_no_obstacles(obstacles: Sequence[str]) -> None:
    """The table can be exchanged.

    Raises:
        RefusedError: something holds it by its identity.
    """
    if obstacles:
        raise RefusedError(
            f"the outbox cannot be exchanged while it is held by: {', '.join(obstacles[:5])}",
            "drop them, enable partitions, and create them again",
        )


def require_reversible(state: State) -> None:
    """There is a way back.

    Raises:
        RefusedError: rows have been written to partitions that the plain table would not have.
    """
    if state.partitioned and not state.reversible:
        raise RefusedError("events have been written to partitions of their own: there is no way back", _STATUS)
