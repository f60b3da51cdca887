"""Retention: tasks that ended long ago are put away, then deleted, as the events of the substrate are.

Only what has ended is swept, by the database's clock; a task may say itself how long it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events import ConfigurationError

if TYPE_CHECKING:
    from spectral.core.database import Database

_LONGEST: Final = timedelta(days=36_500)
_SWEEP: Final = "select put_away, deleted, more from platform.agent_task_sweep(%s, %s, %s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPolicy:
    """How long tasks are kept.

    active: how long after its end a task stays as it is, unless it says so itself.
    grace: how long it is put away before it is deleted, with its runs and a conversation that has no other task.
    """

    active: timedelta = timedelta(days=90)
    grace: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given: object = getattr(self, name)
            if not isinstance(given, timedelta) or not timedelta(0) <= given <= _LONGEST:
                raise ConfigurationError(
                    f"agent tasks: {name} must be a timedelta between nothing and {_LONGEST.days} days, not {given!r}"
                )
        if not self.active:
            raise ConfigurationError("agent tasks: active must be longer than nothing; set a day at least")


DEFAULT_TASK_POLICY: Final = TaskPolicy()


@dataclass(frozen=True, slots=True)
class TasksSwept:
    """What a sweep did, or would do."""

    put_away: int
    deleted: int


async def sweep_agent_tasks(
    database: Database, policy: TaskPolicy = DEFAULT_TASK_POLICY, *, batch: int = 1000, dry_run: bool = False
) -> TasksSwept:
    """Put away and delete what the policy says, batch by batch, each in a transaction of its own.

    A dry run counts one batch of each at most.

    Args:
        database: of a login that is a member of `spectral_retention`.
        policy: how long tasks are kept.
        batch: tasks in one transaction.
        dry_run: change nothing.

    Raises:
        RefusedError: this login may not sweep.
        OperationError: the database could not be asked; what was done until then is done.
    """
    put_away = deleted = 0
    more = True
    while more:
        ((away, gone, more),) = await database.tuples(_SWEEP, [policy.active, policy.grace, batch, dry_run])
        put_away, deleted = put_away + away, deleted + gone
    return TasksSwept(put_away, deleted)
