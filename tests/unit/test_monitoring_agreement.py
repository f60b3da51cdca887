"""The same looks at a database, judged by the doctor and, as gauges, by the alert rules: they say the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

import pytest

from spectral.core.events.metrics import Sample, prometheus_labels, prometheus_name
from spectral.core.operations.doctor import checks_growth, checks_partitions
from spectral.core.operations.gauges import gauges
from spectral.core.operations.insights import Amount, Brake, Holder, Snapshot
from spectral.core.operations.insights_values import Partitioning, Relaying, Table, Unsent
from spectral.core.operations.monitoring import alerts
from spectral.core.operations.monitoring.alerts import Group
from spectral.core.operations.verdict_rules import delivery_findings
from spectral.core.operations.verdict_values import Limits
from spectral.core.retention import SweepState
from tests.unit.promql import SCRAPE, Series, firing
from tests.unit.test_doctor_checks import HEALTHY
from tests.unit.test_operations_verdict import NOW, backlog, lane, look, waiting, worker

LIMITS: Final = Limits()
# Of workers themselves and of time, which a look does not have.
_OF_THE_DATABASE: Final = [
    alert for alert in alerts() if alert.group is not Group.WORKERS and alert.name != "SpectralAckSlow"
]
_GROWTH: Final = (
    checks_growth.find_horizon_holders,
    checks_growth.find_full_queue,
    checks_growth.find_overdue_sweep,
    checks_growth.find_size,
    checks_growth.find_need_of_a_broker,
    checks_partitions.find_half_done_partitions,
    checks_partitions.find_missing_months,
    checks_partitions.find_stray_rows,
)


@dataclass(frozen=True)
class Case:
    """A look, what the doctor calls it, and which alerts fire if it stays so."""

    why: str
    snapshot: Snapshot
    checks: frozenset[str]
    alerts: frozenset[str]


def case(why: str, snapshot: Snapshot, checks: str = "", fired: str = "") -> Case:
    return Case(why, snapshot, frozenset(checks.split()), frozenset(fired.split()))


def outbox(rows: int) -> Table:
    return Table("core.outbox", rows, 0, rows * 500, rows, NOW, autovacuum=True, vacuum_due_at=1_000)


def holder(seconds: float | None, age: int = 10) -> Holder:
    since = None if seconds is None else timedelta(seconds=seconds)
    return Holder("backend", "nightly report", "ana", 4711, "idle in transaction", age, since)


def swept(days: float) -> SweepState:
    completed = NOW - timedelta(days=days)
    return SweepState(now=NOW, sweeping=None, last=None, completed_at=completed, oldest_delivered_at=None)


def relaying(seconds: float) -> Relaying:
    return Relaying("nats", 1, (Unsent("platform", 7, Amount(3), timedelta(seconds=seconds)),))


MONTHS: Final = Partitioning(enabled=True, ahead=3)
ELSEWHERE: Final = replace(backlog(), generation=6, generation_status="draining")
CASES: Final = (
    case("nothing waits", look()),
    case("a busy minute", look(backlogs=(waiting(5),), lanes=(lane(),))),
    case("workers do not keep up", look(backlogs=(waiting(90),)), "late", "SpectralBacklogLate"),
    case("by far", look(backlogs=(waiting(700),)), "late", "SpectralBacklogLate SpectralBacklogStuck"),
    case(
        "nobody is there",
        look(backlogs=(waiting(90),), workers=()),
        "no_worker",
        "SpectralBacklogLate SpectralNoWorker",
    ),
    case(
        "nobody of this context is there, among many of others",
        look(backlogs=(waiting(90),), workers=(replace(worker(), contexts=("worlds",)),)),
        "no_worker",
        "SpectralBacklogLate SpectralNoWorker",
    ),
    case(
        "the new workers drain the old generation, and do not keep up",
        look(
            backlogs=(replace(ELSEWHERE, due=Amount(3), oldest_due=timedelta(seconds=90)),),
            workers=(replace(worker(), generations=(7, 6)),),
        ),
        "late",
        "SpectralBacklogLate",
    ),
    case(
        "nobody of an old generation is there",
        look(backlogs=(replace(ELSEWHERE, due=Amount(3), oldest_due=timedelta(seconds=90)),)),
        "no_worker",
        "SpectralBacklogLate SpectralNoWorker",
    ),
    case(
        "nobody can ever be there",
        look(backlogs=(replace(waiting(90), generation=3, generation_status="retired"),)),
        "lost_generation",
        "SpectralBacklogLate SpectralNoWorker",
    ),
    case(
        "the new workers drain the old generation",
        look(
            backlogs=(replace(ELSEWHERE, due=Amount(3), oldest_due=timedelta(seconds=2)),),
            workers=(replace(worker(), generations=(7, 6)),),
        ),
    ),
    case("broadcasts wait", look(backlogs=(waiting(90, None),)), "broadcasts", "SpectralBacklogLate"),
    case(
        "on purpose",
        look(backlogs=(waiting(700),), brakes=(Brake("platform", NOW, "ada", "billing is down"),)),
        "brake",
        "SpectralBrakeForgotten",
    ),
    case(
        "all of it, on purpose",
        look(backlogs=(waiting(700), waiting(700, None)), brakes=(Brake("*", NOW, "ada", "billing is down"),)),
        "brake",
        "SpectralBrakeForgotten",
    ),
    case("a claim is left", look(backlogs=(backlog(stale=Amount(2)),)), "stale_claims", "SpectralStaleClaims"),
    case(
        "dead letters, new ones",
        look(backlogs=(backlog(failed=Amount(9), failed_lately=Amount(1)),)),
        "dead_letters",
        "SpectralDlqGrows",
    ),
    # The doctor goes on saying so, for they wait for somebody; nobody is woken for them a second time.
    case("dead letters, old ones", look(backlogs=(backlog(failed=Amount(9)),)), "dead_letters"),
    case(
        "no channel",
        look(lanes=(lane(channel="outbox_default"),)),
        "default_channel",
        "SpectralDefaultChannel",
    ),
    case("a quarter of the queue", look(notify_queue=0.25), "notify_queue", "SpectralNotifyQueueFills"),
    case("not quite a quarter of the queue", look(notify_queue=0.24)),
    case(
        "half of the queue",
        look(notify_queue=0.5),
        "notify_queue growth_relay",
        "SpectralNotifyQueueFills SpectralNotifyQueueHalfFull SpectralGrowthRelay",
    ),
    case("a forgotten transaction", look(holders=(holder(601),)), "held_xmin", "SpectralVacuumHeldUp"),
    case("one of an unknown age", look(holders=(holder(None, 2_000_000),)), "held_xmin", "SpectralVacuumHeldUp"),
    case("a transaction like others", look(holders=(holder(20),))),
    case("swept yesterday", look(sweep=swept(1))),
    case("swept last month", look(sweep=swept(30)), "sweep", "SpectralSweepOverdue"),
    case("large", look(tables=(outbox(6_000_000),)), "growth_partition", "SpectralGrowthPartition"),
    case(
        "very large",
        look(tables=(outbox(21_000_000),)),
        "growth_partition growth_relay",
        "SpectralGrowthPartition SpectralGrowthRelay",
    ),
    case("very large, and grown up", look(tables=(outbox(21_000_000),), partitioning=MONTHS, relaying=relaying(0))),
    case(
        "no month ahead",
        look(partitioning=replace(MONTHS, ahead=0)),
        "partitions_ahead",
        "SpectralPartitionsMissing",
    ),
    case(
        "rows that fit no month",
        look(partitioning=replace(MONTHS, default_rows=Amount(1))),
        "default_partition",
        "SpectralDefaultPartition",
    ),
    case(
        "half-way to months",
        look(partitioning=Partitioning(enabled=False, unfinished=True, refuses_in=timedelta(days=3))),
        "partitions_unfinished",
    ),
    case(
        "half-way to months, and soon too late",
        look(partitioning=Partitioning(enabled=False, unfinished=True, refuses_in=timedelta(hours=47))),
        "partitions_unfinished",
        "SpectralPartitionsUnfinished",
    ),
    case("the relay lags", look(relaying=relaying(20)), "relay_lag", "SpectralRelayLag"),
    case("not quite", look(relaying=relaying(19))),
    case(
        "there is none",
        look(relaying=replace(relaying(90), relays=0)),
        "relay_missing",
        "SpectralRelayMissing",
    ),
    case("none is needed", look(relaying=Relaying("postgres", 0))),
    case(
        "the relay lags, on purpose",
        look(relaying=relaying(90), brakes=(Brake("platform", NOW, "ada", "billing is down"),)),
        "brake",
        "SpectralBrakeForgotten",
    ),
)


def series(snapshot: Snapshot) -> list[Series]:
    """The gauges of a look, as if every look for two hours had been like it."""
    return [steadily(sample) for sample in gauges(snapshot, LIMITS)]


def steadily(sample: Sample) -> Series:
    labels = dict(zip(prometheus_labels(sample.metric), sample.labels, strict=True))
    return Series(prometheus_name(sample.metric), {"instance": "worker-1:8080", **labels}, lambda _: sample.value)


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.why)
def test_the_doctor_and_the_alerts_agree(each: Case) -> None:
    known = replace(HEALTHY, snapshot=each.snapshot)
    found = {finding.check for finding in delivery_findings(each.snapshot, LIMITS)}
    found |= {finding.check for check in _GROWTH for finding in check(known, LIMITS)}
    assert found == each.checks
    exposed = series(each.snapshot)
    fired = {
        alert.name
        for alert in _OF_THE_DATABASE
        if firing(exposed, alert.expr, alert.for_.total_seconds(), until=7_200, every=_pace(alert.group))
    }
    assert fired == each.alerts


def _pace(group: Group) -> float:
    return 3_600.0 if group is Group.GROWTH else 4 * SCRAPE


def test_every_alert_about_the_database_is_among_the_cases() -> None:
    of_look = {alert.name for alert in _OF_THE_DATABASE} - {"SpectralSettleGivenUp", "SpectralDlqFlood"}
    assert frozenset().union(*(each.alerts for each in CASES)) == of_look
