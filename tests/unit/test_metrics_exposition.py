"""Numbers become the text of a scrape, which Prometheus's own parser reads back."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spectral.core.events import ConfigurationError, metrics
from spectral.core.events.delivery.health import State
from spectral.core.events.infrastructure.observability import prometheus
from spectral.core.events.infrastructure.observability.health_samples import (
    health_samples,
    relay_samples,
    trouble_samples,
)
from spectral.core.events.infrastructure.observability.prometheus import exposition
from spectral.core.events.metrics import METRICS, Kind, Metric, Sample, prometheus_labels, prometheus_name
from spectral.core.events.probe import SubstrateLost
from spectral.core.events.relay.health import RelayHealth, RelayState
from tests.unit.test_metrics_recorder import SECOND, finished, life, told
from tests.unit.test_worker_process import IDLE


def parsed(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """By full name, and the values of the labels in the order of their names."""
    values: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            assert labels not in values.setdefault(sample.name, {}), "a series occurs once"
            values[sample.name][labels] = sample.value
    return values


def every_gauge() -> list[Sample]:
    """What the emitter reads, made up."""
    read = {each.metric for each in health_samples(IDLE)}
    gauges = [metric for metric in METRICS if metric.kind is Kind.GAUGE and metric not in read]
    return [Sample(metric, ("x",) * len(metric.labels), 1) for metric in gauges]


def scraped() -> bytes:
    recorder = told(*life())
    samples = [*recorder.samples(), *health_samples(IDLE), *trouble_samples({"logs": (2, 1)}), *every_gauge()]
    return exposition(samples, recorder.distributions())


def broker_of(samples: list[Sample]) -> list[float]:
    return [each.value for each in samples if each.metric is metrics.BROKER_CONNECTED]


def test_a_worker_says_whether_its_broker_answers_and_nothing_if_it_needs_none() -> None:
    assert broker_of(health_samples(IDLE)) == []
    assert broker_of(health_samples(replace(IDLE, takes_from="nats"))) == [1]
    assert broker_of(health_samples(replace(IDLE, takes_from="postgres", has_fallen_back=True))) == [0]


def test_a_relay_says_so_while_it_has_to_send() -> None:
    standing = RelayHealth(
        state=RelayState.STANDING,
        relay="me",
        broker="nats",
        mode="postgres",
        connected=False,
        broker_down_seconds=0.0,
        listening=True,
        sent=0,
        resent=0,
        refused=0,
        lag_seconds=0.0,
    )
    assert broker_of(relay_samples(standing)) == []
    assert broker_of(relay_samples(replace(standing, mode="nats"))) == [0]
    assert broker_of(relay_samples(replace(standing, mode="nats", connected=True))) == [1]
    assert broker_of(relay_samples(replace(standing, mode="redis"))) == []


def test_every_metric_occurs_after_a_life_with_its_help_kind_and_labels() -> None:
    families = {family.name: family for family in text_string_to_metric_families(scraped().decode())}

    def expected(metric: Metric) -> str:
        return (
            prometheus_name(metric).removesuffix("_total") if metric.kind is Kind.COUNTER else prometheus_name(metric)
        )

    assert list(families) == [expected(metric) for metric in METRICS]
    for metric in METRICS:
        family = families[expected(metric)]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(prometheus_labels(metric))


def test_a_histogram_is_cumulative_and_ends_with_its_count() -> None:
    recorder = told(*(finished(seconds=seconds) for seconds in (0.0005, 0.4, 0.5, 1000)))
    values = parsed(exposition([], recorder.distributions()))
    buckets = values["spectral_ack_duration_seconds_bucket"]
    assert [buckets["platform", bound] for bound in ("0.001", "0.35", "0.5", "300.0", "+Inf")] == [1, 1, 3, 3, 4]
    assert values["spectral_ack_duration_seconds_count"] == {("platform",): 4}
    assert values["spectral_ack_duration_seconds_sum"]["platform",] == pytest.approx(1000.9005)


def test_a_label_may_say_anything() -> None:
    wild = 'a"b\\c\nd\u202e\x1bé'
    text = exposition(told(SubstrateLost(wild, "", SECOND)).samples())
    assert parsed(text) == {"spectral_database_lost_total": {(wild,): 1}}
    assert len(text.splitlines()) == 3


def test_of_two_samples_of_a_series_the_later_one_is_shown() -> None:
    given = [Sample(metrics.WORKERS, ("1",), 2), Sample(metrics.WORKERS, ("1",), 3)]
    assert parsed(exposition(given)) == {"spectral_workers": {("1",): 3}}


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prometheus.is_installed()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'spectral-events\[metrics\]'$"):
        exposition([])


# what is read


def test_how_a_worker_is_becomes_gauges() -> None:
    health = replace(IDLE, state=State.DEGRADED, held=3, running=2, listening=False, ear_down_seconds=4.5)
    found = {(each.metric.name, *each.labels): each.value for each in health_samples(health)}
    states = {state for state in State if found.pop(("spectral.worker.state", state))}
    assert states == {State.DEGRADED}
    assert found == {
        ("spectral.worker.held",): 3,
        ("spectral.worker.running",): 2,
        ("spectral.worker.generation",): 1,
        ("spectral.ear.connected",): 0,
        ("spectral.ear.down.seconds",): 4.5,
        ("spectral.loop.blocked.seconds",): 0,
    }


def test_what_the_tools_missed_is_counted_by_tool() -> None:
    assert trouble_samples({"logs": (2, 1)}) == [
        Sample(metrics.PROBE_DROPPED, ("logs",), 2),
        Sample(metrics.PROBE_FAILED, ("logs",), 1),
    ]
