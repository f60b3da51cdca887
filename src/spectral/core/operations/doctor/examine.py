"""The examination: read everything this login may see, then let every check judge it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from spectral.core.database import DatabaseTooSlowError, RefusedError, describe_database
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.settings import DIRECT_VARIABLE, URL_VARIABLES
from spectral.core.migrations.server import OLDEST_SUPPORTED
from spectral.core.operations.doctor import (
    checks_growth,
    checks_partitions,
    checks_schema,
    checks_server,
    checks_workers,
    reading,
    wires,
)
from spectral.core.operations.doctor.facts import Facts, Unseen
from spectral.core.operations.insights import take_snapshot
from spectral.core.operations.verdict_rules import RULES
from spectral.core.operations.verdict_values import Finding, Level, Limits, worst
from spectral.core.operations.verdict_words import end_backend, grant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from datetime import datetime

    from spectral.core.database import Database

    Check = Callable[[Facts, Limits], Iterator[Finding]]

T = TypeVar("T")

CHECKS: Final[tuple[Check, ...]] = (
    checks_server.find_old_server,
    checks_server.find_read_only,
    checks_server.find_poolers,
    checks_server.find_silence,
    checks_server.find_clock_skew,
    checks_server.find_scarce_connections,
    checks_server.find_unsafe_settings,
    checks_schema.find_migrations,
    checks_schema.find_hand_made_changes,
    checks_schema.find_silenced_trigger,
    checks_schema.find_missing_roles,
    checks_schema.find_foreign_objects,
    checks_schema.find_powerless_login,
    checks_workers.find_missing_subscriptions,
    checks_growth.find_blockers,
    checks_growth.find_vacuum,
    checks_growth.find_horizon_holders,
    checks_growth.find_full_queue,
    checks_growth.find_overdue_sweep,
    checks_growth.find_size,
    checks_growth.find_need_of_a_broker,
    checks_partitions.find_half_done_partitions,
    checks_partitions.find_missing_months,
    checks_partitions.find_stray_rows,
)


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found, the worst first, by how many checks, and what this login was not let see."""

    database: str
    level: Level
    findings: tuple[Finding, ...]
    checks: int
    unseen: tuple[Unseen, ...]


async def examine(
    dsn: str,
    direct_dsn: str = "",
    *,
    limits: Limits | None = None,
    clock: Callable[[], datetime] = reading.local_clock,
) -> Examination:
    """Look at everything and say what is wrong, each with its fix.

    Raises:
        DatabaseUnavailableError: one of the connection strings leads nowhere.
        ConfigurationError: one of them cannot be read.
    """
    facts = await collect(dsn, direct_dsn, clock)
    findings = diagnose(facts, limits or Limits())
    return Examination(
        database=describe_database(dsn),
        level=worst([finding.severity for finding in findings]),
        findings=tuple(findings),
        checks=len(CHECKS) + len(RULES),
        unseen=facts.unseen,
    )


def diagnose(facts: Facts, limits: Limits) -> list[Finding]:
    """What these facts amount to, the worst first. Pure."""
    found = [finding for check in CHECKS for finding in check(facts, limits)]
    if facts.snapshot is not None:
        found += [finding for rule in RULES for finding in rule(facts.snapshot, limits)]
    return sorted(found, key=lambda finding: -finding.severity.rank)


async def collect(dsn: str, direct_dsn: str, clock: Callable[[], datetime]) -> Facts:
    """Everything the checks judge. Raises as `examine`."""
    async with wires.doctor_connection(dsn) as database:
        facts = Facts(server=await reading.read_server(database), clock=await reading.read_clock(database, clock))
        if facts.server.version < OLDEST_SUPPORTED * 10_000:
            return facts
        facts = await _with_wires(facts, database, dsn, direct_dsn)
        facts = replace(facts, has_schema=await reading.has_schema(database))
        return await _with_contents(facts, database, dsn)


async def _with_wires(facts: Facts, database: Database, dsn: str, direct_dsn: str) -> Facts:
    ways = [(dsn, URL_VARIABLES[0]), *([(direct_dsn, DIRECT_VARIABLE)] if direct_dsn else [])]
    found = [await wires.probe_wire(way, variable) for way, variable in ways]
    ear_dsn, variable = ways[-1]
    if found[-1].shared:  # it would leave a listening session behind in the pool, and hear nothing
        return replace(facts, wires=tuple(found))
    heard = await wires.probe_round_trip(database, ear_dsn, variable)
    return replace(facts, wires=tuple(found), round_trip=heard)


async def _with_contents(facts: Facts, database: Database, dsn: str) -> Facts:
    unseen: list[Unseen] = []

    async def seen(part: str, look: Awaitable[T]) -> T | None:
        try:
            return await look
        except (RefusedError, DatabaseTooSlowError) as error:
            unseen.append(Unseen(part, str(error), error.remedy or "spectral doctor"))
        except ConfigurationError as error:
            unseen.append(Unseen(part, str(error), "spectral migrate up"))
        return None

    access = await seen("roles", reading.read_access(database))
    blockers = await seen("locks", reading.read_blockers(database)) or ()
    if blockers:  # everything below would wait for them
        locked = Unseen("schema and delivery", "core.outbox is locked", end_backend(blockers[0].pid))
        return replace(facts, access=access, blockers=blockers, unseen=(*unseen, locked))
    schema = await seen("schema", reading.read_schema(dsn, pooled=facts.wires[0].pooled))
    # Without the schema, which is a finding, there is nothing to look at.
    snapshot = await seen("delivery", take_snapshot(database)) if facts.has_schema else None
    latency = None
    if snapshot is not None:
        latency = await seen("latency", reading.read_latency(database, snapshot.table("core.outbox")))
        if not snapshot.activity_visible:
            hidden = "how long other logins' transactions are open, and their state, cannot be seen"
            unseen.append(Unseen("activity", hidden, grant("pg_monitor", snapshot.login)))
    return replace(
        facts,
        schema=schema,
        access=access,
        snapshot=snapshot,
        latency=latency,
        unseen=tuple(unseen),
    )
