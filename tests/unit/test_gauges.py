"""From one look to the gauges of the metrics, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spectral.core.events import metrics
from spectral.core.events.metrics import OTHER, Metric
from spectral.core.operations.doctor import Facts
from spectral.core.operations.gauges import gauges
from spectral.core.operations.insights import Amount, Backlog, Brake, Holder, Lane, Snapshot
from spectral.core.operations.insights_values import Partitioning, Relaying, Unsent
from spectral.core.operations.verdict import Limits
from tests.unit.test_doctor_checks import HEALTHY, NOW, OUTBOX, SNAPSHOT, SWEPT, WORKER, found

Readings = dict[tuple[str, ...], float]


def look(**changes: Any) -> Snapshot:  # noqa: ANN401  fields by name
    return replace(SNAPSHOT, **changes)


def of(metric: Metric, snapshot: Snapshot, limits: Limits | None = None) -> Readings:
    return {sample.labels: sample.value for sample in gauges(snapshot, limits) if sample.metric is metric}


def test_a_backlog_is_counted_by_context_and_generation() -> None:
    backlog = Backlog(
        "worlds",
        4,
        "draining",
        due=Amount(7),
        waiting=Amount(6),
        oldest_due=timedelta(seconds=90),
        in_flight=Amount(5),
        stale=Amount(4),
        failed=Amount(3),
        failed_lately=Amount(2),
    )
    snapshot = look(backlogs=(backlog, replace(backlog, context=None, due=Amount(10_000, capped=True))))
    expected = {
        metrics.BACKLOG: 7,
        metrics.BACKLOG_WAITING: 6,
        metrics.BACKLOG_OLDEST_SECONDS: 90,
        metrics.IN_FLIGHT: 5,
        metrics.STALE_CLAIMS: 4,
        metrics.DLQ: 3,
        metrics.DLQ_RECENT: 2,
    }
    assert {metric: of(metric, snapshot)["worlds", "4"] for metric in expected} == expected
    assert of(metrics.BACKLOG, snapshot)["*", "4"] == 10_000


def test_what_a_living_worker_serves_has_a_series_before_anything_waits() -> None:
    gone = replace(WORKER, name="gone", contexts=("elsewhere",), alive=False)
    snapshot = look(workers=(replace(WORKER, contexts=("platform",), generations=(1, 0)), gone))
    for metric in (metrics.BACKLOG, metrics.BACKLOG_OLDEST_SECONDS, metrics.DLQ):
        assert of(metric, snapshot) == dict.fromkeys([(c, g) for c in ("platform", "*") for g in ("0", "1")], 0)
    assert of(metrics.WORKERS, snapshot) == {("1",): 1}


def test_a_live_generation_without_workers_is_seen_to_have_none() -> None:
    assert of(metrics.WORKERS, look(workers=())) == {("1",): 0}


def test_who_takes_what_is_counted_by_context_and_generation() -> None:
    both = replace(WORKER, contexts=("platform", "worlds"), generations=(2, 1))
    gone = replace(WORKER, name="gone", contexts=("billing",), alive=False)
    waits = Backlog("billing", 1, "live", due=Amount(1), oldest_due=timedelta(seconds=90))
    snapshot = look(workers=(both, WORKER, gone), backlogs=(waits, replace(waits, context=None)))
    assert of(metrics.WORKERS_SERVING, snapshot) == {
        ("platform", "1"): 2,
        ("worlds", "1"): 1,
        ("*", "1"): 2,
        ("platform", "2"): 1,
        ("worlds", "2"): 1,
        ("*", "2"): 1,
        ("billing", "1"): 0,
    }


def test_nobody_is_there_for_a_context_that_somebody_invented() -> None:
    many = tuple(Backlog(f"context_{number}", 1, "live", due=Amount(1)) for number in range(300))
    serving = of(metrics.WORKERS_SERVING, look(backlogs=many))
    assert len(serving) == 201
    assert serving[OTHER, "1"] == 0
    assert serving["platform", "1"] == 1


def test_whoever_invents_contexts_makes_no_more_series() -> None:
    many = tuple(
        Backlog(f"context_{number}", 1, "live", due=Amount(2), oldest_due=timedelta(seconds=number))
        for number in range(300)
    )
    snapshot = look(backlogs=many, workers=())
    due, oldest = of(metrics.BACKLOG, snapshot), of(metrics.BACKLOG_OLDEST_SECONDS, snapshot)
    assert len(due) == len(oldest) == 201
    assert due[OTHER, "1"] == 200
    assert oldest[OTHER, "1"] == 299
    assert sum(due.values()) == 600


def test_rows_on_the_default_channel_brakes_and_the_queue_are_counted() -> None:
    lane = Lane(1, "live", "outbox_default", "platform", Amount(2), Amount(1), None, None)
    snapshot = look(
        lanes=(lane, replace(lane, context=None), replace(lane, channel="outbox_gen_1")),
        brakes=(Brake("*", NOW, "ada", "broken"),),
        notify_queue=0.3,
    )
    assert of(metrics.DEFAULT_CHANNEL_ROWS, snapshot) == {(): 6}
    assert of(metrics.BRAKE, snapshot) == {("*",): 1}
    assert of(metrics.NOTIFY_QUEUE_USAGE, snapshot) == {(): 0.3}
    assert of(metrics.TABLE_ROWS, snapshot) == {("core.outbox",): OUTBOX.rows}
    assert of(metrics.TABLE_BYTES, snapshot) == {("core.outbox",): OUTBOX.bytes}
    assert of(metrics.TABLE_DEAD, snapshot) == {("core.outbox",): OUTBOX.dead}


def test_of_those_who_hold_the_horizon_the_oldest_of_each_kind_counts_and_no_name_is_a_label() -> None:
    report = Holder("backend", "report", "ana", 99, None, 12, timedelta(minutes=20))
    others = (replace(report, name="other", age=3, since=None), Holder("slot", "spare", None, None, None, 70, None))
    snapshot = look(holders=(report, *others))
    assert of(metrics.XMIN_AGE, snapshot) == {("backend",): 12, ("slot",): 70}
    assert of(metrics.XMIN_SECONDS, snapshot) == {("backend",): 1200}
    assert "report" not in str(gauges(snapshot))


def test_the_sweep_is_late_when_the_doctor_says_so() -> None:
    swept = look(sweep=replace(SWEPT, completed_at=NOW - timedelta(days=9)))
    assert of(metrics.SWEEP_AGE_SECONDS, swept) == {(): timedelta(days=9).total_seconds()}
    assert of(metrics.SWEEP_LATE, swept) == {(): 1}
    assert of(metrics.SWEEP_LATE, look()) == {(): 0}
    assert of(metrics.SWEEP_AGE_SECONDS, look()) == {}
    assert of(metrics.SWEEP_LATE, look(sweep=None)) == {}


def test_what_is_not_sent_yet_is_counted_by_context_and_generation_and_its_oldest_is_the_lag() -> None:
    waits = Unsent("platform", 1, Amount(3), timedelta(seconds=4))
    late = Unsent("platform", 1, Amount(2), timedelta(seconds=40))
    snapshot = look(relaying=Relaying("nats", 2, (waits, late)))
    assert of(metrics.RELAY_UNSENT, snapshot) == {("platform", "1"): 5}
    assert of(metrics.RELAY_LAG_SECONDS, snapshot) == {("platform", "1"): 40}
    assert of(metrics.RELAY_MODE, snapshot) == {("postgres",): 0, ("nats",): 1, ("redis",): 0}
    assert of(metrics.RELAYS, snapshot) == {(): 2}


def test_a_lag_has_a_series_before_there_is_one_and_none_without_a_broker() -> None:
    assert of(metrics.RELAY_LAG_SECONDS, look(relaying=Relaying("redis", 1))) == {("platform", "1"): 0}
    assert of(metrics.RELAY_LAG_SECONDS, look(relaying=Relaying("postgres", 0))) == {}
    assert of(metrics.RELAY_MODE, look()) == {}


def test_partitions_are_counted_where_there_are_any() -> None:
    months = Partitioning(enabled=True, ahead=2, default_rows=Amount(7), droppable=1)
    shown = (metrics.PARTITIONS_AHEAD, metrics.PARTITIONS_DEFAULT_ROWS, metrics.PARTITIONS_DROPPABLE)
    assert [of(metric, look(partitioning=months)) for metric in shown] == [{(): 2}, {(): 7}, {(): 1}]
    for none in (None, Partitioning(enabled=False), Partitioning(enabled=False, unfinished=True)):
        assert [of(metric, look(partitioning=none)) for metric in shown] == [{}, {}, {}]


def test_a_promise_of_a_conversion_is_counted_down() -> None:
    promised = Partitioning(enabled=False, unfinished=True, refuses_in=timedelta(minutes=1))
    assert of(metrics.PARTITIONS_DEADLINE_SECONDS, look(partitioning=promised)) == {(): 60}
    late = replace(promised, refuses_in=timedelta(minutes=-1))
    assert of(metrics.PARTITIONS_DEADLINE_SECONDS, look(partitioning=late)) == {(): 0}
    assert of(metrics.PARTITIONS_DEADLINE_SECONDS, look(partitioning=Partitioning(enabled=True, ahead=3))) == {}


def test_a_step_that_was_taken_is_not_asked_for_again() -> None:
    large = look(tables=(replace(OUTBOX, rows=21_000_000),), notify_queue=0.5)
    grown = replace(large, partitioning=Partitioning(enabled=True, ahead=3), relaying=Relaying("nats", 1))
    assert of(metrics.GROWTH_TRIGGER, large) == {("partition",): 1, ("relay",): 1}
    assert of(metrics.GROWTH_TRIGGER, grown) == {("partition",): 0, ("relay",): 0}


@pytest.mark.parametrize("rows", [5_000_000, 5_000_001, 20_000_001])
@pytest.mark.parametrize("queue", [0.0, 0.5])
def test_growth_triggers_fire_with_the_doctors_findings(rows: int, queue: float) -> None:
    snapshot = look(tables=(replace(OUTBOX, rows=rows),), notify_queue=queue)
    facts: Facts = replace(HEALTHY, snapshot=snapshot)
    fired = {step for (step,), value in of(metrics.GROWTH_TRIGGER, snapshot).items() if value}
    told = {finding.check.removeprefix("growth_") for finding in found(facts) if finding.check.startswith("growth_")}
    assert fired == told
    assert len(of(metrics.GROWTH_TRIGGER, snapshot)) == 2


def test_limits_are_the_callers() -> None:
    assert of(metrics.GROWTH_TRIGGER, look(), Limits(partition=10))["partition",] == 1
