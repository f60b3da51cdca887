"""What is known of generations, and what becomes of them. All of it is plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from spectral.core.events.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from spectral.core.events.consumer import Consumer, Subscription

COUNTED_AT_MOST: Final = 10_000
"""Rows of one state of one generation that are counted: a backlog of millions is answered for at once too."""


class Status(StrEnum):
    """How far a generation is."""

    ALLOCATED = "allocated"
    LIVE = "live"
    DRAINING = "draining"
    RETIRED = "retired"
    UNKNOWN = "unknown"  # nobody allocated it, but a publisher has stamped rows with it


@dataclass(frozen=True, slots=True)
class Count:
    """So many rows; at least so many if it is capped."""

    rows: int
    capped: bool = False

    def __str__(self) -> str:
        return f"{self.rows:,}{'+' if self.capped else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A generation and what is left of it.

    `failed` counts the DLQ's newest rows only, so it is capped as soon as the whole DLQ is large. `workers` are those
    of its own that live, `accepted_by` those of other generations that run its rows too.
    """

    generation: int
    status: Status
    label: str | None = None
    allocated_at: datetime | None = None
    promoted_at: datetime | None = None
    drained_at: datetime | None = None
    retired_at: datetime | None = None
    pending: Count = Count(0)
    in_flight: Count = Count(0)
    failed: Count = Count(0)
    workers: tuple[str, ...] = ()
    accepted_by: tuple[str, ...] = ()

    @property
    def since(self) -> datetime | None:
        """When it came into its status."""
        match self.status:
            case Status.LIVE:
                return self.promoted_at
            case Status.DRAINING:
                return self.drained_at
            case Status.RETIRED:
                return self.retired_at
            case _:
                return self.allocated_at


@dataclass(frozen=True, slots=True)
class Blocker:
    """Rows that keep a generation from being retired; those of no context are broadcasts that were not split yet."""

    status: str
    context: str | None
    event_type: str
    rows: int


@dataclass(frozen=True, slots=True)
class Release:
    """What is to be allocated: what people call it, who handles what in it, and its number unless it is the next."""

    label: str | None = None
    subscriptions: tuple[Subscription, ...] = ()
    generation: int | None = None

    @classmethod
    def of(cls, consumers: Sequence[Consumer], *, label: str | None = None, generation: int | None = None) -> Self:
        """The release that has these consumers, which are frozen by it.

        Raises:
            ConfigurationError: there is nothing to handle, or a context or handler name appears twice.
        """
        return cls(label, tuple(Routes.of(consumers).subscriptions()) if consumers else (), generation)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The generation of a release; not new if it was allocated before and has been brought up to date."""

    generation: int
    label: str | None
    subscriptions: int
    new: bool


@dataclass(frozen=True, slots=True)
class Promotion:
    """Which generation is live, and which one was before; the same one if nothing had to be done."""

    generation: int
    before: int | None

    def __str__(self) -> str:
        return f"generation {self.generation}" + ("" if self.before is None else f" instead of {self.before}")

    @property
    def changed(self) -> bool:
        """Whether another one was live before."""
        return self.generation != self.before


@dataclass(frozen=True, slots=True)
class HandOver:
    """Waiting rows of one generation that are to become another's: of one context, or of all and the broadcasts."""

    source: int
    target: int
    context: str | None = None
    batch: int = 1000


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one type that wait, and whether anybody subscribes to them where they would go to."""

    context: str | None
    event_type: str
    rows: int
    subscribed: bool


@dataclass(frozen=True, slots=True)
class HandOverPreview:
    """What a hand-over would move. If it is capped there is more of it, of which nobody has looked at the types."""

    order: HandOver
    waiting: tuple[Waiting, ...]
    capped: bool
    in_flight: Count
    workers: tuple[str, ...]

    @property
    def total(self) -> Count:
        """All the rows that wait."""
        return Count(sum(each.rows for each in self.waiting), self.capped)

    @property
    def unhandled(self) -> tuple[Waiting, ...]:
        """Those that would end as NoHandlerError; of broadcasts, those that would be delivered to nobody."""
        return tuple(each for each in self.waiting if not each.subscribed)


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a hand-over moved, and what is left: in flight, locked by somebody, or published meanwhile."""

    moved: int
    pending: Count
    in_flight: Count
    aborted: bool


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a person should look at, and the command that sees to it."""

    message: str
    remedy: str
