"""OpenTelemetry, metrics: told to whatever meter provider the program has set, and to nobody while there is none."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics as otel

from spectral.core.events import metrics
from spectral.core.events.infrastructure.observability.measures import measure
from spectral.core.events.infrastructure.observability.outlet import flush_first
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.metrics import METRICS, BoundedLabels, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

    from spectral.core.events.infrastructure.observability.measures import Measure
    from spectral.core.events.metrics import Distribution, Metric, Sample
    from spectral.core.events.probe import Finished, HandlerRan, Note, Published

SCOPE: Final = "spectral"
_OPERATION: Final = "messaging.operation.name"

# What the conventions require beside the labels. It never varies, so Prometheus is spared it.
_CONSTANT: Final[dict[Metric, dict[str, str]]] = {
    metrics.OPERATION_DURATION: {"messaging.system": "spectral"},
    metrics.SENT_MESSAGES: {"messaging.system": "spectral", _OPERATION: "publish"},
    metrics.CONSUMED_MESSAGES: {"messaging.system": "spectral", _OPERATION: "process"},
    metrics.PROCESS_DURATION: {"messaging.system": "spectral", _OPERATION: "process"},
}

_READ: Final = frozenset(metric for metric in METRICS if metric.kind is Kind.GAUGE) | {
    metrics.PROBE_DROPPED,
    metrics.PROBE_FAILED,
}
"""Nobody is told of these: they are read when they are wanted."""

_READ_ANEW_AFTER: Final = 1.0
"""Seconds: one collection asks for every gauge, and all of them are read at once."""


class ReadsDistributions(Protocol):
    """What a meter provider may offer beside OpenTelemetry's interface."""

    def read_distributions(self, read: Callable[[], Sequence[Distribution]]) -> None:
        """Have these read whenever it collects, instead of being told of every duration."""
        ...


class OpenTelemetryMetrics:
    """Implements `Tool`; belongs behind an outlet, because nobody knows what a meter does, unless it is told nothing.

    All of them in a process count together, for a provider reads an instrument once, whoever has made it.
    """

    def __init__(self) -> None:
        self._provider: MeterProvider | None = None
        self._instruments: _Instruments | None = None

    def cares_for(self, kind: type[Note]) -> bool:  # noqa: ARG002  for every kind, or for none
        """Whether somebody has set a meter provider by now."""
        return self._look() is not None

    @property
    def only_counts(self) -> bool:
        """See `Tool`."""
        instruments = self._look()
        return instruments is not None and instruments.only_count

    def tell(self, note: Note, at: float | None = None) -> None:  # noqa: ARG002  meters keep their own time
        """Record it, if somebody has set a meter provider by now."""
        instruments = self._look()
        if instruments is not None:
            instruments.tell(note)

    def tell_many_at(self, notes: Sequence[Finished] | Sequence[HandlerRan], at: float) -> None:
        """The same of many that went well."""
        instruments = self._look()
        if instruments is not None and instruments.only_count:
            instruments.counted.tell_many_at(notes, at)
            return
        for note in notes:
            self.tell(note, at)

    def tell_published(self, notes: Sequence[tuple[Published, float]]) -> None:
        """The same of many publishes that went well."""
        instruments = self._look()
        if instruments is not None and instruments.only_count:
            instruments.counted.tell_published(notes)
            return
        for note, at in notes:
            self.tell(note, at)

    def _look(self) -> _Instruments | None:
        provider = otel.get_meter_provider()
        # Not in a collection, which has what is needed to make instruments, and waits for its end: soon after it.
        if provider is not self._provider and not _collecting.is_on:
            self._instruments = _instruments_of(provider) if _is_real(provider) else None
            self._provider = provider
        return self._instruments


