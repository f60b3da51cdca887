"""What one look at the database shows: plain values, each saying what it counts and how far it counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.channels import DEFAULT_CHANNEL

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from spectral.core.retention import SweepState

COUNT_CAP: Final = 10_000
"""Nothing is counted further than this: the answer is then "10,000+", and as fast as any other."""

EVERY_CONTEXT: Final = "*"


@dataclass(frozen=True, slots=True)
class Amount:
    """A count that stops at the cap; `capped` says that there is more."""

    value: int = 0
    capped: bool = False

    @classmethod
    def of(cls, counted: int) -> Amount:
        """From a count of at most one more than the cap."""
        return cls(min(counted, COUNT_CAP), counted > COUNT_CAP)

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.value + other.value, self.capped or other.capped)

    def __bool__(self) -> bool:
        return self.value > 0

    def __str__(self) -> str:
        return f"{self.value:,}{'+' if self.capped else ''}"


NOTHING: Final = Amount()


@dataclass(frozen=True, slots=True)
class Deployment:
    """One generation; the highest ones, and whatever is not retired."""

    generation: int
    status: str
    label: str | None
    promoted_at: datetime | None
    drained_at: datetime | None


@dataclass(frozen=True, slots=True)
class Lane:
    """Rows that wait on one channel of one generation for one context; for none: broadcasts that are not split yet.

    `generation_status` is none for a generation that was never allocated.
    """

    generation: int
    generation_status: str | None
    channel: str
    context: str | None
    due: Amount
    waiting: Amount
    oldest_due: timedelta | None
    next_due: timedelta | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """One context in one generation, over all its channels; without a context: broadcasts that are not split yet.

    due: may be claimed now; waiting: not yet (a delay or a retry); oldest_due: how long the first of them has been due.
    stale: in flight, claimed by a worker that shows no sign of life. failed_lately: in the hour before the look.
    """

    context: str | None
    generation: int
    generation_status: str | None
    due: Amount = NOTHING
    waiting: Amount = NOTHING
    oldest_due: timedelta | None = None
    in_flight: Amount = NOTHING
    stale: Amount = NOTHING
    failed: Amount = NOTHING
    failed_lately: Amount = NOTHING


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that signed in and not out; `alive` is what its liveness lock says.

    unsubscribed: contexts of which its own generation has no handler on record, for whatever type.
    """

    name: str
    generation: int
    generations: tuple[int, ...]
    contexts: tuple[str, ...]
    channels: tuple[str, ...]
    host: str
    pid: int
    version: str
    signed_in_at: datetime
    alive: bool
    unsubscribed: tuple[str, ...] = ()
    in_flight: int = 0

    def serves(self, context: str | None, generation: int) -> bool:
        """Whether rows of this context and generation are its own; every worker splits broadcasts."""
        return self.alive and generation in self.generations and (context is None or context in self.contexts)

    @property
    def subscribes(self) -> bool:
        """Whether it puts its handlers on record. A `ChannelListener`, which has one channel, takes all that comes."""
        return len(self.channels) > 1


@dataclass(frozen=True, slots=True)
class Stray:
    """Rows of a lane that nobody of their context and generation is subscribed to, among those that are due longest.

    rows: how many of the `looked` ones. oldest_due: for how long the first of them has been due.
    """

    context: str
    generation: int
    channel: str
    event_types: tuple[str, ...]
    rows: int
    looked: int
    oldest_due: timedelta


