"""The doctor's checks of what slows a database down as it grows: from facts to findings, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spectral.core.operations.doctor import Facts, Level
from spectral.core.operations.doctor.facts import Blocker, Latency
from spectral.core.operations.insights import Holder
from tests.unit.test_doctor_checks import HEALTHY, NOW, OUTBOX, SWEPT, Trouble, found, only, seen


def table(**changes: Any) -> Facts:  # noqa: ANN401  fields by name
    return seen(tables=(replace(OUTBOX, **changes),))


def holder(**changes: Any) -> Holder:  # noqa: ANN401  fields by name
    known = Holder("backend", "report", "ana", 99, "idle in transaction", 12, timedelta(minutes=20))
    return replace(known, **changes)


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
        "partition the outbox",
    ),
    "slow acknowledgement": (
        replace(HEALTHY, latency=Latency(5000, timedelta(milliseconds=700))),
        "growth_relay",
        Level.NOTICE,
        "0.7 s over the last week (sample of 5,000)",
        "relay",
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


@pytest.mark.parametrize(
    "facts",
    [
        seen(holders=(holder(since=timedelta(minutes=2)),)),
        seen(holders=(holder(state=None, since=None),)),
        table(dead=60_000, vacuum_due_at=30_000),
        table(dead=9_999, vacuum_due_at=50),
        replace(HEALTHY, latency=Latency(999, timedelta(hours=1))),
        replace(HEALTHY, latency=Latency(0, None)),
        # a young database has nothing to sweep
        seen(sweep=replace(SWEPT, oldest_delivered_at=NOW - timedelta(days=30))),
    ],
)
def test_what_is_no_trouble_is_not_told(facts: Facts) -> None:
    assert found(facts) == []