class _Instruments:
    """What a provider is told with.

    What only grows is counted here and read by the provider when it collects; it is told of durations alone, unless it
    reads them too.
    """

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)
        self.counted = Recorder()
        offered: object = getattr(provider, "read_distributions", None)
        reads = cast("ReadsDistributions", provider) if callable(offered) else None
        self._durations: dict[Metric, Callable[[float, dict[str, str]], None]] = {}
        if reads is None:
            self._durations = {metric: _duration(meter, metric) for metric in METRICS if metric.kind is Kind.HISTOGRAM}
        else:
            reads.read_distributions(self.counted.distributions)
        self._attributes: dict[tuple[Metric, tuple[str, ...]], dict[str, str]] = {}
        self._bounded = BoundedLabels()
        self.start_anew()
        read = _ReadAtOnce(self.counted.samples)
        for metric in METRICS:
            if metric.kind is Kind.COUNTER and metric not in _READ:
                meter.create_observable_counter(metric.name, [read.of(metric)], metric.unit, metric.help)

    def start_anew(self) -> None:
        """With nothing counted, and a lock that nobody holds; also in the child of a fork, see `Recorder`."""
        self._lock = threading.Lock()
        self.counted.start_anew()
        if self.only_count:
            self.counted.add([(metrics.LOOP_BLOCKED, (), 0)])  # where nothing was collected, nothing is sent

    @property
    def only_count(self) -> bool:
        """Whether the provider reads all of it, and is told of nothing."""
        return not self._durations

    def tell(self, note: Note) -> None:
        """Record it."""
        if self.only_count:
            self.counted.tell(note)
            return
        counted: list[Measure] = []
        for each in measure(note):
            metric, labels, value = each
            record = self._durations.get(metric)
            if record is None:
                counted.append(each)
            else:
                record(value, self._attributes.get((metric, labels)) or self._of(metric, labels))
        if counted:
            self.counted.add(counted)

    def _of(self, metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
        with self._lock:
            bounded = self._bounded.of(metric, labels)
            known = self._attributes.get((metric, bounded))
            if known is None:
                known = self._attributes[metric, bounded] = attributes_of(metric, bounded)
            return known


class _Collecting(threading.local):
    """Whether this thread is asked by a provider that collects."""

    is_on = False


_collecting: Final = _Collecting()
_known: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_knowing = threading.Lock()
_read_at_once: WeakSet[_ReadAtOnce] = WeakSet()


def _instruments_of(provider: MeterProvider) -> _Instruments:
    with _knowing:
        instruments = _known.get(provider)
        if instruments is None:
            instruments = _known[provider] = _Instruments(provider)
            flush_first()
        return instruments


def _after_fork() -> None:
    global _knowing  # noqa: PLW0603  whoever held it may be missing here
    _knowing = threading.Lock()
    for instruments in list(_known.values()):
        instruments.start_anew()
    for read in list(_read_at_once):
        read.start_anew()


os.register_at_fork(after_in_child=_after_fork)


def has_provider() -> bool:
    """Whether somebody has set a meter provider."""
    return _is_real(otel.get_meter_provider())


def observe(samples: Callable[[], Sequence[Sample]]) -> Callable[[], None]:
    """Give what is read, not told, to the meter provider, whenever it collects: gauges, and what the tools missed.

    It may be called before there is a provider. The answer ends it.
    """
    _sources.append(samples)
    provider = otel.get_meter_provider()
    if provider not in _observed:
        _observed.add(provider)
        meter, read = provider.get_meter(SCOPE), _ReadAtOnce(_read_as_set if _is_real(provider) else _read_as_proxied)
        for metric in METRICS:
            if metric in _READ:
                gauge = metric.kind is Kind.GAUGE
                create = meter.create_observable_gauge if gauge else meter.create_observable_counter
                create(metric.name, [read.of(metric)], metric.unit, metric.help)
    return partial(_sources.remove, samples)


_sources: Final[list[Callable[[], Sequence[Sample]]]] = []
_observed: Final[WeakSet[MeterProvider]] = WeakSet()


def _read_as_set() -> list[Sample]:
    return [sample for samples in list(_sources) for sample in samples()]


def _read_as_proxied() -> list[Sample]:
    """By the instruments of the proxy that stands in for a provider that comes later, unless that has its own."""
    return [] if any(map(_is_real, list(_observed))) else _read_as_set()


class _ReadAtOnce:
    """Reads all samples once for a collection that asks for them metric by metric."""

    def __init__(self, samples: Callable[[], Sequence[Sample]]) -> None:
        self._samples = samples
        self.start_anew()
        _read_at_once.add(self)

    def start_anew(self) -> None:
        """With nothing read, and a lock that nobody holds; also in the child of a fork, see `Recorder`."""
        self._lock = threading.Lock()
        self._read: Sequence[Sample] = ()
        self._read_at = float("-inf")
        self._asked: set[Metric] = set()

    def of(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """What an instrument calls."""

        def observations(_: CallbackOptions) -> Iterable[Observation]:
            return [
                otel.Observation(sample.value, attributes_of(metric, sample.labels))
                for sample in self._fresh(metric)
                if sample.metric is metric
            ]

        return observations

    def _fresh(self, metric: Metric) -> Sequence[Sample]:
        with self._lock:
            # One that is asked for again belongs to another collection, such as the last one before the end.
            if metric in self._asked or time.monotonic() - self._read_at > _READ_ANEW_AFTER:
                _collecting.is_on = True
                try:
                    self._read = self._samples()
                finally:
                    _collecting.is_on = False
                self._read_at = time.monotonic()
                self._asked.clear()
            self._asked.add(metric)
            return self._read


def _is_real(provider: MeterProvider) -> bool:
    """Whether somebody has set it; what the API itself provides does nothing."""
    return not type(provider).__module__.startswith("opentelemetry.metrics")


def _duration(meter: Meter, metric: Metric) -> Callable[[float, dict[str, str]], None]:
    return meter.create_histogram(
        metric.name, metric.unit, metric.help, explicit_bucket_boundaries_advisory=metric.buckets
    ).record


def attributes_of(metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
    """Its labels by name; one without a value is left out."""
    said = {name: value for name, value in zip(metric.labels, labels, strict=True) if value}
    return said | _CONSTANT.get(metric, {})
