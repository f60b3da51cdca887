"""The doctor's checks: from facts to findings, without a database. Each is shown to speak, and to be silent."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest

from spectral.core.operations.doctor import Facts, Finding, Level, Limits, diagnose
from spectral.core.operations.doctor.facts import Access, Clock, Latency, RoundTrip, Schema, Server, Wire
from spectral.core.operations.insights import Deployment, Snapshot, Table, Worker
from spectral.core.retention import SweepState

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SERVER = Server(
    version=180001,
    version_text="18.1",
    login="ops",
    recovering=False,
    read_only=False,
    fsync=True,
    synchronous_commit="on",
    track_counts=True,
    connections=10,
    connections_max=97,
)
CLOCK = Clock(timedelta(milliseconds=3), timedelta(milliseconds=8))
SCHEMA = Schema()
ACCESS = Access(
    member_of=("spectral_operator",),
    superuser=False,
    missing_groups=(),
    missing_grants=(),
    foreign=(),
    notify_trigger="O",
)
OUTBOX = Table(
    name="core.outbox",
    rows=1_000_000,
    dead=9_000,
    bytes=1 << 30,
    inserted=5,
    last_vacuum=NOW,
    autovacuum=True,
    vacuum_due_at=11_000,
)
WORKER = Worker(
    name="w1",
    generation=1,
    generations=(1,),
    contexts=("platform",),
    channels=("outbox_gen_1", "outbox_default"),
    host="box",
    pid=1,
    version="0.1",
    signed_in_at=NOW,
    alive=True,
)
SILENT = replace(WORKER, unsubscribed=("platform",))
SWEPT = SweepState(now=NOW, sweeping=None, last=None, completed_at=None, oldest_delivered_at=None)
SNAPSHOT = Snapshot(
    taken_at=NOW,
    login="ops",
    activity_visible=True,
    live_generation=1,
    deployments=(Deployment(1, "live", None, NOW, None),),
    workers=(WORKER,),
    tables=(OUTBOX,),
    sweep=SWEPT,
)
HEALTHY = Facts(
    server=SERVER,
    clock=CLOCK,
    wires=(Wire("SPECTRAL_DATABASE_URL", pooled=False, shared=False),),
    round_trip=RoundTrip("SPECTRAL_DATABASE_URL", heard=True, took=timedelta(milliseconds=1)),
    schema=SCHEMA,
    access=ACCESS,
    snapshot=SNAPSHOT,
    latency=Latency(5000, timedelta(milliseconds=40), 7),
)


def found(facts: Facts, limits: Limits | None = None) -> list[Finding]:
    return diagnose(facts, limits or Limits())


def only(facts: Facts) -> Finding:
    (finding,) = found(facts)
    return finding


def seen(**changes: Any) -> Facts:  # noqa: ANN401  fields by name
    """A healthy database but for this in what one look shows."""
    return replace(HEALTHY, snapshot=replace(SNAPSHOT, **changes))


def server(**changes: Any) -> Facts:  # noqa: ANN401  fields by name
    return replace(HEALTHY, server=replace(SERVER, **changes))


def access(**changes: Any) -> Facts:  # noqa: ANN401  fields by name
    return replace(HEALTHY, access=replace(ACCESS, **changes))


def test_a_healthy_database_is_met_with_silence() -> None:
    assert found(HEALTHY) == []


Trouble: TypeAlias = tuple[Facts, str, Level, str, str]
"""Facts, and of the one finding: its check, its severity, and parts of what it says and of its fix."""

TROUBLES: dict[str, Trouble] = {
    "old server": (
        server(version=140010, version_text="14.10"),
        "server_version",
        Level.UNHEALTHY,
        "Postgres 14.10; Spectral needs 15 or newer",
        "pg_upgrade",
    ),
    "standby": (server(recovering=True, read_only=True), "standby", Level.UNHEALTHY, "a standby", "primary"),
    "read-only": (
        server(read_only=True),
        "read_only",
        Level.ATTENTION,
        "Sessions of ops are read-only",
        "set transaction read write; alter role ops set default_transaction_read_only = off",
    ),
    "silence": (
        replace(HEALTHY, round_trip=RoundTrip("SPECTRAL_DATABASE_URL", heard=False)),
        "listen",
        Level.UNHEALTHY,
        "was not heard in time",
        "export SPECTRAL_DIRECT_URL=",
    ),
    "refused notification": (
        replace(HEALTHY, round_trip=RoundTrip("SPECTRAL_DATABASE_URL", heard=False, refusal="too many notifications")),
        "listen",
        Level.UNHEALTHY,
        "was not heard: too many notifications",
        "export SPECTRAL_DIRECT_URL=",
    ),
    "clock behind": (
        replace(HEALTHY, clock=Clock(timedelta(minutes=5), timedelta(seconds=1))),
        "clock",
        Level.ATTENTION,
        "This machine's clock is 5 min behind the database's",
        "chronyc",
    ),
    "clock ahead": (
        replace(HEALTHY, clock=Clock(timedelta(days=-1), timedelta(seconds=1))),
        "clock",
        Level.ATTENTION,
        "This machine's clock is 24 h ahead of the database's",
        "chronyc",
    ),
    "connections": (server(connections=90), "connections", Level.ATTENTION, "90 of 97", "max_connections"),
    "fsync": (server(fsync=False), "fsync", Level.NOTICE, "fsync off", "alter system set fsync = on"),
    "async commit": (
        server(synchronous_commit="off"),
        "synchronous_commit",
        Level.NOTICE,
        "synchronous_commit is off",
        "alter system set synchronous_commit = on",
    ),
    "no counters": (
        server(track_counts=False),
        "track_counts",
        Level.ATTENTION,
        "track_counts is off",
        "alter system set track_counts = on",
    ),
    "pending migrations": (
        replace(HEALTHY, schema=replace(SCHEMA, pending=("1_a.sql", "2_b.sql"))),
        "migrations",
        Level.UNHEALTHY,
        "2 migrations are pending: 1_a.sql, 2_b.sql",
        "spectral migrate up",
    ),
    "drifted files": (
        replace(HEALTHY, schema=replace(SCHEMA, drift=("1_a.sql",))),
        "migrations",
        Level.UNHEALTHY,
        "1 migration file is not what was applied: 1_a.sql",
        "spectral migrate status",
    ),
    "unknown migrations": (
        replace(HEALTHY, schema=replace(SCHEMA, unknown=("9_own.sql",))),
        "migrations",
        Level.NOTICE,
        "does not know: 9_own.sql",
        "spectral migrate status",
    ),
    "drifted schema": (
        replace(HEALTHY, schema=replace(SCHEMA, changed=("column core.audit.x was added",))),
        "schema_drift",
        Level.ATTENTION,
        "column core.audit.x was added",
        "spectral migrate verify",
    ),
    "trigger disabled": (
        access(notify_trigger="D"),
        "notify_trigger",
        Level.UNHEALTHY,
        "outbox_notify on core.outbox is disabled",
        "enable trigger outbox_notify",
    ),
    "bell off": (
        access(bell="off"),
        "notify_trigger",
        Level.ATTENTION,
        "The bell is off",
        "spectral bell set bell",
    ),
    "trigger missing": (
        access(notify_trigger=None),
        "notify_trigger",
        Level.UNHEALTHY,
        "outbox_notify on core.outbox is missing",
        "spectral migrate verify",
    ),
    "role missing": (
        access(missing_groups=("spectral_worker",)),
        "roles",
        Level.UNHEALTHY,
        "Missing: role spectral_worker",
        "create role spectral_worker nologin",
    ),
    "grant missing": (
        access(missing_grants=("grant execute on function core.outbox_claim to spectral_worker",)),
        "grants",
        Level.UNHEALTHY,
        "1 grant is missing",
        "grant execute on function core.outbox_claim to spectral_worker",
    ),
    "owner": (
        access(foreign=(("table core.audit", "dba"),)),
        "ownership",
        Level.UNHEALTHY,
        "table core.audit (dba)",
        "alter table core.audit owner to spectral_owner",
    ),
    "login": (
        replace(access(member_of=("spectral_worker",)), snapshot=None),
        "login",
        Level.ATTENTION,
        "Login ops is a member of spectral_worker only",
        "grant spectral_operator to ops",
    ),
    "nothing on record": (
        seen(workers=(SILENT, replace(SILENT, name="w2"), replace(WORKER, name="w3", contexts=("worlds",)))),
        "subscriptions",
        Level.UNHEALTHY,
        "platform has no subscription in generation 1, though 2 workers are alive for it",
        "SPECTRAL_GENERATION=1 spectral worker <module>:<consumer>",
    ),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_one_trouble_is_one_finding_with_its_fix(trouble: str) -> None:
    facts, check, severity, what, fix = TROUBLES[trouble]
    finding = only(facts)
    assert (finding.check, finding.severity) == (check, severity)
    assert what in finding.what
    assert fix in finding.fix
    assert finding.why


@pytest.mark.parametrize(
    "facts",
    [
        # an answer that took long says little about the clock
        replace(HEALTHY, clock=Clock(timedelta(seconds=8), timedelta(seconds=10))),
        # in session mode a pooler is no trouble
        replace(HEALTHY, wires=(Wire("SPECTRAL_DATABASE_URL", pooled=True, shared=False),)),
        access(superuser=True, member_of=()),
        # a ChannelListener takes what is addressed to its context, and asks for no broadcasts
        seen(workers=(WORKER, replace(SILENT, channels=("outbox_gen_1",)))),
        # what vanished is not there for broadcasts either
        seen(workers=(WORKER, replace(SILENT, alive=False))),
        # nothing is recorded for a retired generation any more
        seen(
            workers=(WORKER, replace(SILENT, generation=0, generations=(0,))),
            deployments=(Deployment(1, "live", None, NOW, None), Deployment(0, "retired", None, NOW, NOW)),
        ),
    ],
)
def test_what_is_no_trouble_is_not_told(facts: Facts) -> None:
    assert found(facts) == []


def test_a_disabled_trigger_is_told_once() -> None:
    drifted = replace(SCHEMA, changed=("trigger outbox_notify on core.outbox was changed",))
    assert only(replace(access(notify_trigger="D"), schema=drifted)).check == "notify_trigger"


def test_a_silenced_trigger_is_found_by_a_login_that_cannot_read_the_ledger() -> None:
    assert only(replace(access(notify_trigger="D"), schema=None)).check == "notify_trigger"


def test_a_database_without_the_schema_gets_one_finding() -> None:
    bare = replace(HEALTHY, has_schema=False, schema=Schema(pending=("1_a.sql",)), snapshot=None, latency=None)
    finding = only(replace(bare, access=replace(ACCESS, notify_trigger=None, superuser=True)))
    assert (finding.what, finding.fix) == ("This database has no Spectral schema", "spectral migrate up")


def test_the_worst_comes_first() -> None:
    facts = replace(
        server(fsync=False), access=replace(ACCESS, notify_trigger="D"), clock=TROUBLES["clock behind"][0].clock
    )
    assert [each.severity for each in found(facts)] == [Level.UNHEALTHY, Level.ATTENTION, Level.NOTICE]


def test_a_login_with_a_difficult_name_is_quoted_for_shell_and_server() -> None:
    facts = replace(server(login="Ana's"), access=replace(ACCESS, member_of=()), snapshot=None)
    assert only(facts).fix == """psql "$SPECTRAL_DATABASE_URL" -c 'grant spectral_operator to "Ana'"'"'s"'"""
