"""What the doctor knows of a database before it judges. A part that could not be read is none; `unseen` says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta

    from spectral.core.operations.insights_values import Snapshot


@dataclass(frozen=True, slots=True)
class Server:
    """The server, by its own account."""

    version: int
    version_text: str
    login: str
    recovering: bool
    read_only: bool
    fsync: bool
    synchronous_commit: str
    track_counts: bool
    connections: int
    connections_max: int


@dataclass(frozen=True, slots=True)
class Clock:
    """How far the database's clock is ahead of this machine's, give or take half of the time it took to ask."""

    skew: timedelta
    round_trip: timedelta


@dataclass(frozen=True, slots=True)
class Wire:
    """One way to the database: `pooled` if something else answers for the server, `shared` if it does so by turns."""

    variable: str
    pooled: bool
    shared: bool


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A notification to ourselves: heard or not, and what the server said if it refused."""

    variable: str
    heard: bool
    took: timedelta | None = None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """How the schema stands to the files of this installation.

    drift: files that are not what was applied. unknown: applied, and not among the files. changed: objects, by hand.
    """

    pending: tuple[str, ...] = ()
    adoptable: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what: groups that are missing, what the groups lack, what belongs to somebody else.

    notify_trigger: `O` as it should be, `D` disabled, none if there is none. bell: how publishers ring.
    """

    member_of: tuple[str, ...]
    superuser: bool
    missing_groups: tuple[str, ...]
    missing_grants: tuple[str, ...]
    foreign: tuple[tuple[str, str], ...]
    notify_trigger: str | None
    bell: str | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that holds, or waits for, a lock on the outbox under which nobody can read it."""

    pid: int
    name: str
    user: str | None
    state: str | None
    granted: bool
    since: timedelta | None


@dataclass(frozen=True, slots=True)
class Latency:
    """From due to delivered, over a sample of the rows delivered within the last week.

    p99: the 99th percentile of the best of its days; days: how many there were. A day without workers says nothing of
    how fast they are.
    """

    sample: int
    p99: timedelta | None
    days: int


@dataclass(frozen=True, slots=True)
class Unseen:
    """A part that was not examined, and what would let this login see it."""

    part: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was read."""

    server: Server
    clock: Clock
    has_schema: bool = True
    wires: tuple[Wire, ...] = ()
    round_trip: RoundTrip | None = None
    schema: Schema | None = None
    access: Access | None = None
    blockers: tuple[Blocker, ...] = ()
    snapshot: Snapshot | None = None
    latency: Latency | None = None
    unseen: tuple[Unseen, ...] = ()
