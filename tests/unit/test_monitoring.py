"""Alert rules: parsed as Prometheus would, then evaluated on series that were made up for each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final

import promql_parser as promql
import pytest
import yaml

from spectral.core.events import metrics
from spectral.core.events.metrics import METRICS, Kind, Metric, prometheus_labels, prometheus_name
from spectral.core.operations.monitoring import Alert, alerts, alerts_document
from spectral.core.operations.monitoring.alerts import RUNBOOK, Group
from spectral.core.operations.monitoring.queries import duration
from spectral.core.operations.verdict_values import Limits
from tests.unit.promql import SCRAPE, Course, Series, climbing, firing, histogram, nameless, seconds_of, steady

ROOT: Final = Path(__file__).parents[2]
ALERTS: Final = alerts()
LIMITS: Final = Limits()
HOUR: Final = 3_600.0
_PLACE: Final = {"context": "platform", "generation": "7"}
_AT: Final = {"instance": "worker-1:8080", "job": "workers"}
_BESIDE: Final = {"instance": "worker-2:8080", "job": "workers"}


def gauge(metric: Metric, value: float | Course, **labels: str) -> Series:
    """A series of a metric in the catalogue, with the labels that it has there."""
    assert set(prometheus_labels(metric)) == set(labels), metric.name
    return Series(prometheus_name(metric), {**_AT, **labels}, value if callable(value) else lambda _: value)


def counter(metric: Metric, per_second: float, **labels: str) -> Series:
    assert set(prometheus_labels(metric)) == set(labels), metric.name
    return climbing(prometheus_name(metric), per_second, **_AT, **labels)


def acks(fast: float, slow: float) -> list[Series]:
    """So many events a second delivered within 50 ms, and so many that took two seconds."""
    rates = {"0.05": fast, "1.0": fast, "2.5": fast + slow, "+Inf": fast + slow}
    return histogram(prometheus_name(metrics.ACK_DURATION), rates, context="platform", **_AT)


HEALTHY: Final = (
    gauge(metrics.BACKLOG, 12, **_PLACE),
    gauge(metrics.BACKLOG_OLDEST_SECONDS, 2, **_PLACE),
    gauge(metrics.STALE_CLAIMS, 0, **_PLACE),
    gauge(metrics.DLQ_RECENT, 0, **_PLACE),
    gauge(metrics.WORKERS_SERVING, 3, **_PLACE),
    gauge(metrics.DEFAULT_CHANNEL_ROWS, 0),
    gauge(metrics.NOTIFY_QUEUE_USAGE, 0.01),
    gauge(metrics.XMIN_SECONDS, 20, kind="backend"),
    gauge(metrics.XMIN_AGE, 900, kind="backend"),
    gauge(metrics.SWEEP_LATE, 0),
    gauge(metrics.GROWTH_TRIGGER, 0, step="partition"),
    gauge(metrics.GROWTH_TRIGGER, 0, step="relay"),
    gauge(metrics.RELAY_MODE, 0, mode="postgres"),
    gauge(metrics.RELAY_MODE, 1, mode="nats"),
    gauge(metrics.RELAYS, 2),
    gauge(metrics.RELAY_LAG_SECONDS, 1, **_PLACE),
    gauge(metrics.BROKER_CONNECTED, 1),
    gauge(metrics.PARTITIONS_AHEAD, 3),
    gauge(metrics.PARTITIONS_DEFAULT_ROWS, 0),
    gauge(metrics.EMITTER_UP, 1),
    gauge(metrics.WORKER_GENERATION, 7),
    gauge(metrics.EAR_DOWN_SECONDS, 0),
    gauge(metrics.LOOP_BLOCKED_SECONDS, 0),
    gauge(metrics.WORKER_STATE, 0, state="dead"),
    gauge(metrics.WORKER_STATE, 1, state="busy"),
    counter(metrics.OUTCOMES, 50, context="platform", outcome="delivered"),
    counter(metrics.OUTCOMES, 0.01, context="platform", outcome="failed"),
    counter(metrics.DEAD_LETTERS, 0.01, context="platform", event_type="orders.order.placed"),
    counter(metrics.SETTLE_GIVEN_UP, 0, context="platform"),
    counter(metrics.HANDLERS_RAN_AWAY, 0, context="platform", handler="platform.index"),
    counter(metrics.PROBE_DROPPED, 0, tool="logs"),
    counter(metrics.PROBE_FAILED, 0, tool="logs"),
    *acks(fast=50, slow=0.1),
)

# What has to go wrong for each alert, and with which labels it is then told. Not a word of it comes from the rules.
PLANTED: Final[dict[str, tuple[list[Series], dict[str, str]]]] = {
    "SpectralNoWorker": (
        [gauge(metrics.WORKERS_SERVING, 0, **_PLACE), gauge(metrics.BACKLOG_OLDEST_SECONDS, 61, **_PLACE)],
        _PLACE,
    ),
    "SpectralBacklogLate": ([gauge(metrics.BACKLOG_OLDEST_SECONDS, 61, **_PLACE)], _PLACE),
    "SpectralBacklogStuck": ([gauge(metrics.BACKLOG_OLDEST_SECONDS, 601, **_PLACE)], _PLACE),
    "SpectralBrakeForgotten": ([gauge(metrics.BRAKE, 1, context="platform")], {"context": "platform"}),
    "SpectralStaleClaims": ([gauge(metrics.STALE_CLAIMS, 1, **_PLACE)], _PLACE),
    "SpectralSettleGivenUp": ([counter(metrics.SETTLE_GIVEN_UP, 0.002, context="platform")], {"context": "platform"}),
    # There for one look in ten minutes: the poll finds such rows soon.
    "SpectralDefaultChannel": ([gauge(metrics.DEFAULT_CHANNEL_ROWS, lambda now: float(now % 600 < 30))], {}),
    "SpectralDlqGrows": ([gauge(metrics.DLQ_RECENT, 1, **_PLACE)], _PLACE),
    "SpectralDlqFlood": (
        [counter(metrics.DEAD_LETTERS, 6, context="platform", event_type="orders.order.placed")],
        {"context": "platform"},
    ),
    "SpectralEarDegraded": ([gauge(metrics.EAR_DOWN_SECONDS, lambda now: max(now, 0.0))], _AT),
    "SpectralWorkerDead": ([gauge(metrics.WORKER_STATE, 1, state="dead")], {**_AT, "state": "dead"}),
    "SpectralLoopBlocked": ([gauge(metrics.LOOP_BLOCKED_SECONDS, 31)], _AT),
    "SpectralHandlerRanAway": (
        [counter(metrics.HANDLERS_RAN_AWAY, 0.002, context="platform", handler="platform.index")],
        {"context": "platform", "handler": "platform.index"},
    ),
    "SpectralEmitterSilent": ([gauge(metrics.EMITTER_UP, lambda _: None)], {}),
    "SpectralNotesDropped": ([counter(metrics.PROBE_DROPPED, 5, tool="logs")], {"tool": "logs"}),
    "SpectralBrokerLost": ([gauge(metrics.BROKER_CONNECTED, 0)], _AT),
    "SpectralRelayMissing": ([gauge(metrics.RELAYS, 0), gauge(metrics.RELAY_LAG_SECONDS, 90, **_PLACE)], {}),
    "SpectralRelayLag": ([gauge(metrics.RELAY_LAG_SECONDS, 21, **_PLACE)], _PLACE),
    "SpectralPartitionsUnfinished": ([gauge(metrics.PARTITIONS_DEADLINE_SECONDS, 80_000)], {}),
    "SpectralDefaultPartition": ([gauge(metrics.PARTITIONS_DEFAULT_ROWS, 4)], {}),
    "SpectralPartitionsMissing": ([gauge(metrics.PARTITIONS_AHEAD, 0)], {}),
    "SpectralNotifyQueueFills": ([gauge(metrics.NOTIFY_QUEUE_USAGE, 0.25)], {}),
    "SpectralNotifyQueueHalfFull": ([gauge(metrics.NOTIFY_QUEUE_USAGE, 0.5)], {}),
    "SpectralVacuumHeldUp": ([gauge(metrics.XMIN_SECONDS, 601, kind="slot")], {"kind": "slot"}),
    "SpectralSweepOverdue": ([gauge(metrics.SWEEP_LATE, 1)], {}),
    "SpectralGrowthPartition": ([gauge(metrics.GROWTH_TRIGGER, 1, step="partition")], {}),
    "SpectralGrowthRelay": (
        [gauge(metrics.GROWTH_TRIGGER, 1, step="relay"), gauge(metrics.RELAY_MODE, 1, mode="postgres")],
        {},
    ),
    "SpectralAckSlow": (acks(fast=50, slow=2), {}),
}
ALSO: Final = {
    "SpectralNotifyQueueHalfFull": {"SpectralNotifyQueueFills"},
    "SpectralBacklogStuck": {"SpectralBacklogLate"},
    "SpectralNoWorker": {"SpectralBacklogLate"},
}


def with_trouble(*trouble: Series, among: tuple[Series, ...] = HEALTHY) -> list[Series]:
    """A healthy system but for these series."""
    names = {each.key for each in trouble}
    return [*(each for each in among if each.key not in names), *trouble]


def fires(alert: Alert, series: list[Series], until: float) -> set[frozenset[tuple[str, str]]]:
    """Whose alert fires after this time; only what it reads is scraped, which is quicker and the same."""
    read = names_in(alert.expr)
    every = HOUR if alert.group is Group.GROWTH else SCRAPE
    wanted = [each for each in series if each.name in read]
    return firing(wanted, alert.expr, alert.for_.total_seconds(), until, every)


def names_in(expression: str) -> set[str]:
    """Every metric that an expression reads."""
    return {selector.name or "" for selector in selectors_in(expression)}


def selectors_in(expression: str) -> Iterator[promql.VectorSelector]:
    found: list[promql.Expr] = []
    promql.walk(promql.parse(expression), lambda each: found.append(each))
    for each in found:
        if isinstance(each, promql.VectorSelector):
            yield each


def exposed_labels() -> dict[str, set[str]]:
    """By every name under which Prometheus sees the catalogue: the labels of its series, those of the scrape aside."""
    found: dict[str, set[str]] = {}
    for metric in METRICS:
        name, labels = prometheus_name(metric), set(prometheus_labels(metric))
        if metric.kind is Kind.HISTOGRAM:
            found |= {f"{name}_bucket": {*labels, "le"}, f"{name}_count": labels, f"{name}_sum": labels}
        else:
            found[name] = labels
    return found


def named(alert: Alert) -> str:
    return alert.name


def settled(alert: Alert) -> float:
    """A time at which it has to fire if it was planted from the beginning."""
    return alert.for_.total_seconds() + (2 * HOUR if alert.group is Group.GROWTH else 600)


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_it_fires_on_trouble_and_only_with_the_labels_of_the_trouble(alert: Alert) -> None:
    trouble, labels = PLANTED[alert.name]
    assert fires(alert, with_trouble(*trouble), settled(alert)) == {frozenset(labels.items())}


def test_none_of_them_fires_on_a_healthy_system() -> None:
    assert [alert.name for alert in ALERTS if fires(alert, list(HEALTHY), settled(alert))] == []


@pytest.mark.parametrize("name", PLANTED)
def test_no_other_alert_fires_with_it(name: str) -> None:
    series = with_trouble(*PLANTED[name][0])
    others = {alert.name for alert in ALERTS if alert.group is not Group.GROWTH and fires(alert, series, 900)}
    assert others - {name} <= ALSO.get(name, set())


@pytest.mark.parametrize("alert", [each for each in ALERTS if each.for_ and each.group is not Group.GROWTH], ids=named)
def test_it_waits_for_as_long_as_it_says(alert: Alert) -> None:
    trouble, _ = PLANTED[alert.name]
    series = with_trouble(*trouble)
    hold = alert.for_.total_seconds()
    begins = next(now for now in _steps(settled(alert)) if firing(series, alert.expr, 0, now, every=max(now, SCRAPE)))
    assert not fires(alert, series, begins + hold - SCRAPE)
    assert fires(alert, series, begins + hold)


def _steps(until: float) -> Iterator[float]:
    yield from (step * SCRAPE for step in range(int(until / SCRAPE) + 1))


def test_a_pause_in_the_trouble_begins_the_wait_anew() -> None:
    late = alert_named("SpectralBacklogLate")
    # ten minutes of trouble, but for one look after four
    course: Course = lambda now: 2.0 if 240 <= now < 255 else 61.0  # noqa: E731  a course is a function
    series = with_trouble(gauge(metrics.BACKLOG_OLDEST_SECONDS, course, **_PLACE))
    assert not fires(late, series, until=540)
    assert fires(late, series, until=255 + 300)


def alert_named(name: str) -> Alert:
    return next(alert for alert in ALERTS if alert.name == name)


def test_every_alert_has_its_trouble_and_a_name_of_its_own() -> None:
    assert [alert.name for alert in ALERTS] == list(dict.fromkeys(alert.name for alert in ALERTS))
    assert set(PLANTED) == {alert.name for alert in ALERTS}


@dataclass(frozen=True)
class Edge:
    """A system that is just well, or not well in a way that is easily missed."""

    alert: str
    series: tuple[Series, ...]
    fires: bool
    why: str


EDGES: Final = (
    Edge(
        "SpectralBacklogStuck", (gauge(metrics.BACKLOG_OLDEST_SECONDS, 599, **_PLACE),), fires=False, why="just below"
    ),
    Edge(
        "SpectralBacklogStuck",
        (gauge(metrics.BACKLOG_OLDEST_SECONDS, 600, **_PLACE),),
        fires=True,
        why="the limit itself",
    ),
    Edge(
        "SpectralBacklogStuck",
        (gauge(metrics.BACKLOG_OLDEST_SECONDS, 900, **_PLACE), gauge(metrics.BRAKE, 1, context="platform")),
        fires=False,
        why="braked",
    ),
    Edge(
        "SpectralBacklogStuck",
        (gauge(metrics.BACKLOG_OLDEST_SECONDS, 900, **_PLACE), gauge(metrics.BRAKE, 1, context="*")),
        fires=False,
        why="everything is braked",
    ),
    Edge(
        "SpectralBacklogStuck",
        (gauge(metrics.BACKLOG_OLDEST_SECONDS, 900, **_PLACE), gauge(metrics.BRAKE, 1, context="worlds")),
        fires=True,
        why="somebody else is braked",
    ),
    Edge(
        "SpectralNoWorker",
        (gauge(metrics.WORKERS_SERVING, 3, context="platform", generation="6"),),
        fires=False,
        why="an old generation beside the new",
    ),
    Edge(
        "SpectralNoWorker",
        (
            gauge(metrics.BACKLOG_OLDEST_SECONDS, 75, context="platform", generation="6"),
            gauge(metrics.WORKERS_SERVING, 3, context="platform", generation="6"),
        ),
        fires=False,
        why="late, and somebody drains the old generation",
    ),
    Edge(
        "SpectralNoWorker",
        (
            gauge(metrics.BACKLOG_OLDEST_SECONDS, 75, context="worlds", generation="7"),
            gauge(metrics.WORKERS_SERVING, 0, context="worlds", generation="7"),
        ),
        fires=True,
        why="workers of another context",
    ),
    Edge(
        "SpectralNoWorker",
        (gauge(metrics.BACKLOG_OLDEST_SECONDS, 75, context="platform", generation="6"),),
        fires=True,
        why="events of a generation that nobody runs and nobody counts",
    ),
    Edge(
        "SpectralNotifyQueueFills", (gauge(metrics.NOTIFY_QUEUE_USAGE, 0.249),), fires=False, why="just below a quarter"
    ),
    Edge(
        "SpectralVacuumHeldUp",
        (gauge(metrics.XMIN_AGE, 1_000_000, kind="standby"),),
        fires=True,
        why="by transactions only",
    ),
    Edge(
        "SpectralNotesDropped",
        (counter(metrics.PROBE_FAILED, 1, tool="sentry"),),
        fires=True,
        why="fails, drops nothing",
    ),
    Edge(
        "SpectralHandlerRanAway",
        (gauge(metrics.HANDLERS_RAN_AWAY, lambda now: 1.0 if now > 400 else None, context="c", handler="c.h"),),
        fires=True,
        why="the first one ever: a counter that begins with 1",
    ),
    Edge(
        "SpectralDlqFlood",
        (
            counter(metrics.OUTCOMES, 0.001, context="platform", outcome="delivered"),
            counter(metrics.DEAD_LETTERS, 0.001, context="platform", event_type="orders.order.placed"),
        ),
        fires=False,
        why="half of it, but next to nothing",
    ),
    Edge(
        "SpectralDlqFlood",
        (
            gauge(
                metrics.OUTCOMES, lambda now: 5_000.0 if now > 400 else None, context="platform", outcome="delivered"
            ),
            gauge(
                metrics.DEAD_LETTERS,
                lambda now: 12.0 if now > 400 else None,
                context="platform",
                event_type="orders.order.placed",
            ),
        ),
        fires=False,
        why="a few of a backlog that was drained before the first scrape, or before Prometheus was there",
    ),
    Edge(
        "SpectralDlqFlood",
        (counter(metrics.DEAD_LETTERS, 4.9, context="platform", event_type="orders.order.placed"),),
        fires=False,
        why="many, but not one in ten",
    ),
    Edge(
        "SpectralDlqFlood",
        (counter(metrics.DEAD_LETTERS, 0.1, context="worlds", event_type="orders.order.placed"),),
        fires=True,
        why="without a handler: nothing of this context was ever settled",
    ),
    Edge(
        "SpectralDlqFlood",
        tuple(
            gauge(metrics.DEAD_LETTERS, lambda now: 1.0 if now > 400 else None, context="worlds", event_type=each)
            for each in "abcdefghij"
        ),
        fires=True,
        why="by the reaper: the first ones ever of ten types, counters that begin with 1",
    ),
    Edge(
        "SpectralDlqFlood",
        (
            gauge(
                metrics.DEAD_LETTERS,
                lambda now: 40.0 if 400 < now < 500 else None,
                context="worlds",
                event_type="orders.order.placed",
            ),
        ),
        fires=True,
        why="of a worker that has ended since",
    ),
    Edge(
        "SpectralDlqFlood",
        (
            gauge(
                metrics.DEAD_LETTERS,
                lambda now: None if 0 < now < 700 else 40.0,
                context="worlds",
                event_type="orders.order.placed",
            ),
        ),
        fires=False,
        why="old ones, of a worker that was not scraped for a while",
    ),
    Edge(
        "SpectralRelayMissing",
        (gauge(metrics.RELAY_MODE, 1, mode="postgres"), gauge(metrics.RELAYS, 0)),
        fires=False,
        why="there is no broker to send to",
    ),
    Edge(
        "SpectralRelayLag",
        (gauge(metrics.RELAY_LAG_SECONDS, 90, **_PLACE), gauge(metrics.BRAKE, 1, context="platform")),
        fires=False,
        why="braked",
    ),
    Edge(
        "SpectralPartitionsMissing",
        (gauge(metrics.PARTITIONS_AHEAD, lambda _: None),),
        fires=False,
        why="no partitions at all",
    ),
    Edge(
        "SpectralGrowthRelay",
        (gauge(metrics.GROWTH_TRIGGER, 1, step="relay"),),
        fires=False,
        why="workers take from a broker already",
    ),
    Edge(
        "SpectralGrowthRelay",
        (gauge(metrics.GROWTH_TRIGGER, 1, step="relay"), gauge(metrics.RELAY_MODE, lambda _: None, mode="postgres")),
        fires=True,
        why="of a schema that does not know the relay yet",
    ),
    Edge("SpectralAckSlow", tuple(acks(fast=0.0001, slow=0.001)), fires=False, why="slow, but too few to judge"),
    Edge(
        "SpectralEmitterSilent",
        (gauge(metrics.EMITTER_UP, lambda _: None), gauge(metrics.WORKER_GENERATION, lambda _: None)),
        fires=True,
        why="no worker was ever scraped",
    ),
    Edge(
        "SpectralEmitterSilent",
        (
            gauge(metrics.EMITTER_UP, lambda now: 1.0 if now < 300 else None),
            gauge(metrics.WORKER_GENERATION, lambda now: 7.0 if now < 300 else None),
        ),
        fires=True,
        why="its worker is gone, and its series with it",
    ),
    Edge(
        "SpectralEmitterSilent",
        (gauge(metrics.EMITTER_UP, lambda now: None if 300 <= now < 360 else 1.0),),
        fires=False,
        why="another one took over",
    ),
    Edge(
        "SpectralEmitterSilent",
        (gauge(metrics.EMITTER_TIMESTAMP, lambda now: now - 900),),
        fires=False,
        why="the database's clock, or the worker's, is slow",
    ),
    Edge(
        "SpectralEmitterSilent",
        (gauge(metrics.EMITTER_UP, lambda _: None), gauge(metrics.EMITTER_TIMESTAMP, lambda now: now + 900)),
        fires=True,
        why="nobody measures, and the last who did had a fast clock",
    ),
)


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.alert}: {edge.why}")
def test_edges(edge: Edge) -> None:
    alert = alert_named(edge.alert)
    assert bool(fires(alert, with_trouble(*edge.series), settled(alert))) is edge.fires


MEASURED: Final = {prometheus_name(each) for each in METRICS[METRICS.index(metrics.BACKLOG) :]}
"""What the emitter exposes: the last part of the catalogue."""
TERM: Final = 240.0
GAP: Final = 60.0
"""Until the next one is elected and has looked: half a minute as a rule, and a little more with some bad luck."""


def in_terms(series: list[Series]) -> list[Series]:
    """The same from an emitter that is replaced every four minutes; before each term nobody measures for a while."""

    def of_terms(course: Course, parity: int) -> Course:
        def exposed(now: float) -> float | None:
            term, into = divmod(now, TERM)
            return course(now) if into >= GAP and term % 2 == parity else None

        return exposed

    others = [each for each in series if each.name not in MEASURED]
    return others + [
        Series(each.name, {**each.labels, **at}, of_terms(each.course, parity))
        for each in series
        if each.name in MEASURED
        for parity, at in enumerate((_AT, _BESIDE))
    ]


def in_a_gap(after: float) -> float:
    """The last instant without numbers of the first gap that begins after this time."""
    return (after // TERM + 1) * TERM + GAP - SCRAPE


_WAIT_FOR_MEASURES: Final = [
    each for each in ALERTS if each.for_ and each.name != "SpectralEmitterSilent" and names_in(each.expr) & MEASURED
]


@pytest.mark.parametrize("alert", _WAIT_FOR_MEASURES, ids=named)
def test_an_alert_goes_on_when_another_worker_takes_over_the_measuring(alert: Alert) -> None:
    trouble, labels = PLANTED[alert.name]
    series = in_terms(with_trouble(*trouble))
    until = in_a_gap(after=settled(alert))
    assert fires(alert, series, until) == fires(alert, series, until + 2 * SCRAPE) == {frozenset(labels.items())}


def test_the_others_wait_for_what_single_workers_say_or_for_the_emitter_itself() -> None:
    others = {alert.name for alert in ALERTS if alert.for_} - {alert.name for alert in _WAIT_FOR_MEASURES}
    of_workers = {
        *("SpectralDlqFlood", "SpectralEarDegraded", "SpectralWorkerDead"),
        *("SpectralBrokerLost", "SpectralAckSlow"),
    }
    assert others == {*of_workers, "SpectralEmitterSilent"}


def test_none_of_them_fires_on_a_healthy_system_whose_emitters_change() -> None:
    series = in_terms(list(HEALTHY))
    assert [alert.name for alert in ALERTS if fires(alert, series, in_a_gap(settled(alert)))] == []


@pytest.mark.parametrize(
    "edge", [each for each in EDGES if not each.fires], ids=lambda edge: f"{edge.alert}: {edge.why}"
)
def test_what_is_just_well_is_so_while_emitters_change(edge: Edge) -> None:
    alert = alert_named(edge.alert)
    assert not fires(alert, in_terms(with_trouble(*edge.series)), in_a_gap(settled(alert)))


def measured_until(end: float, value: float) -> Course:
    return lambda now: value if now < end else None


def measured_from(start: float, value: float) -> Course:
    return lambda now: value if now >= start else None


def handed_over(metric: Metric, before: float, after: float | None, **labels: str) -> list[Series]:
    """A gauge of one worker for ten minutes, and a minute later of another one, which may have another value."""
    name, up = prometheus_name(metric), prometheus_name(metrics.EMITTER_UP)
    return [
        Series(name, {**_AT, **labels}, measured_until(600, before)),
        Series(up, _AT, measured_until(600, 1)),
        Series(up, _BESIDE, measured_from(660, 1)),
        *([] if after is None else [Series(name, {**_BESIDE, **labels}, measured_from(660, after))]),
    ]


@pytest.mark.parametrize("after", [2.0, None], ids=["fallen", "gone"])
def test_the_next_emitter_has_the_last_word(after: float | None) -> None:
    held_up = alert_named("SpectralVacuumHeldUp")
    series = handed_over(metrics.XMIN_SECONDS, 601, after, kind="slot")
    assert fires(held_up, series, until=645)
    assert not fires(held_up, series, until=660)


def test_what_is_gone_while_it_is_measured_is_over_at_once() -> None:
    forgotten = alert_named("SpectralBrakeForgotten")
    pulled = gauge(metrics.BRAKE, measured_until(2 * HOUR, 1), context="platform")
    assert fires(forgotten, with_trouble(pulled), until=2 * HOUR - SCRAPE)
    assert not fires(forgotten, with_trouble(pulled), until=2 * HOUR)


def test_what_was_measured_last_does_not_go_on_for_ever() -> None:
    late, silent = alert_named("SpectralBacklogLate"), alert_named("SpectralEmitterSilent")
    series = with_trouble(
        gauge(metrics.BACKLOG_OLDEST_SECONDS, measured_until(900, 61), **_PLACE),
        gauge(metrics.EMITTER_UP, measured_until(900, 1)),
    )
    # Somebody is told that nothing is measured before what was known is forgotten.
    assert fires(late, series, until=1_035)
    assert fires(silent, series, until=1_035)
    assert not fires(late, series, until=1_080)


def test_one_bad_look_is_still_no_alert_that_waits() -> None:
    course: Course = lambda now: 601.0 if 600 <= now < 630 else 2.0  # noqa: E731  a course is a function
    series = with_trouble(gauge(metrics.BACKLOG_OLDEST_SECONDS, course, **_PLACE))
    stuck = alert_named("SpectralBacklogStuck")
    assert not any(fires(stuck, series, until) for until in _steps(900))


def test_the_emitter_of_one_database_does_not_end_the_numbers_of_another() -> None:
    fills = next(alert for alert in alerts(by=("job",)) if alert.name == "SpectralNotifyQueueFills")
    usage, up = prometheus_name(metrics.NOTIFY_QUEUE_USAGE), prometheus_name(metrics.EMITTER_UP)
    series = [
        Series(usage, {"job": "staging"}, measured_until(600, 0.3)),
        Series(up, {"job": "staging"}, measured_until(600, 1)),
        *(steady(name, value, job="production") for name, value in ((usage, 0.1), (up, 1.0))),
    ]
    assert fires(fills, series, until=645) == {frozenset({("job", "staging")})}


def test_what_two_workers_expose_for_a_moment_is_not_added_up() -> None:
    usage = prometheus_name(metrics.NOTIFY_QUEUE_USAGE)
    series = [steady(usage, 0.2, **_AT), steady(usage, 0.2, **_BESIDE)]
    assert not fires(alert_named("SpectralNotifyQueueFills"), series, until=600)


def test_databases_are_told_apart_by_the_labels_that_one_names() -> None:
    usage = prometheus_name(metrics.NOTIFY_QUEUE_USAGE)
    series = [steady(usage, 0.3, job="staging"), steady(usage, 0.1, job="production")]
    fills = next(alert for alert in alerts(by=("job",)) if alert.name == "SpectralNotifyQueueFills")
    assert fires(fills, series, until=600) == {frozenset({("job", "staging")})}


@pytest.mark.parametrize("workers", ["stay", "go"])
def test_a_database_that_nobody_measures_is_missed_for_hours_beside_one_that_is(workers: str) -> None:
    def until_ten_minutes(now: float) -> float | None:
        return 1.0 if now < 600 else None

    up, generation = prometheus_name(metrics.EMITTER_UP), prometheus_name(metrics.WORKER_GENERATION)
    series = [
        *(steady(name, 1, job="production", instance="a") for name in (up, generation)),
        Series(up, {"job": "staging", "instance": "b"}, until_ten_minutes),
        Series(generation, {"job": "staging", "instance": "b"}, until_ten_minutes if workers == "go" else lambda _: 7),
    ]
    silent = next(alert for alert in alerts(by=("job",)) if alert.name == "SpectralEmitterSilent")
    for hours in (1, 3, 6):
        found = firing(series, silent.expr, silent.for_.total_seconds(), until=hours * HOUR, every=300)
        assert found == {frozenset({("job", "staging")})}, hours


def test_every_rule_keeps_the_labels_that_tell_databases_apart() -> None:
    for alert in alerts(by=("job",)):
        trouble, labels = PLANTED[alert.name]
        found = fires(alert, with_trouble(*trouble), settled(alert))
        assert found == {frozenset({**labels, "job": "workers"}.items())}, alert.name


def test_a_brake_of_one_database_does_not_silence_another() -> None:
    stuck = next(alert for alert in alerts(by=("job",)) if alert.name == "SpectralBacklogStuck")
    oldest, brake = prometheus_name(metrics.BACKLOG_OLDEST_SECONDS), prometheus_name(metrics.BRAKE)
    series = [
        *(steady(oldest, 900, job=job, **_PLACE) for job in ("staging", "production")),
        steady(brake, 1, job="staging", context="*"),
    ]
    assert fires(stuck, series, until=600) == {frozenset({**_PLACE, "job": "production"}.items())}


def test_thresholds_are_those_of_the_doctor() -> None:
    limits = Limits(queue=0.4, late=timedelta(minutes=20))
    mine = {alert.name: alert for alert in alerts(limits)}
    usage = [gauge(metrics.NOTIFY_QUEUE_USAGE, 0.3)]
    assert not fires(mine["SpectralNotifyQueueFills"], usage, until=600)
    assert fires(alert_named("SpectralNotifyQueueFills"), usage, until=600)
    assert not fires(mine["SpectralBacklogStuck"], [gauge(metrics.BACKLOG_OLDEST_SECONDS, 900, **_PLACE)], until=600)


def test_the_document_is_yaml_that_says_the_same() -> None:
    document = yaml.safe_load(alerts_document(ALERTS, "https://example.com/runbook"))
    rules = list(chain.from_iterable(group["rules"] for group in document["groups"]))
    assert [each["alert"] for each in rules] == [
        alert.name for group in Group for alert in ALERTS if alert.group is group
    ]
    for rule in rules:
        assert_same(rule, alert_named(rule["alert"]))


def assert_same(rule: dict[str, Any], alert: Alert) -> None:
    assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["expr"] == alert.expr
    assert (seconds_of(rule["for"]) if "for" in rule else 0) == alert.for_.total_seconds()
    assert rule["labels"] == {"severity": alert.severity}
    assert rule["annotations"] == {
        "summary": alert.summary,
        "description": alert.description,
        "runbook_url": f"https://example.com/runbook#{alert.runbook}",
    }


def test_rules_of_growth_are_evaluated_once_an_hour_and_the_others_as_prometheus_does() -> None:
    document = yaml.safe_load(alerts_document(ALERTS))
    assert {group["name"]: group.get("interval") for group in document["groups"]} == {
        "spectral-delivery": None,
        "spectral-workers": None,
        "spectral-database": None,
        "spectral-growth": "1h",
    }


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_it_reads_metrics_and_labels_that_exist(alert: Alert) -> None:
    exposed = exposed_labels()
    for selector in selectors_in(alert.expr):
        assert selector.name in exposed
        assert {matcher.name for matcher in selector.matchers.matchers} <= exposed[selector.name]


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_what_it_says_names_only_labels_that_it_has(alert: Alert) -> None:
    said = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    assert said <= set(PLANTED[alert.name][1])
    templates = re.findall(r"{{.*?}}", alert.summary + alert.description)
    assert all(re.fullmatch(r"{{ \$(value|labels\.\w+)( \| humanize\w*)? }}", each) for each in templates)
    assert alert.description.endswith((".", "?"))


def _sections() -> set[str]:
    titles = re.findall(r"^## (.+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("alert", ALERTS, ids=named)
def test_the_runbook_goes_on_from_it(alert: Alert) -> None:
    assert alert.runbook in _sections()
    assert re.search(rf"^\|[^|]*`{alert.name}`.*\]\(#{alert.runbook}\) \|$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)


def test_the_runbook_knows_no_alert_that_does_not_exist() -> None:
    assert set(re.findall(r"`(Spectral[A-Z]\w+)`", (ROOT / RUNBOOK).read_text())) == {alert.name for alert in ALERTS}


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=90), "90s"),
        (timedelta(minutes=5), "5m"),
        (timedelta(hours=1), "1h"),
        (timedelta(days=7), "7d"),
    ],
)
def test_durations(span: timedelta, text: str) -> None:
    assert duration(span) == text
    assert seconds_of(text) == span.total_seconds()


def test_labels_of_a_fired_alert_have_no_name_among_them() -> None:
    assert nameless(steady("x", 1, a="b").key) == {("a", "b")}
