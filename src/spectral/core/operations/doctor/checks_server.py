"""The server and the way to it: what would keep workers from running there at all, or from trusting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.migrations.server import OLDEST_SUPPORTED
from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import identifier, psql, set_server, spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.doctor.facts import Facts
    from spectral.core.operations.verdict_values import Limits

DIRECT = "SPECTRAL_DIRECT_URL"


def find_old_server(facts: Facts, _: Limits) -> Iterator[Finding]:
    """A version that the schema was not written for."""
    if facts.server.version < OLDEST_SUPPORTED * 10_000:
        yield Finding(
            "server_version",
            Level.UNHEALTHY,
            f"This server is Postgres {facts.server.version_text}; Spectral needs {OLDEST_SUPPORTED} or newer",
            "The schema cannot be applied to it, and nothing else was examined",
            f"pg_upgrade to Postgres {OLDEST_SUPPORTED} or newer",
        )


def find_read_only(facts: Facts, _: Limits) -> Iterator[Finding]:
    """A standby, or a session in which nothing can be written."""
    server = facts.server
    if server.recovering:
        yield Finding(
            "standby",
            Level.UNHEALTHY,
            "This server is a standby",
            "Nothing can be published, claimed or listened for on it",
            "point SPECTRAL_DATABASE_URL at the primary (add target_session_attrs=read-write)",
        )
    elif server.read_only:
        yield Finding(
            "read_only",
            Level.ATTENTION,
            f"Sessions of {server.login} are read-only here",
            "This login can publish, claim and replay nothing",
            psql(
                "set transaction read write; "
                f"alter role {identifier(server.login)} set default_transaction_read_only = off"
            ),
        )


def find_poolers(facts: Facts, _: Limits) -> Iterator[Finding]:
    """A pooler that hands the session to others between transactions."""
    direct = any(wire.variable == DIRECT for wire in facts.wires)
    for wire in facts.wires:
        if not wire.shared:
            continue
        if direct and wire.variable != DIRECT:
            yield Finding(
                "pooler",
                Level.ATTENTION,
                f"{wire.variable} leads through a pooler in transaction mode",
                "Workers keep settings in their sessions, which are then other clients' sessions too",
                f"give {wire.variable} the pooler's session mode port; publishers may keep the other one",
            )
        else:
            yield Finding(
                "pooler",
                Level.UNHEALTHY,
                f"{wire.variable} leads through a pooler in transaction mode",
                "LISTEN and the lock by which a worker is seen to live need a session of their own: workers would hear"
                " nothing, and be taken for dead",
                f"export {DIRECT}=<the server's own address, not the pooler's>",
            )


def find_silence(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Notifications that do not arrive."""
    trip = facts.round_trip
    if trip is not None and not trip.heard:
        said = f": {trip.refusal}" if trip.refusal else " in time"
        yield Finding(
            "listen",
            Level.UNHEALTHY,
            f"A notification to ourselves by {trip.variable} was not heard{said}",
            "Workers are deaf: events are found by polling only, seconds late",
            f"export {DIRECT}=<an address that leads straight to the server>",
        )


def find_clock_skew(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """This machine and the database tell different times."""
    skew = facts.clock.skew
    if abs(skew) - facts.clock.round_trip / 2 > limits.skew:
        yield Finding(
            "clock",
            Level.ATTENTION,
            f"This machine's clock is {spoken(abs(skew))} {'behind' if skew.days >= 0 else 'ahead of'} the database's",
            "Delivery goes by the database's clock, but occurred_at, logs and traces of this machine are off",
            "chronyc makestep (or: timedatectl set-ntp true)",
        )


def find_scarce_connections(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """Soon nobody gets in any more."""
    server = facts.server
    if server.connections >= limits.connections * server.connections_max:
        yield Finding(
            "connections",
            Level.ATTENTION,
            f"{server.connections} of {server.connections_max} connections are in use",
            "A worker that has to reconnect may find no place, and so may you",
            f"{psql('alter system set max_connections = 400')}, and restart the server; or run fewer workers and lanes",
        )


def find_unsafe_settings(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Settings with which a crash of the server loses what was acknowledged."""
    server = facts.server
    if not server.fsync:
        yield Finding(
            "fsync",
            Level.NOTICE,
            "The server runs with fsync off",
            "A crash of the machine can destroy the whole database; for tests only",
            set_server("fsync = on"),
        )
    if server.synchronous_commit == "off":
        yield Finding(
            "synchronous_commit",
            Level.NOTICE,
            "Commits are not waited for (synchronous_commit is off)",
            "A crash of the server forgets the publishes of its last moments, though they were acknowledged",
            set_server("synchronous_commit = on"),
        )
    if not server.track_counts:
        yield Finding(
            "track_counts",
            Level.ATTENTION,
            "The server counts nothing (track_counts is off)",
            "Autovacuum does nothing without it, and the numbers of tables are made up",
            set_server("track_counts = on"),
        )
