"""Metrics over OpenTelemetry: told to the provider the program has set, and to nobody before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from spectral.core.events import metrics
from spectral.core.events.infrastructure.observability import otel_metrics
from spectral.core.events.infrastructure.observability.otel_metrics import OpenTelemetryMetrics, observe
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.metrics import METRICS, Kind, Sample
from spectral.core.events.probe import Failure, SettlementWritten
from tests.unit.test_metrics_recorder import finished, life, published, ran
from tests.unit.test_routes import COMPLETED
from tests.unit.test_watch import PATIENCE

Points = dict[tuple[str, frozenset[tuple[str, Any]]], Any]


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """What a provider collects that is, for this test, the process's own."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    yield reader
    provider.shutdown()


def collected(reader: InMemoryMetricReader) -> Points:
    data = reader.get_metrics_data()
    return {
        (metric.name, frozenset((point.attributes or {}).items())): point
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_what_opentelemetry_is_told_is_what_the_recorder_counts(reader: InMemoryMetricReader) -> None:
    tool, recorder = OpenTelemetryMetrics(), Recorder()
    for note in life():
        tool.tell(note)
        recorder.tell(note)
    added = {"messaging.system", "messaging.operation.name"}
    points: dict[tuple[str, ...], object] = {}
    for (name, attributes), point in collected(reader).items():
        by_name = dict(attributes)
        metric = next(each for each in METRICS if each.name == name)
        assert set(by_name) <= set(metric.labels) | added
        key = (name, *(str(by_name.get(label, "")) for label in metric.labels))
        points[key] = (point.bucket_counts, point.sum) if metric.buckets else point.value
    expected: dict[tuple[str, ...], object] = {(s.metric.name, *s.labels): s.value for s in recorder.samples()}
    expected |= {(d.metric.name, *d.labels): (d.counts, d.total) for d in recorder.distributions()}
    assert points == expected


def test_messages_are_told_as_the_conventions_want(reader: InMemoryMetricReader) -> None:
    tool = OpenTelemetryMetrics()
    tool.tell(ran())
    tool.tell(ran(error="ValueError"))
    told = {
        "messaging.system": "spectral",
        "messaging.operation.name": "process",
        "messaging.destination.name": COMPLETED,
        "messaging.consumer.group.name": "platform",
        "spectral.handler": "platform.project",
    }
    points = collected(reader)
    assert set(points) == {
        ("messaging.process.duration", frozenset(told.items())),
        ("messaging.process.duration", frozenset((told | {"error.type": "ValueError"}).items())),
    }
    assert {point.explicit_bounds for point in points.values()} == {metrics.PROCESS_DURATION.buckets}


def test_a_publish_that_failed_is_told_with_its_error(reader: InMemoryMetricReader) -> None:
    tool = OpenTelemetryMetrics()
    tool.tell(published(COMPLETED))
    tool.tell(published(COMPLETED, failure=Failure("PublishError", "no")))
    told = {
        "messaging.system": "spectral",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    durations = {attributes for name, attributes in collected(reader) if name == "messaging.client.operation.duration"}
    assert durations == {frozenset(told.items()), frozenset((told | {"error.type": "PublishError"}).items())}


def test_many_types_of_events_make_two_hundred_series_and_one(reader: InMemoryMetricReader) -> None:
    tool = OpenTelemetryMetrics()
    for number in range(1_000):
        tool.tell(finished(event_type=f"worlds.kind_{number}"))
    assert sum(name == "messaging.client.consumed.messages" for name, _ in collected(reader)) == 201


def test_two_watches_of_a_process_count_together(reader: InMemoryMetricReader) -> None:
    first, second = OpenTelemetryMetrics(), OpenTelemetryMetrics()
    for tool in (first, first, second):
        tool.tell(finished())
    values = {name: point for (name, _), point in collected(reader).items()}
    assert values["messaging.client.consumed.messages"].value == 3
    assert values["spectral.ack.duration"].count == 3


def test_while_there_is_no_provider_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> None:
        raise AssertionError("measured for nobody")

    monkeypatch.setattr(otel_metrics, "measure", never)
    for provider in (otel.get_meter_provider(), otel.NoOpMeterProvider()):
        monkeypatch.setattr(otel, "get_meter_provider", lambda provider=provider: provider)
        OpenTelemetryMetrics().tell(finished())


def test_what_is_read_is_read_once_for_a_collection(reader: InMemoryMetricReader) -> None:
    reads = 0

    def samples() -> list[Sample]:
        nonlocal reads
        reads += 1
        gauges = [Sample(each, ("x",) * len(each.labels), 7) for each in METRICS if each.kind is Kind.GAUGE]
        return [*gauges, Sample(metrics.PROBE_DROPPED, ("logs",), 7), Sample(metrics.PROBE_FAILED, ("logs",), 7)]

    stop = observe(samples)
    OpenTelemetryMetrics().tell(finished())  # its instruments and these are not the same
    points = collected(reader)
    stop()  # or later tests' programs would be told of these
    observed = {name: point.value for (name, _), point in points.items() if hasattr(point, "value")}
    read = {each.metric.name for each in samples()}
    assert {name for name, value in observed.items() if value == 7} == read
    assert reads == 2, "one of them is this test's"
    assert ("spectral.worker.state", frozenset({("state", "x")})) in points


# Newer interpreters warn of a fork beside threads, which is what this is about.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_reads_anew_although_its_parent_was_reading() -> None:
    parent, reads, let_go = os.getpid(), threading.Event(), threading.Event()

    def samples() -> list[Sample]:
        if os.getpid() == parent:
            reads.set()
            assert let_go.wait(60)
        return [Sample(metrics.EMITTER_UP, (), 1)]

    # As an instrument asks; a provider of the SDK has locks of its own, which are its own to renew.
    observed = otel_metrics._ReadAtOnce(samples).of(metrics.EMITTER_UP)
    collecting = threading.Thread(target=observed, args=(otel.CallbackOptions(),))
    collecting.start()
    try:
        assert reads.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # ends it, if it waits for a thread that it does not have
            os._exit(0 if [each.value for each in observed(otel.CallbackOptions())] == [1] else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        let_go.set()
        collecting.join()


def test_a_provider_that_comes_later_is_told_from_then_on() -> None:
    script = """
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from spectral.core.events import metrics
from spectral.core.events.infrastructure.observability.otel_metrics import OpenTelemetryMetrics, observe
from spectral.core.events.metrics import Sample
from spectral.core.events.probe import LoopBlocked

tool, reader = OpenTelemetryMetrics(), InMemoryMetricReader()
observe(lambda: [Sample(metrics.EMITTER_UP, (), 1)])
tool.tell(LoopBlocked(1.0))
otel.set_meter_provider(MeterProvider([reader]))
tool.tell(LoopBlocked(1.0))
(resource,) = reader.get_metrics_data().resource_metrics
for scope in resource.scope_metrics:
    for metric in scope.metrics:
        print(metric.name, *(point.value for point in metric.data.data_points))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["spectral.emitter.up 1", "spectral.loop.blocked 1.0"]


def test_a_collection_that_has_everything_told_first_does_not_wait_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds what the instruments of a provider that nobody has told of yet are made with."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    watch = Watch({"otel_metrics": (tool := OpenTelemetryMetrics())})

    def read() -> list[Sample]:
        watch.catch_up()
        return [Sample(metrics.EMITTER_UP, (), 1)]

    end = observe(read)
    watch.tell(SettlementWritten(1, 0.1))
    collecting = threading.Thread(target=reader.collect, daemon=True)
    collecting.start()
    collecting.join(PATIENCE)
    assert not collecting.is_alive()
    tool.tell(finished())
    assert "messaging.client.consumed.messages" in {name for name, _ in collected(reader)}, "counted soon after it"
    end()
    provider.shutdown()
