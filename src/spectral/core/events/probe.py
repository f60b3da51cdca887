"""What the flow tells whoever watches: one port, and a closed sum of notes it may be told.

A note carries names, counts and times, never a payload. A probe must not raise and must not wait; `Probe` adapters see
to that, the flow does not look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from spectral.core.events.lease import Delivery
    from spectral.core.events.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Finished:
    """A delivery was settled; `handlers` are those that ran now."""

    delivery: Delivery
    outcome: Outcome
    handlers: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class LeaseWasLost:
    """A delivery's claim was taken away before it was settled; nothing of it was kept."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class SettleGivenUp:
    """The outcome of a delivery could not be written; the reaper will take it back."""

    delivery: Delivery
    error: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """A claim that nobody worked on was taken back: pending again, or failed."""

    row_id: UUID
    status: str
    reason: str
    worker: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Unhandled:
    """Rows went to the DLQ because no handler of their context is subscribed to their type."""

    context: str
    rows: Sequence[tuple[UUID, str]]


@dataclass(frozen=True, slots=True)
class FannedOut:
    """A broadcast became one row for each of these contexts; none at all if nobody subscribes."""

    parent_id: UUID
    contexts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EarOpened:
    """The worker listens on these channels."""

    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EarLost:
    """The connection that listens is gone; until it is back the worker polls."""

    error: str
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class SubstrateLost:
    """Something the worker wanted of the database failed for now and will be tried again."""

    doing: str
    error: str
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class HandlerRanAway:
    """A handler ignored its cancellation after the timeout; it was left behind and may still run."""

    delivery: Delivery
    handler_name: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row whose workers were lost again and again runs alone in its process."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """The event loop has not moved for this long: a handler blocks it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """The worker has subscribed and begins to claim."""

    worker: str
    generation: int
    contexts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker claims no more; what it holds is finished within the grace, then given back."""

    held: int
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has ended in good order."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """A part of the worker died of an error that is nobody's event; the worker goes down with it."""

    error: str


DeliveryNote: TypeAlias = (
    Finished | LeaseWasLost | SettleGivenUp | Reaped | Unhandled | FannedOut | HandlerRanAway | Quarantined
)
"""Of one event, or a few."""

WorkerNote: TypeAlias = EarOpened | EarLost | SubstrateLost | LoopBlocked | Started | Stopping | Stopped | Crashed
"""Of the worker itself."""

Note: TypeAlias = DeliveryNote | WorkerNote


class Probe(Protocol):
    """Is told what happens; called from the worker's loop and from the thread beside it."""

    def tell(self, note: Note) -> None:
        """Take note."""
        ...
