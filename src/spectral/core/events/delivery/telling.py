"""Telling whoever watches of the rows that were settled, and of the runs of their handlers: once, in heaps.

Here lives the invariant that what is told of a row is what stands in it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spectral.core.events.delivery import runs
from spectral.core.events.outcome import Handled, Released
from spectral.core.events.probe import Finished, LeaseWasLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from spectral.core.events.delivery.entry import Entry
    from spectral.core.events.ports import Conclusion
    from spectral.core.events.probe import Activity, Handle, Probe


class Telling:
    """To one probe, which may know of heaps or not."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._tell_many: Callable[[Sequence[Finished]], None] = getattr(probe, "tell_many", self._tell_each)
        self.end_many: Callable[[Sequence[Activity]], None] = getattr(probe, "end_many", runs.end_each)
        self.begin_many: Callable[[Sequence[Handle]], list[Activity]] = getattr(probe, "begin_many", self._begin_each)

    def settled(
        self,
        conclusions: Sequence[Conclusion],
        entries: Sequence[Entry | None],
        lost: AbstractSet[UUID],
        stood: Mapping[UUID, Conclusion],
    ) -> list[Conclusion]:
        """They are written, or their leases had been lost; answers what stands and may fall due again.

        lost: the rows whose lease had been. stood: of those, what was written of them before, and not answered.
        """
        again: list[Conclusion] = []
        now, well = time.monotonic(), list[Finished]()
        ran_well: list[Activity] = []
        for conclusion, entry in zip(conclusions, entries, strict=True):
            if entry is not None and entry.doubts:
                stands = self._without_doubt(conclusion, entry, lost, stood)
                if stands is not None:
                    self._tell(stands, entry, now)
                    again.append(stands)
                continue
            if lost and conclusion.delivery.lease.row_id in lost:
                runs.take_back(() if entry is None else entry.runs)
                self._probe.tell(LeaseWasLost(conclusion.delivery))
                continue
            if type(conclusion.outcome) is Handled:
                well.append(_finished(conclusion, entry, now))
                if entry is not None and entry.runs:
                    ran_well.extend([run.activity for run in entry.runs])
                continue
            self._tell(conclusion, entry, now)
            again.append(conclusion)
        if ran_well:
            self.end_many(ran_well)
        if well:
            self._tell_many(well)
        return again

    def _tell(self, conclusion: Conclusion, entry: Entry | None, now: float) -> None:
        if entry is not None and entry.runs:  # first, for then it has a name in its trace
            (runs.give_back if isinstance(conclusion.outcome, Released) else runs.keep)(entry.runs)
        self._probe.tell(_finished(conclusion, entry, now))

    def _without_doubt(
        self, conclusion: Conclusion, entry: Entry, lost: AbstractSet[UUID], stood: Mapping[UUID, Conclusion]
    ) -> Conclusion | None:
        """Something was sent of it before, and not answered: that stands, or this does, or neither."""
        row_id = conclusion.delivery.lease.row_id
        stands = stood.get(row_id) if row_id in lost else conclusion
        if stands is None:
            runs.take_back(entry.runs)
            self._probe.tell(LeaseWasLost(conclusion.delivery))
            return None
        if stands is entry.doubts[0]:
            entry.runs = entry.doubted_runs  # somebody may have been blamed since
        else:  # it was sent because nobody knew of the first, so nothing that they wrote is kept
            (runs.take_back if isinstance(stands.outcome, Released) else runs.fail)(entry.taken_runs())
        return stands

    def _tell_each(self, notes: Sequence[Finished]) -> None:
        """For probes that know of no heaps."""
        for note in notes:
            self._probe.tell(note)

    def _begin_each(self, acts: Sequence[Handle]) -> list[Activity]:
        """For probes that know of no heaps."""
        return [self._probe.begin(act) for act in acts]


def _finished(conclusion: Conclusion, entry: Entry | None, now: float) -> Finished:
    delivery, outcome, _, ran = conclusion
    seconds, since_due, traceparent = 0.0, 0.0, None
    if entry is not None:
        seconds = entry.seconds or 0.0
        since_due = delivery.waited + now - entry.since
        traceparent = None if entry.activity is None else entry.activity.traceparent
    # As `Finished(...)`, without the call in between.
    return tuple.__new__(Finished, (delivery, outcome, ran, seconds, since_due, traceparent))  # pyright: ignore[reportUnknownMemberType]
