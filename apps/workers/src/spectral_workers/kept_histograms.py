"""Histograms as the library keeps them, for the meter provider that the worker sets up.

To tell OpenTelemetry of a duration takes longer than to handle a quick event, and there are several for each. What is
counted for Prometheus takes a fiftieth of that, and is all that a collector is sent in the end: so it is kept the same
way, and joins what the provider has collected on its way to the exporter. The least and the largest of a histogram,
and exemplars, all of which the protocol leaves open, are not said.

Only if the exporter wants histograms as we keep them: from the beginning, with the buckets they are described with.
Else the provider is told of every duration, as one that the program has brought is.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.view import DefaultAggregation, ExplicitBucketHistogramAggregation
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from spectral.core.events.infrastructure.observability.otel_metrics import SCOPE, attributes_of
from spectral_workers import losses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.resources import Resource

    from spectral.core.events.metrics import Distribution

_AS_DESCRIBED: Final = (DefaultAggregation, ExplicitBucketHistogramAggregation)
_joining: Final[WeakSet[_Joining]] = WeakSet()


def provider_for(exporters: Sequence[MetricExporter], resource: Resource) -> MeterProvider:
    """A provider of the SDK that sends to these exporters; one that reads histograms, if all of them take them."""
    if not all(map(_takes_ours, exporters)):
        readers = [PeriodicExportingMetricReader(_Joining(exporter)) for exporter in exporters]
        return MeterProvider(readers, resource, shutdown_on_exit=False)  # its own way to end would wait for ever
    return ReadingProvider(exporters, resource)


def _takes_ours(exporter: MetricExporter) -> bool:
    """Whether it wants them from the beginning, and has said nothing else about their buckets."""
    temporality = (exporter._preferred_temporality or {}).get(Histogram, AggregationTemporality.CUMULATIVE)  # noqa: SLF001  by no public name
    aggregation: object = (exporter._preferred_aggregation or {}).get(Histogram)  # noqa: SLF001  as above
    has_own_buckets = getattr(aggregation, "_boundaries", None) is not None
    is_as_described = aggregation is None or (type(aggregation) in _AS_DESCRIBED and not has_own_buckets)
    return temporality is AggregationTemporality.CUMULATIVE and is_as_described


class ReadingProvider(MeterProvider):
    """Implements `ReadsDistributions`."""

    def __init__(self, exporters: Sequence[MetricExporter], resource: Resource) -> None:
        self._joining = [_Joining(exporter) for exporter in exporters]
        readers = [PeriodicExportingMetricReader(each) for each in self._joining]
        super().__init__(readers, resource, shutdown_on_exit=False)  # as above

    def read_distributions(self, read: Callable[[], Sequence[Distribution]]) -> None:
        """See `ReadsDistributions`."""
        for each in self._joining:
            each.reads.append((read, time.time_ns()))


class _Joining(MetricExporter):
    """Sends what was collected, and what is kept, as one; keeps count of what cannot be sent."""

    def __init__(self, exporter: MetricExporter) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,  # noqa: SLF001  as above
            preferred_aggregation=exporter._preferred_aggregation,  # noqa: SLF001  as above
        )
        self._exporter = exporter
        self.reads: list[tuple[Callable[[], Sequence[Distribution]], int]] = []
        _joining.add(self)

    def start_anew(self) -> None:
        """In the child of a fork, whose recorders begin there: see `Recorder`."""
        now = time.time_ns()
        self.reads = [(read, now) for read, _ in self.reads]

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **kwargs: Any,  # noqa: ANN401  the SDK's
    ) -> MetricExportResult:
        """See `MetricExporter`."""
        result = MetricExportResult.FAILURE
        try:
            result = self._exporter.export(self._joined(metrics_data), timeout_millis, **kwargs)
        finally:
            if result is not MetricExportResult.SUCCESS:
                losses.METRICS.count(failed=1)
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """See `MetricExporter`."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ANN401  as above
        """See `MetricExporter`."""
        self._exporter.shutdown(timeout_millis, **kwargs)

    def _joined(self, collected: MetricsData) -> MetricsData:
        try:
            kept = [metric for read, since in self.reads for metric in _metrics(read(), since)]
            first, *others = collected.resource_metrics
            return replace(collected, resource_metrics=[_with(first, kept), *others]) if kept else collected
        except Exception:  # noqa: BLE001  what the program counts itself is sent nevertheless
            return collected


def _with(around: ResourceMetrics, kept: Sequence[Metric]) -> ResourceMetrics:
    """With these among the metrics of our own scope."""
    ours = next((each for each in around.scope_metrics if each.scope.name == SCOPE), None)
    if ours is None:
        ours = ScopeMetrics(InstrumentationScope(SCOPE), [], "")
    others = [each for each in around.scope_metrics if each is not ours]
    return replace(around, scope_metrics=[*others, replace(ours, metrics=[*ours.metrics, *kept])])


def _metrics(distributions: Sequence[Distribution], since: int) -> list[Metric]:
    now = time.time_ns()
    by_metric: dict[str, list[Distribution]] = {}
    for each in distributions:
        by_metric.setdefault(each.metric.name, []).append(each)
    return [
        Metric(
            name,
            each[0].metric.help,
            each[0].metric.unit,
            HistogramData([_point(one, since, now) for one in each], AggregationTemporality.CUMULATIVE),
        )
        for name, each in by_metric.items()
    ]


def _point(distribution: Distribution, since: int, now: int) -> HistogramDataPoint:
    unsaid: Any = None
    return HistogramDataPoint(
        attributes=attributes_of(distribution.metric, distribution.labels),
        start_time_unix_nano=since,
        time_unix_nano=now,
        count=distribution.count,
        sum=distribution.total,
        bucket_counts=distribution.counts,
        explicit_bounds=distribution.metric.buckets,
        min=unsaid,
        max=unsaid,
    )


def _after_fork() -> None:
    for each in list(_joining):
        each.start_anew()


os.register_at_fork(after_in_child=_after_fork)
