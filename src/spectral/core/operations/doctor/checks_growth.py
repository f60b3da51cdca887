"""What slows a database down as it grows: vacuum, whoever holds it up, the NOTIFY queue, the sweep, sheer size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core.operations import growth
from spectral.core.operations import verdict_words as words
from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import end_holder, name_holder, spoken
from spectral.core.retention import overdue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.doctor.facts import Facts, Latency
    from spectral.core.operations.insights_values import Snapshot
    from spectral.core.operations.verdict_values import Limits

_FEW_DEAD: Final = 10_000
_ENOUGH: Final = 1_000
_ENOUGH_DAYS: Final = 5


def find_vacuum(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """Autovacuum is off, or does not keep up, on a table that is rewritten all the time."""
    snapshot = facts.snapshot
    for table in snapshot.tables if snapshot is not None else ():
        if snapshot is not None and not table.autovacuum:
            split = growth.is_partitioned(snapshot, table.name)
            yield Finding(
                "autovacuum",
                Level.ATTENTION,
                f"Autovacuum is off for {table.name}",
                "Every claim walks over the dead rows that pile up, and gets slower for ever",
                words.psql(words.reset_option(table.name, "autovacuum_enabled", partitioned=split), "show autovacuum"),
            )
        elif table.dead > max(_FEW_DEAD, limits.dead * table.vacuum_due_at):
            when = f"last vacuumed at {table.last_vacuum:%Y-%m-%d %H:%M} UTC" if table.last_vacuum else "never vacuumed"
            yield Finding(
                "vacuum_behind",
                Level.ATTENTION,
                f"{table.name} has {table.dead:,} dead rows beside {table.rows:,} (estimated), {when}",
                "Autovacuum does not keep up, or a transaction holds it up; claims get slower",
                words.psql(f"vacuum (verbose) {table.name}"),
            )


def find_horizon_holders(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """Transactions that keep every dead row from being vacuumed, by name."""
    snapshot = facts.snapshot
    for holder in snapshot.holders if snapshot is not None else ():
        if not growth.holds_up(holder, limits):
            continue
        since = f"open for {spoken(holder.since)}" if holder.since is not None else "open for an unknown time"
        yield Finding(
            "held_xmin",
            Level.ATTENTION,
            f"{name_holder(holder)} is {since}, {holder.age:,} transactions behind",
            "No dead row younger than it can be vacuumed, in any table; claims and sweeps get slower",
            end_holder(holder),
        )


def find_full_queue(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """The NOTIFY queue of the whole server fills up."""
    usage = facts.snapshot.notify_queue if facts.snapshot is not None else 0.0
    if usage >= limits.queue:
        yield Finding(
            "notify_queue",
            Level.UNHEALTHY if usage >= limits.queue_full else Level.ATTENTION,
            f"The NOTIFY queue is {usage:.0%} full",
            "A listener sits in a transaction and reads nothing; at 100 % every publish fails",
            words.psql(
                "select pid, usename, application_name, xact_start from pg_stat_activity"
                " where state like 'idle in transaction%' order by xact_start"
            ),
        )


def find_blockers(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Somebody locks the outbox against everybody."""
    for blocker in facts.blockers:
        doing = "holds" if blocker.granted else "waits for"
        yield Finding(
            "outbox_locked",
            Level.UNHEALTHY,
            f"Backend {blocker.pid}, {blocker.name!r} of {blocker.user} ({blocker.state or 'state hidden'}), {doing} an"
            f" exclusive lock on core.outbox for {spoken(blocker.since)}",
            "Nobody can publish or claim until it is gone",
            words.end_backend(blocker.pid),
        )


def find_overdue_sweep(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Nothing is put away any more. A young database has nothing to sweep."""
    state = facts.snapshot.sweep if facts.snapshot is not None else None
    if state is not None and (lateness := overdue(state)).overdue:
        yield Finding(
            "sweep",
            Level.ATTENTION,
            f"{lateness.because[:1].upper()}{lateness.because[1:]}",
            "Delivered events and dedup records pile up; nothing else removes them",
            words.SWEEP,
        )


def find_size(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """The first step of the growth plan: so many rows that one table is too few."""
    reasons = list(growth.reasons_to_partition(facts.snapshot, limits)) if facts.snapshot is not None else []
    if reasons:
        yield Finding(
            "growth_partition",
            Level.NOTICE,
            "; ".join(reasons),
            "Vacuum and sweep read ever more; with monthly partitions a sweep drops a table instead",
            words.PARTITION,
        )


def find_need_of_a_broker(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """The second step of the growth plan: Postgres alone no longer wakes and spreads the work fast enough."""
    snapshot = facts.snapshot
    if snapshot is None or growth.has_broker(snapshot):
        return
    reasons, latency = list(growth.reasons_to_relay(snapshot, limits)), facts.latency
    if latency is not None and latency.p99 is not None and _is_slow(latency, limits):
        reasons.append(
            f"On every one of {latency.days} days of the last week one event in a hundred took"
            f" {latency.p99.total_seconds():,.1f} s or more from due to delivered (sample of {latency.sample:,})"
        )
    if reasons:
        yield Finding(
            "growth_relay",
            Level.NOTICE,
            "; ".join(reasons),
            "The growth plan's second step: a broker wakes and spreads the work, the outbox stays the truth",
            _next_step(snapshot),
        )


def _is_slow(latency: Latency, limits: Limits) -> bool:
    """Whether it is so day after day: a day without workers has another remedy than a broker."""
    is_known = latency.sample >= _ENOUGH and latency.days >= _ENOUGH_DAYS
    return is_known and latency.p99 is not None and latency.p99 > limits.ack


def _next_step(snapshot: Snapshot) -> str:
    """To a broker: a relay that runs, then the switch."""
    relaying = snapshot.relaying
    if relaying is None or not relaying.relays:
        return words.start_relay("nats")
    return f"spectral relay switch {relaying.ready or 'nats'}"
