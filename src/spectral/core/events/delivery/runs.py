"""Runs: handlers that have ended in a transaction that is not committed yet, and what is told of them when it is known.

Here lives the invariant that nobody is told of a success that was not kept, nor twice of a failure that is charged
once: a transaction that cannot be committed is run again, all of it, and so is whoever failed in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spectral.core.events.probe import Activity


class Run(NamedTuple):
    """One of them; with this error, or well."""

    handler_name: str
    activity: Activity
    error: BaseException | None


def keep(runs: Iterable[Run]) -> None:
    """Their transaction is committed; what those did that failed was undone before."""
    for run in runs:
        run.activity.end(run.error)


def give_back(runs: Iterable[Run]) -> None:
    """It is, but nobody is charged for it: those that failed will be run again."""
    for run in runs:
        if run.error is None:
            run.activity.end()
        else:
            undo(run.activity, run.error)


def take_back(runs: Iterable[Run]) -> None:
    """It is not, and nobody is charged for it: they will be run again, those too that failed beside others."""
    for run in runs:
        undo(run.activity, run.error)


def undo(activity: Activity, error: BaseException | None) -> None:
    """Of a run that is not kept, and failed or did not; a probe of somebody's own may know of no errors here."""
    if error is None:
        activity.undo()
    else:
        activity.undo(error)


def fail(runs: Iterable[Run]) -> None:
    """It is not, because of those that failed, and that is charged to their row."""
    for run in runs:
        if run.error is None:
            run.activity.undo()
        else:
            run.activity.end(run.error)


def end_each(activities: Iterable[Activity]) -> None:
    """They have gone well; for probes that know of no heaps."""
    for activity in activities:
        activity.end()
