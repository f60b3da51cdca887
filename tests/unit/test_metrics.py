"""The catalogue of metrics: names in both worlds, units, buckets, and labels that cannot grow without end."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from spectral.core.events import metrics
from spectral.core.events.metrics import (
    METRICS,
    OTHER,
    BoundedLabels,
    Kind,
    Metric,
    Sample,
    prometheus_labels,
    prometheus_name,
)


def named(metric: Metric) -> str:
    return metric.name


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (metrics.PROCESS_DURATION, "messaging_process_duration_seconds"),
        (metrics.SENT_MESSAGES, "messaging_client_sent_messages_total"),
        (metrics.DEAD_LETTERS, "spectral_dead_letters_total"),
        (metrics.BACKLOG, "spectral_backlog"),
        (metrics.BACKLOG_OLDEST_SECONDS, "spectral_backlog_oldest_seconds"),
        (metrics.TABLE_BYTES, "spectral_table_bytes"),
        (metrics.EMITTER_TIMESTAMP, "spectral_emitter_timestamp_seconds"),
        (metrics.LOOP_BLOCKED, "spectral_loop_blocked_total"),
        (metrics.LOOP_BLOCKED_SECONDS, "spectral_loop_blocked_seconds"),
    ],
)
def test_the_prometheus_name_says_the_unit_and_whether_it_only_grows(metric: Metric, name: str) -> None:
    assert prometheus_name(metric) == name


def as_translated(metric: Metric) -> str:
    """Its name as Prometheus and the collector make it of what they get by OTLP, unless they are told otherwise."""
    words = [word for word in re.split(r"[^A-Za-z0-9:]+", metric.name) if word]
    unit = {"s": "seconds", "By": "bytes", "1": ""}.get(metric.unit, metric.unit)
    if unit and not re.fullmatch(r"\{.*\}", unit) and unit not in words:
        words.append(unit)
    if metric.kind is Kind.COUNTER:
        words = [*(word for word in words if word != "total"), "total"]
    if metric.kind is Kind.GAUGE and metric.unit == "1":
        words = [*(word for word in words if word != "ratio"), "ratio"]
    return "_".join(words)


@pytest.mark.parametrize("metric", METRICS, ids=named)
def test_what_is_sent_by_otlp_has_the_name_of_what_is_scraped(metric: Metric) -> None:
    assert as_translated(metric) == prometheus_name(metric)


def test_the_translation_is_the_one_that_is_documented() -> None:
    def translated(name: str, kind: Kind, unit: str) -> str:
        return as_translated(Metric(name, kind, unit, ""))

    assert translated("system.filesystem.usage", Kind.GAUGE, "By") == "system_filesystem_usage_bytes"
    assert translated("system.network.dropped", Kind.COUNTER, "{packets}") == "system_network_dropped_total"
    assert translated("system.filesystem.utilization", Kind.GAUGE, "1") == "system_filesystem_utilization_ratio"
    assert translated("fuel.total.seconds.used", Kind.COUNTER, "s") == "fuel_seconds_used_total"
    assert translated("http.server.duration", Kind.HISTOGRAM, "s") == "http_server_duration_seconds"


def test_every_constant_is_in_the_catalogue_once_and_every_name_is_one_of_its_own() -> None:
    constants = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    assert list(METRICS) == constants
    assert len({metric.name for metric in METRICS}) == len({prometheus_name(metric) for metric in METRICS})
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=named)
def test_an_entry_is_complete_and_fits_both_worlds(metric: Metric) -> None:
    assert re.fullmatch(r"(messaging|spectral)(\.[a-z_]+)+", metric.name)
    assert re.fullmatch(r"[a-z_]+", prometheus_name(metric))
    assert all(re.fullmatch(r"[a-z_]+", label) for label in prometheus_labels(metric))
    assert len(set(metric.labels)) == len(metric.labels)
    assert re.fullmatch(r"[1A-Z][^.]*\.|.*; .*\.", metric.help), "one plain sentence"
    assert re.fullmatch(r"s|By|\{[a-z]+\}", metric.unit)
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_buckets_of_acks_hold_the_bound_of_the_relay_and_a_lost_lease() -> None:
    buckets = metrics.ACK_DURATION.buckets
    assert (buckets[0], buckets[-1]) == (0.001, 300)
    assert 0.5 in buckets
    # A quantile is read off between two bounds: below a second they are never further apart than by two and a half.
    below_a_second = [bound for bound in buckets if bound <= 1]
    assert all(upper / lower <= 2.5 for lower, upper in pairwise(below_a_second))


def test_a_sample_has_a_value_for_each_label() -> None:
    assert Sample(metrics.BACKLOG, ("platform", "1"), 3).value == 3
    with pytest.raises(ValueError, match=r"spectral\.backlog takes the labels"):
        Sample(metrics.BACKLOG, ("platform",), 3)


def test_the_first_two_hundred_values_of_a_label_keep_their_names() -> None:
    bounded = BoundedLabels()
    given = [bounded.of(metrics.SENT_MESSAGES, (f"worlds.kind_{number}",)) for number in range(10_000)]
    assert given[:200] == [(f"worlds.kind_{number}",) for number in range(200)]
    assert set(given[200:]) == {(OTHER,)}
    assert bounded.of(metrics.SENT_MESSAGES, ("worlds.kind_7",)) == ("worlds.kind_7",), "what is known stays known"


def test_a_label_is_bounded_across_metrics_and_apart_from_other_labels() -> None:
    bounded = BoundedLabels(most_values=1)
    assert bounded.of(metrics.RETRIES, ("platform", "a")) == ("platform", "a")
    assert bounded.of(metrics.DEAD_LETTERS, ("platform", "b")) == ("platform", OTHER)
    assert bounded.of(metrics.SENT_MESSAGES, ("b",)) == ("b",)


def test_labels_that_multiply_are_bounded_too() -> None:
    bounded = BoundedLabels(most_values=50, most_sets=100)
    given = {
        bounded.of(metrics.RETRIES, (f"context_{context}", f"type_{kind}"))
        for context in range(60)
        for kind in range(60)
    }
    assert len(given) == 101
    assert (OTHER, OTHER) in given
