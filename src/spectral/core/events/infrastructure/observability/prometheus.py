"""Prometheus: numbers as the text that a scrape reads. Wants the extra `metrics`, and only when it is asked."""

from __future__ import annotations

from collections import defaultdict
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from spectral.core.events.failure import ConfigurationError
from spectral.core.events.metrics import METRICS, Kind, prometheus_labels, prometheus_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from spectral.core.events.metrics import Distribution, Metric, Sample

REMEDY: Final = "pip install 'spectral-events[metrics]'"


def is_installed() -> bool:
    """Whether there is anything to render with; finds out without loading it."""
    return find_spec("prometheus_client") is not None


def exposition(samples: Iterable[Sample], distributions: Iterable[Distribution] = ()) -> bytes:
    """The numbers in the text format of Prometheus, in the order of the catalogue.

    Of two samples with the same labels the later one is taken.

    Raises:
        ConfigurationError: the extra is not installed; the message says how to install it.
    """
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415  an extra
    except ModuleNotFoundError:
        raise ConfigurationError(f"metrics for Prometheus want an extra; {REMEDY}") from None
    return generate_latest(_Collector(samples, distributions))


class _Collector:
    """Implements prometheus_client's `Collector`."""

    def __init__(self, samples: Iterable[Sample], distributions: Iterable[Distribution]) -> None:
        self._samples: defaultdict[Metric, dict[tuple[str, ...], float]] = defaultdict(dict)
        for sample in samples:
            self._samples[sample.metric][sample.labels] = sample.value
        self._distributions: defaultdict[Metric, list[Distribution]] = defaultdict(list)
        for distribution in distributions:
            self._distributions[distribution.metric].append(distribution)

    def collect(self) -> Iterator[Family]:
        """Every metric of which there is something to say."""
        for metric in METRICS:
            if metric in self._distributions:
                yield _histogram(metric, self._distributions[metric])
            elif metric in self._samples:
                yield _numbers(metric, self._samples[metric])


def _numbers(metric: Metric, values: dict[tuple[str, ...], float]) -> Family:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415  an extra

    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(prometheus_name(metric), metric.help, labels=prometheus_labels(metric))
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, distributions: list[Distribution]) -> Family:
    from prometheus_client.metrics_core import HistogramMetricFamily  # noqa: PLC0415  an extra

    bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
    family = HistogramMetricFamily(prometheus_name(metric), metric.help, labels=prometheus_labels(metric))
    for each in distributions:
        family.add_metric(each.labels, list(zip(bounds, accumulate(each.counts), strict=True)), each.total)
    return family
