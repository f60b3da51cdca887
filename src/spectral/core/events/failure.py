"""What can go wrong, by name: the error tree, and the shape of a failure that was replayed.

    SpectralError
    ├── ConfigurationError            a setting is missing or makes no sense; nothing was started
    ├── SubstrateLostError            the database cannot be reached or does not answer; to be tried again
    ├── PublishError                  the event was not published; nothing was written
    │   ├── NotInTransactionError     no open business transaction to join
    │   ├── DuplicateEventError       this event id was published before
    │   ├── UnknownContextError       source or target is not a declared context
    │   └── PayloadError              the payload cannot travel (also a ValueError)
    │       ├── PayloadNotJsonError   not JSON: NaN, NUL, a lone surrogate, a key that is no string, ...
    │       ├── PayloadTooDeepError   nested deeper than 64
    │       └── PayloadTooLargeError  larger than 256 KiB serialised
    └── HandlerError                  the event was delivered to a handler, or would have been
        ├── TerminalHandlerError      raised by a handler: do not retry
        ├── UndecodablePayloadError   the payload cannot be read (also a ValueError)
        ├── HandlerTimeoutError       the handler ran longer than it may
        ├── TransactionMisusedError   the handler left the transaction it was given in another state
        ├── NoHandlerError            nobody handles this type in this context
        └── WorkerLostError           the process that held the claim died

Errors of other rooms (`MigrationError`, `EmbeddedPostgresError`) hang on `SpectralError` too. Every message
says what to do next and never carries a payload, a row or a connection string.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID


class SpectralError(Exception):
    """The root of every error this library raises on purpose."""


class ConfigurationError(SpectralError):
    """A setting is missing or makes no sense."""


class SubstrateLostError(SpectralError):
    """The database cannot be reached, does not answer, or refuses to work for now; nobody's event is to blame."""


class PublishError(SpectralError):
    """The event was not published and nothing was written."""


class NotInTransactionError(PublishError):
    """There is no open business transaction that the publish could be part of."""


class DuplicateEventError(PublishError):
    """An event with this id was published before; in bulk, one of these, and the server does not say which.

    After an ambiguous commit, publish again with `on_conflict="ignore"`.
    """

    def __init__(self, event_ids: Collection[UUID]) -> None:
        self.event_ids = tuple(event_ids)
        what = f"event {self.event_ids[0]}" if len(self.event_ids) == 1 else f"one of {len(self.event_ids)} events"
        super().__init__(
            f"{what} was published before; "
            'if this is a retry after an unclear commit, publish with on_conflict="ignore"'
        )

    def __reduce__(self) -> tuple[type[DuplicateEventError], tuple[tuple[UUID, ...]]]:
        return type(self), (self.event_ids,)


class UnknownContextError(PublishError):
    """The envelope names a source or target that the project has not declared."""


class PayloadError(PublishError, ValueError):
    """The payload cannot be carried."""


class PayloadNotJsonError(PayloadError):
    """The payload is not JSON that Postgres and every consumer can read."""


class PayloadTooDeepError(PayloadError):
    """The payload is nested deeper than the limit."""


class PayloadTooLargeError(PayloadError):
    """The payload is larger than the limit when serialised."""


class HandlerError(SpectralError):
    """An event could not be handled."""


class TerminalHandlerError(HandlerError):
    """Raised by a handler that knows a retry cannot help: the event goes to the DLQ at once."""


class UndecodablePayloadError(HandlerError, ValueError):
    """The payload, written by other means than a publisher, cannot be read; a retry cannot help."""


class HandlerTimeoutError(HandlerError, TimeoutError):
    """The handler ran longer than its timeout; transient, so it is retried."""


class TransactionMisusedError(HandlerError):
    """The handler returned, but its transaction had failed, ended or changed its role: nothing of it is kept."""


class NoHandlerError(HandlerError):
    """The event's context has no handler for its type, and the grace period for one to appear is over."""


class WorkerLostError(HandlerError):
    """The worker that held the claim died or stalled past its lease."""


class FailureCycle(BaseModel):
    """One entry of `core.outbox.failure_history`: a cycle that ended in the DLQ and was then replayed.

    Written by `core.outbox_replay`, read by people and tools. Additive only: readers ignore keys they do not know.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    cycle: int = Field(ge=1)
    attempts: int = Field(ge=0)
    last_error: str | None
    first_failed_at: datetime | None
    failed_at: datetime | None
    replayed_at: datetime
    replayed_by: str | None
