"""The recorder: counts notes in memory, for whoever reads them later.

Told from the worker's loop and from the thread beside it, read from the thread that answers a scrape. Adding to a
number is a read and a write, which the interpreter may interrupt; so one lock is held, for a microsecond when told, and
for one metric at a time when read.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from spectral.core.events.infrastructure.observability.measures import measure
from spectral.core.events.metrics import METRICS, BoundedLabels, Distribution, Kind, Metric, Sample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spectral.core.events.infrastructure.observability.measures import Measure
    from spectral.core.events.probe import Note

_recorders: Final[WeakSet[Recorder]] = WeakSet()


class Recorder:
    """Implements `Tool`; quick enough to be told at once."""

    def __init__(self) -> None:
        self.unlock()
        _recorders.add(self)
        self._bounded = BoundedLabels()
        # By metric and labels: of a counter its value, of a histogram the count of each bucket and then the sum.
        self._cells: dict[Metric, dict[tuple[str, ...], list[float]]] = {
            metric: {} for metric in METRICS if metric.kind is not Kind.GAUGE
        }

    def unlock(self) -> None:
        """With a lock that nobody holds; also in the child of a fork, where its holder may be missing."""
        self._lock = threading.Lock()

    def tell(self, note: Note) -> None:
        """Count it."""
        measures = measure(note)
        if measures:
            self.add(measures)

    def add(self, measures: Iterable[Measure]) -> None:
        """Count what a note came to."""
        with self._lock:
            for metric, labels, value in measures:
                cell = self._cells[metric].get(labels)
                if cell is None:
                    cell = self._cell(metric, labels)
                cell[-1] += value
                if metric.buckets:
                    cell[bisect_left(metric.buckets, value)] += 1

    def samples(self) -> list[Sample]:
        """The counters, as they are now."""
        return [
            Sample(metric, labels, cell[-1])
            for metric in self._cells
            if not metric.buckets
            for labels, cell in self._read(metric)
        ]

    def distributions(self) -> list[Distribution]:
        """The histograms, as they are now."""
        return [
            Distribution(metric, labels, tuple(int(count) for count in cell[:-1]), cell[-1])
            for metric in self._cells
            if metric.buckets
            for labels, cell in self._read(metric)
        ]

    def _read(self, metric: Metric) -> list[tuple[tuple[str, ...], tuple[float, ...]]]:
        with self._lock:
            return [(labels, tuple(cell)) for labels, cell in self._cells[metric].items()]

    def _cell(self, metric: Metric, labels: tuple[str, ...]) -> list[float]:
        """A new one, or the one of `_other` if there are too many."""
        # One bucket more than there are bounds, for what is beyond the last; and the sum.
        empty = [0.0] * (len(metric.buckets) + 2) if metric.buckets else [0.0]
        return self._cells[metric].setdefault(self._bounded.of(metric, labels), empty)


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.unlock()


os.register_at_fork(after_in_child=_after_fork)
