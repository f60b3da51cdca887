"""Histograms that the library keeps: a collector reads what the SDK would have sent, but for the least and largest."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import metrics as otel
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource

from spectral.core.events.infrastructure.observability.otel_metrics import OpenTelemetryMetrics
from spectral.core.events.outcome import Handled, Retry
from spectral.core.events.probe import (
    Claimed,
    Failure,
    Finished,
    Handle,
    HandlerRan,
    LoopBlocked,
    Note,
    SettlementWritten,
)
from spectral_workers.kept_histograms import ReadingProvider, provider_for
from tests.unit.log_notes import delivery, envelope, finished, published

RESOURCE = Resource({"service.name": "tests"})


class Kept(MetricExporter):
    """Keeps what it is given."""

    def __init__(self, **preferred: Any) -> None:  # noqa: ANN401  the SDK's
        super().__init__(**preferred)
        self.data: list[MetricsData] = []
        self.ended = threading.Event()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> MetricExportResult:  # noqa: ANN401  as above
        del timeout_millis
        self.data.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:  # noqa: ANN401  as above
        del timeout_millis
        self.ended.set()


def ran(seconds: float, failure: Failure | None = None) -> HandlerRan:
    return HandlerRan(Handle(delivery(), "worlds.index"), seconds, failure, None)


NOTES: list[Note] = [
    Claimed("platform", 3, 0.004, deaf=True),
    *(ran(seconds) for seconds in (0.0, 0.001, 0.005, 0.0051, 1.0, 100_000.0)),
    ran(0.2, Failure("ValueError", "no")),
    *(Finished(delivery(), Handled(), ("worlds.index",), 0.1, seconds) for seconds in (0.01, 0.5, 7.0)),
    finished(Retry("ValueError: no", timedelta(1))),
    published(envelope()),
    published(envelope(), envelope()),
    published(envelope(), failure=Failure("PublishError", "no")),
    SettlementWritten(3, 0.25),
]


def told(make: Callable[[MetricExporter], MeterProvider], monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401  a message
    """What a collector is sent, in an order that can be compared, without times."""
    provider = make(exporter := Kept())
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    tool = OpenTelemetryMetrics()
    for note in NOTES:
        tool.tell(note)
    tool.tell(LoopBlocked(1.0))  # a counter that is said from the beginning
    provider.force_flush()
    provider.shutdown()
    (around,) = encode_metrics(exporter.data[0]).resource_metrics
    (scope,) = around.scope_metrics
    for metric in scope.metrics:
        for point in (*metric.histogram.data_points, *metric.sum.data_points):
            for field in ("start_time_unix_nano", "time_unix_nano"):
                assert getattr(point, field) > 0
                point.ClearField(field)
            point.attributes.sort(key=lambda each: each.key)
        for point in metric.histogram.data_points:
            point.ClearField("min")
            point.ClearField("max")
        metric.histogram.data_points.sort(key=str)
        metric.sum.data_points.sort(key=str)
    scope.metrics.sort(key=lambda metric: metric.name)
    return around


def by_the_sdk(exporter: MetricExporter) -> MeterProvider:
    return MeterProvider([PeriodicExportingMetricReader(exporter)], RESOURCE, shutdown_on_exit=False)


def test_a_collector_reads_what_the_sdk_would_have_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = told(lambda exporter: provider_for([exporter], RESOURCE), monkeypatch)
    full = told(by_the_sdk, monkeypatch)
    assert {metric.name for metric in kept.scope_metrics[0].metrics if metric.HasField("histogram")} == {
        "messaging.process.duration",
        "messaging.client.operation.duration",
        "spectral.ack.duration",
    }
    assert str(kept) == str(full)


def test_the_least_and_the_largest_are_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = provider_for([exporter := Kept()], RESOURCE)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    tool = OpenTelemetryMetrics()
    tool.tell(Claimed("platform", 3, 0.004, deaf=True))
    provider.force_flush()
    tool.tell(Claimed("platform", 3, 0.004, deaf=True))
    provider.shutdown()
    counts = []
    for data in exporter.data:
        (around,) = encode_metrics(data).resource_metrics
        (metric,) = [each for each in around.scope_metrics[0].metrics if each.HasField("histogram")]
        (point,) = metric.histogram.data_points
        assert not point.HasField("min")
        assert not point.HasField("max")
        counts.append(point.count)
    assert counts == [1, 2], "from the beginning, each time"
    assert exporter.ended.is_set()


def test_metrics_of_the_programs_own_are_sent_as_ever() -> None:
    provider = provider_for([exporter := Kept()], RESOURCE)
    provider.get_meter("mine").create_counter("mine").add(1)
    provider.force_flush()
    provider.shutdown()
    (around,) = exporter.data[0].resource_metrics
    assert [(each.scope.name, [metric.name for metric in each.metrics]) for each in around.scope_metrics] == [
        ("mine", ["mine"])
    ]


@pytest.mark.parametrize(
    "preferred",
    [
        {"preferred_temporality": {Histogram: AggregationTemporality.DELTA}},
        {"preferred_aggregation": {Histogram: ExponentialBucketHistogramAggregation()}},
        {"preferred_aggregation": {Histogram: ExplicitBucketHistogramAggregation([1.0])}},
    ],
    ids=["delta", "exponential", "its own buckets"],
)
def test_an_exporter_that_wants_them_differently_has_them_of_the_sdk(
    preferred: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = provider_for([exporter := Kept(**preferred)], RESOURCE)
    assert not isinstance(provider, ReadingProvider)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    OpenTelemetryMetrics().tell(ran(0.1))
    provider.force_flush()
    provider.shutdown()
    (around,) = encode_metrics(exporter.data[0]).resource_metrics
    assert [metric.name for scope in around.scope_metrics for metric in scope.metrics] == ["messaging.process.duration"]


def test_the_exporter_of_the_worker_takes_them() -> None:
    provider = provider_for([OTLPMetricExporter(endpoint="http://127.0.0.1:9/v1/metrics", timeout=0.1)], RESOURCE)
    assert isinstance(provider, ReadingProvider)


def test_durations_are_sent_although_nothing_else_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = provider_for([exporter := Kept()], RESOURCE)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    OpenTelemetryMetrics().tell(ran(0.1))
    provider.force_flush()
    provider.shutdown()
    (around,) = exporter.data[0].resource_metrics
    assert "messaging.process.duration" in {metric.name for each in around.scope_metrics for metric in each.metrics}


def test_what_cannot_be_read_costs_nothing_else() -> None:
    def fail() -> list[Any]:
        raise ValueError("no")

    provider = provider_for([exporter := Kept()], RESOURCE)
    assert isinstance(provider, ReadingProvider)
    provider.read_distributions(fail)
    provider.get_meter("mine").create_counter("mine").add(1)
    provider.force_flush()
    provider.shutdown()
    (around,) = exporter.data[0].resource_metrics
    assert [each.scope.name for each in around.scope_metrics] == ["mine"]


def test_what_was_counted_last_is_sent_with_the_last_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = provider_for([exporter := Kept()], RESOURCE)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    tool = OpenTelemetryMetrics()
    for _ in range(2):
        tool.tell(Claimed("platform", 3, 0.004, deaf=True))
        provider.force_flush()
    provider.shutdown()
    sums = [
        point.as_int or point.as_double
        for data in exporter.data[:2]
        for metric in encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics
        if metric.name == "spectral.poll.fallbacks"
        for point in metric.sum.data_points
    ]
    assert sums == [1, 2]


@pytest.mark.parametrize(("reads", "only_counts"), [(True, True), (False, False)])
def test_a_provider_that_is_told_of_nothing_needs_no_outlet(
    reads: bool,  # noqa: FBT001  a case
    only_counts: bool,  # noqa: FBT001  as above
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tool = OpenTelemetryMetrics()
    assert not tool.only_counts, "nobody has set a provider"
    provider = provider_for([Kept()], RESOURCE) if reads else by_the_sdk(Kept())
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    assert tool.only_counts is only_counts
    provider.shutdown()


FORKED = """
import json, os, time
from opentelemetry import metrics as otel
from opentelemetry.sdk.resources import Resource
from spectral.core.events.infrastructure.observability.otel_metrics import OpenTelemetryMetrics
from spectral_workers.kept_histograms import provider_for
from tests.unit.test_kept_histograms import Kept, ran

provider = provider_for([exporter := Kept()], Resource({}))
otel.set_meter_provider(provider)
tool = OpenTelemetryMetrics()

def say(who):
    exporter.data.clear()
    provider.force_flush()
    points = [(metric.name, point)
              for around in exporter.data[0].resource_metrics for scope in around.scope_metrics
              for metric in scope.metrics for point in metric.data.data_points]
    for name, point in points:
        if name == "messaging.process.duration":
            print(who, "ran", point.count, point.sum, point.start_time_unix_nano >= forked_at, flush=True)
    print(who, len(points), "metrics", flush=True)

for seconds in (0.5, 0.25):
    tool.tell(ran(seconds))
forked_at = time.time_ns()
child = os.fork()
if child == 0:
    say("new child")
    tool.tell(ran(2.0))
    say("child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
say("parent")
provider.shutdown()
"""


def test_the_child_of_a_fork_does_not_send_what_its_parent_has_counted() -> None:
    # Newer interpreters warn of a fork beside threads, which is what this is about.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "new child 1 metrics",  # without any, nothing would be sent
        "child ran 1 2.0 True",
        "child 2 metrics",
        "parent ran 2 0.75 False",
        "parent 2 metrics",
    ]
