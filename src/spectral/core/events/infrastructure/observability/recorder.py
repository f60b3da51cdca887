"""The recorder: counts notes in memory, for whoever reads them later.

Told from the worker's loop and from the thread beside it, read from the thread that answers a scrape. Adding to a
number is a read and a write, which the interpreter may interrupt; so one lock is held, for a microsecond when told, and
for one metric at a time when read.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from spectral.core.events.infrastructure.observability.measures import measure
from spectral.core.events.metrics import METRICS, BoundedLabels, Distribution, Kind, Metric, Sample
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import Finished, HandlerRan, Published

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spectral.core.events.infrastructure.observability.measures import Measure
    from spectral.core.events.probe import Note

_MOST_KNOWN: Final = 2_000
_recorders: Final[WeakSet[Recorder]] = WeakSet()


class Recorder:
    """Implements `Counting`."""

    def __init__(self) -> None:
        self.start_anew()
        _recorders.add(self)

    def start_anew(self) -> None:
        """From nothing, with a lock that nobody holds.

        Also in the child of a fork: what its parent has counted is the parent's to say, and whoever held the lock may
        be missing.
        """
        self._lock = threading.Lock()
        self._bounded = BoundedLabels()
        self._known: dict[tuple[str, str, type[Note]], list[tuple[list[float], tuple[float, ...]]]] = {}
        # By metric and labels: of a counter its value, of a histogram the count of each bucket and then the sum.
        self._cells: dict[Metric, dict[tuple[str, ...], list[float]]] = {
            metric: {} for metric in METRICS if metric.kind is not Kind.GAUGE
        }

    def tell(self, note: Note) -> None:
        """Count it."""
        if isinstance(note, HandlerRan) and note.failure is None:
            self._grow((note.act.delivery.event_type, note.act.handler_name, HandlerRan), note, note.seconds)
        elif isinstance(note, Finished) and type(note.outcome) is Handled:
            self._grow((note.delivery.event_type, note.delivery.target, Finished), note, note.ack_seconds)
        elif isinstance(note, Published) and note.failure is None and len(note.act.envelopes) == 1:
            self._grow((note.act.envelopes[0].event_type, "", Published), note, note.seconds)
        else:
            measures = measure(note)
            if measures:
                self.add(measures)

    def tell_many_at(self, notes: Sequence[Finished] | Sequence[HandlerRan], at: float) -> None:  # noqa: ARG002  counted, not dated
        """Count many that went well: all that have their names in common at once."""
        if not notes:
            return
        # By position: to ask a tuple for its fields by name takes longer.
        if isinstance(notes[0], Finished):
            settled = cast("Sequence[Finished]", notes)
            kinds, whose = [note[0][2] for note in settled], [note[0][6] for note in settled]
            durations = [note[4] for note in settled]
        else:
            ran = cast("Sequence[HandlerRan]", notes)
            kinds, whose = [note[0][0][2] for note in ran], [note[0][1] for note in ran]
            durations = [note[1] for note in ran]
        alike: dict[tuple[str, str], tuple[Note, list[float]]] = {}
        if kinds.count(kinds[0]) == whose.count(whose[0]) == len(notes):  # as mostly
            alike[kinds[0], whose[0]] = notes[0], durations
        else:
            for number, names in enumerate(zip(kinds, whose, strict=True)):
                alike.setdefault(names, (notes[number], []))[1].append(durations[number])
        with self._lock:
            for names, (first, every) in alike.items():
                self._count((*names, type(first)), first, every)

    def tell_published(self, notes: Sequence[tuple[Published, float]]) -> None:
        """Count many publishes that went well: of single events all that have their type in common at once."""
        alike: dict[str, tuple[Note, list[float]]] = {}
        for note, _ in notes:
            envelopes = note.act.envelopes
            if len(envelopes) == 1:
                alike.setdefault(envelopes[0].event_type, (note, []))[1].append(note.seconds)
            else:
                self.add(measure(note))
        with self._lock:
            for event_type, (first, every) in alike.items():
                self._count((event_type, "", Published), first, every)

    def _count(self, key: tuple[str, str, type[Note]], first: Note, every: Sequence[float]) -> None:
        """So many that are alike, and how long each took; with the lock."""
        for cell, buckets in self._known.get(key) or self._learn(key, first):
            if buckets:
                _count_all(cell, buckets, every)
            else:
                cell[-1] += len(every)

    def _grow(self, key: tuple[str, str, type[Note]], note: Note, seconds: float) -> None:
        """Count what comes of each event that goes well: one more of some, and of one how long it took.

        Where to count it is remembered, for all that have this in common.
        """
        with self._lock:
            cells = self._known.get(key)
            if cells is None:
                cells = self._learn(key, note)
            for cell, buckets in cells:
                if buckets:
                    cell[-1] += seconds
                    cell[bisect_left(buckets, seconds)] += 1
                else:
                    cell[-1] += 1

    def _learn(self, key: tuple[str, str, type[Note]], note: Note) -> list[tuple[list[float], tuple[float, ...]]]:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        cells = [
            (self._cells[metric].get(labels) or self._cell(metric, labels), metric.buckets)
            for metric, labels, _ in measure(note)
        ]
        return self._known.setdefault(key, cells)

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


def _count_all(cell: list[float], buckets: tuple[float, ...], durations: Sequence[float]) -> None:
    """How many are in each bucket."""
    if len(durations) < len(buckets):
        for seconds in durations:
            cell[-1] += seconds
            cell[bisect_left(buckets, seconds)] += 1
        return
    # Of many durations: it takes less to look for each bound among them.
    ordered = sorted(durations)
    cell[-1] += sum(ordered)
    before = 0
    for number, bound in enumerate(buckets):
        until = bisect_right(ordered, bound, before)
        cell[number] += until - before
        before = until
    cell[len(buckets)] += len(ordered) - before


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.start_anew()


os.register_at_fork(after_in_child=_after_fork)