@dataclass(frozen=True, slots=True)
class Brake:
    """A brake that is pulled: of a context, or `*` for all of them."""

    context: str
    pulled_at: datetime
    pulled_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """One table with its partitions, by the server's statistics: rows are estimated.

    inserted: since the statistics were last reset. vacuum_due_at: the number of dead rows at which autovacuum begins.
    last_vacuum: by hand or by autovacuum.
    """

    name: str
    rows: int
    dead: int
    bytes: int
    inserted: int
    last_vacuum: datetime | None
    autovacuum: bool
    vacuum_due_at: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who keeps dead rows from being vacuumed: a backend, a replication slot, a prepared transaction or a standby.

    age: in transactions. since: how long it has been open; none where this login may not see it.
    """

    kind: str
    name: str
    user: str | None
    pid: int | None
    state: str | None
    age: int
    since: timedelta | None


@dataclass(frozen=True, slots=True)
class Unsent:
    """Rows of a context and generation that are due and that no relay has sent; oldest: for how long the first was."""

    context: str
    generation: int
    rows: Amount
    oldest: timedelta | None


@dataclass(frozen=True, slots=True)
class Relaying:
    """What workers are to take events from: `mode` is postgres, nats or redis.

    relays: those that are alive and send to that broker; all that are alive while the mode is postgres.
    ready: the broker that most relays send to, if any is alive that says so.
    unsent: nothing is counted while the mode is postgres, for nothing has to be sent.
    """

    mode: str
    relays: int
    unsent: tuple[Unsent, ...] = ()
    ready: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is a broker in between."""
        return self.mode != NO_BROKER


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the outbox is laid out: in months (`enabled`), on the way there (`unfinished`), or as one table.

    dedup: whether the dedup records are laid out by hash.
    refuses_in: until when a conversion under way has to go on, or publishing fails. ahead: months after this one that
    have a partition. default_rows: rows that fit no month. droppable: partitions whose rows are all over and past their
    retention.
    """

    enabled: bool
    unfinished: bool = False
    refuses_in: timedelta | None = None
    ahead: int = 0
    default_rows: Amount = NOTHING
    droppable: int = 0
    dedup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One look, at one instant of the database's clock. Counts stop at the cap; lists are bounded and say so.

    activity_visible: else states and ages of other logins' backends are hidden (`grant pg_monitor` shows them).
    relaying, partitioning: none in a schema that waits for the migrations that bring them.
    strays: of lanes whose oldest row has been due for a while; none if this login may not read every event.
    """

    taken_at: datetime
    login: str
    activity_visible: bool
    live_generation: int | None
    deployments: tuple[Deployment, ...] = ()
    backlogs: tuple[Backlog, ...] = ()
    lanes: tuple[Lane, ...] = ()
    lanes_capped: bool = False
    strays: tuple[Stray, ...] = ()
    workers: tuple[Worker, ...] = ()
    brakes: tuple[Brake, ...] = ()
    notify_queue: float = 0.0
    tables: tuple[Table, ...] = ()
    holders: tuple[Holder, ...] = ()
    sweep: SweepState | None = None
    relaying: Relaying | None = None
    partitioning: Partitioning | None = None
    windows: dict[str, str] = field(default_factory=dict)

    @property
    def living(self) -> tuple[Worker, ...]:
        """Workers that show life."""
        return tuple(worker for worker in self.workers if worker.alive)

    @property
    def vanished(self) -> tuple[Worker, ...]:
        """Workers that did not sign out and show no life."""
        return tuple(worker for worker in self.workers if not worker.alive)

    def servants(self, context: str | None, generation: int) -> tuple[Worker, ...]:
        """Living workers that take rows of this context and generation."""
        return tuple(worker for worker in self.workers if worker.serves(context, generation))

    def is_heard(self, lane: Lane) -> bool:
        """Whether a living worker takes rows of this lane."""
        return any(lane.channel in worker.channels for worker in self.servants(lane.context, lane.generation))

    def unheard(self) -> tuple[Lane, ...]:
        """Lanes of which a living worker has the context and the generation, but none the channel."""
        return tuple(
            lane for lane in self.lanes if self.servants(lane.context, lane.generation) and not self.is_heard(lane)
        )

    def on_default_channel(self) -> Amount:
        """Rows that somebody inserted without a channel, and that still wait."""
        lanes = (lane for lane in self.lanes if lane.channel == DEFAULT_CHANNEL)
        return sum((lane.due + lane.waiting for lane in lanes), NOTHING)

    def brake_on(self, context: str | None) -> Brake | None:
        """The brake that holds this context, if any; broadcasts are held by the one for all."""
        held = {brake.context: brake for brake in self.brakes}
        return held.get(EVERY_CONTEXT) or held.get(context or EVERY_CONTEXT)

    def table(self, name: str) -> Table | None:
        """What is known of a table."""
        return next((table for table in self.tables if table.name == name), None)
