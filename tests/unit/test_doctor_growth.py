"""The doctor's checks of what slows a database down as it grows: from facts to findings, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spectral.core.operations.doctor import Facts, Level
from spectral.core.operations.doctor.facts import Blocker, Latency
from spectral.core.operations.insights import Amount, Brake, Holder
from spectral.core.operations.insights_values import Partitioning, Relaying, Unsent
from tests.unit.test_doctor_checks import HEALTHY, NOW, OUTBOX, SWEPT, Trouble, found, only, seen


def table(**changes: Any) -> Facts:  # noqa: ANN401  fields by name
    return seen(tables=(replace(OUTBOX, **changes),))


def holder(**changes: Any) -> Holder:  # noqa: ANN401  fields by name
    known = Holder("backend", "report", "ana", 99, "idle in transaction", 12, timedelta(minutes=20))
    return replace(known, **changes)


def unsent(seconds: float) -> Unsent:
    return Unsent("platform", 1, Amount(5), timedelta(seconds=seconds))


GROWTH_TROUBLES: dict[str, Trouble] = {
    "lock": (
        replace(HEALTHY, blockers=(Blocker(99, "psql", "ana", "active", granted=True, since=timedelta(minutes=3)),)),
        "outbox_locked",
        Level.UNHEALTHY,
        "Backend 99, 'psql' of ana (active), holds an exclusive lock on core.outbox for 3 min",
        "pg_terminate_backend(99)",
    ),
    "autovacuum off": (
        table(autovacuum=False),
        "autovacuum",
        Level.ATTENTION,
        "Autovacuum is off for core.outbox",
        "alter table core.outbox reset (autovacuum_enabled)",
    ),
    "autovacuum off for a partition": (
        seen(
            tables=(replace(OUTBOX, autovacuum=False),), partitioning=Partitioning(enabled=True, ahead=3, dedup=False)
        ),
        "autovacuum",
        Level.ATTENTION,
        "Autovacuum is off for core.outbox",
        "execute format(",
    ),
    "vacuum behind": (
        table(dead=60_000),
        "vacuum_behind",
        Level.ATTENTION,
        "core.outbox has 60,000 dead rows beside 1,000,000 (estimated)",
        "vacuum (verbose) core.outbox",
    ),
    "backend holds xmin": (
        seen(holders=(holder(),)),
        "held_xmin",
        Level.ATTENTION,
        "Backend 99, 'report' of ana (idle in transaction) is open for 20 min",
        "pg_terminate_backend(99)",
    ),
    "hidden backend holds xmin": (
        seen(holders=(holder(state=None, since=None, age=2_000_000),)),
        "held_xmin",
        Level.ATTENTION,
        "(its state is hidden; grant pg_monitor shows it) is open for an unknown time, 2,000,000 transactions",
        "pg_terminate_backend(99)",
    ),
    "slot holds xmin": (
        seen(holders=(Holder("slot", "standby_1", None, None, "inactive", 3_000_000, None),)),
        "held_xmin",
        Level.ATTENTION,
        "Replication slot 'standby_1' (inactive)",
        "pg_drop_replication_slot('standby_1')",
    ),
    "prepared transaction holds xmin": (
        seen(holders=(Holder("prepared", "it's mine", "ana", None, "prepared", 5, timedelta(hours=3)),)),
        "held_xmin",
        Level.ATTENTION,
        'Prepared transaction "it\'s mine" of ana is open for 3 h',
        "rollback prepared 'it''s mine'",
    ),
    "queue filling": (seen(notify_queue=0.26), "notify_queue", Level.ATTENTION, "26% full", "idle in transaction"),
    "sweep overdue": (
        seen(sweep=replace(SWEPT, completed_at=NOW - timedelta(days=9))),
        "sweep",
        Level.ATTENTION,
        "The last complete sweep ended 9 days ago",
        "spectral retention run",
    ),
    "five million rows": (
        table(rows=5_000_001),
        "growth_partition",
        Level.NOTICE,
        "5,000,001 rows (estimated), more than 5,000,000",
        "spectral partitions enable",
    ),
    "slow acknowledgement": (
        replace(HEALTHY, latency=Latency(5000, timedelta(milliseconds=700), 7)),
        "growth_relay",
        Level.NOTICE,
        "7 days of the last week one event in a hundred took 0.7 s or more from due to delivered (sample of 5,000)",
        "SPECTRAL_RELAY=nats SPECTRAL_BROKER_URL=<url> spectral relay run",
    ),
    "slow, and a relay runs already": (
        replace(seen(relaying=Relaying("postgres", relays=1)), latency=Latency(5000, timedelta(milliseconds=700), 7)),
        "growth_relay",
        Level.NOTICE,
        "took 0.7 s or more from due to delivered",
        "spectral relay switch nats",
    ),
    "slow, and a relay for the other broker runs": (
        replace(
            seen(relaying=Relaying("postgres", relays=1, ready="redis")),
            latency=Latency(5000, timedelta(milliseconds=700), 7),
        ),
        "growth_relay",
        Level.NOTICE,
        "took 0.7 s or more from due to delivered",
        "spectral relay switch redis",
    ),
    "interrupted partitioning": (
        seen(partitioning=Partitioning(enabled=False, unfinished=True)),
        "partitions_unfinished",
        Level.NOTICE,
        "has begun and has not ended",
        "spectral partitions enable",
    ),
    "interrupted partitioning that has made a promise of days": (
        seen(partitioning=Partitioning(enabled=False, unfinished=True, refuses_in=timedelta(days=9))),
        "partitions_unfinished",
        Level.NOTICE,
        "if it does not go on, publishing fails in 9 d",
        "spectral partitions enable",
    ),
    "interrupted partitioning that has made a promise": (
        seen(partitioning=Partitioning(enabled=False, unfinished=True, refuses_in=timedelta(hours=7))),
        "partitions_unfinished",
        Level.UNHEALTHY,
        "if it does not go on, publishing fails in 7 h",
        "spectral partitions enable",
    ),
    "no month ahead": (
        seen(partitioning=Partitioning(enabled=True)),
        "partitions_ahead",
        Level.ATTENTION,
        "No month after this one has a partition",
        "spectral partitions maintain",
    ),
    "rows that fit no month": (
        seen(partitioning=Partitioning(enabled=True, ahead=3, default_rows=Amount(2))),
        "default_partition",
        Level.ATTENTION,
        "2 rows are in the default partition of core.outbox",
        "spectral partitions maintain",
    ),
    "nobody relays": (
        seen(relaying=Relaying("redis", 0, (unsent(300),))),
        "relay_missing",
        Level.ATTENTION,
        "Workers take events from redis, and no relay is alive that sends them there",
        "SPECTRAL_RELAY=redis SPECTRAL_BROKER_URL=<url> spectral relay run",
    ),
    "the relay lags": (
        seen(relaying=Relaying("nats", 2, (unsent(20), unsent(3)))),
        "relay_lag",
        Level.ATTENTION,
        "Events wait to be sent to nats, the oldest for 20 s",
        "spectral relay status",
    ),
}


@pytest.mark.parametrize("trouble", GROWTH_TROUBLES)
def test_one_trouble_is_one_finding_with_its_fix(trouble: str) -> None:
    facts, check, severity, what, fix = GROWTH_TROUBLES[trouble]
    finding = only(facts)
    assert (finding.check, finding.severity) == (check, severity)
    assert what in finding.what
    assert fix in finding.fix
    assert finding.why


def test_a_full_queue_is_also_a_reason_to_grow() -> None:
    assert {finding.check for finding in found(seen(notify_queue=0.7))} == {"notify_queue", "growth_relay"}


def test_twenty_million_rows_fire_both_steps_of_the_growth_plan() -> None:
    checks = [finding.check for finding in found(table(rows=20_000_001))]
    assert sorted(checks) == ["growth_partition", "growth_relay"]


def test_what_a_brake_holds_back_is_not_held_against_the_relay() -> None:
    relaying = Relaying("nats", 1, (unsent(300),))
    facts = seen(relaying=relaying, brakes=(Brake("platform", NOW, "ada", "billing is down"),))
    assert [finding.check for finding in found(facts)] == ["brake"]


@pytest.mark.parametrize(
    "facts",
    [
        seen(holders=(holder(since=timedelta(minutes=2)),)),
        seen(holders=(holder(state=None, since=None),)),
        table(dead=60_000, vacuum_due_at=30_000),
        table(dead=9_999, vacuum_due_at=50),
        replace(HEALTHY, latency=Latency(999, timedelta(hours=1), 7)),
        replace(HEALTHY, latency=Latency(0, None, 0)),
        # an hour without workers is no reason for a broker
        replace(HEALTHY, latency=Latency(10_000, timedelta(seconds=40), 4)),
        # a young database has nothing to sweep
        seen(sweep=replace(SWEPT, oldest_delivered_at=NOW - timedelta(days=30))),
        # the step is done
        seen(tables=(replace(OUTBOX, rows=6_000_000),), partitioning=Partitioning(enabled=True, ahead=3)),
        replace(seen(relaying=Relaying("nats", 1)), latency=Latency(5000, timedelta(seconds=2), 7)),
        seen(relaying=Relaying("nats", 1, (unsent(19),))),
        # nothing has to be sent
        seen(relaying=Relaying("postgres", 0, (unsent(300),))),
    ],
)
def test_what_is_no_trouble_is_not_told(facts: Facts) -> None:
    assert found(facts) == []
