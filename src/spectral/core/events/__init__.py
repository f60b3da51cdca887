"""The kernel of the event substrate: what an event is, how it can fail, when it is tried again, who may be asked.

Importing it loads no database driver. Adapters are in `spectral.core.events.infrastructure`.
"""

from spectral.core.events.consumer import Consumer
from spectral.core.events.envelope import EventEnvelope, new_event_id
from spectral.core.events.failure import (
    ConfigurationError,
    DuplicateEventError,
    FailureCycle,
    NotInTransactionError,
    PayloadError,
    PayloadNotJsonError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PublishError,
    SpectralError,
    SubstrateLostError,
    TerminalHandlerError,
    UnknownContextError,
)
from spectral.core.events.protocols import (
    DeliveryContext,
    EventHandler,
    EventListener,
    EventPublisher,
    Transaction,
)
from spectral.core.events.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from spectral.core.events.settings import DatabaseSettings, PublishSettings, WorkerSettings, WorkerTimes

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "ConfigurationError",
    "Consumer",
    "DatabaseSettings",
    "DeliveryContext",
    "DuplicateEventError",
    "EventEnvelope",
    "EventHandler",
    "EventListener",
    "EventPublisher",
    "FailureCycle",
    "NotInTransactionError",
    "PayloadError",
    "PayloadNotJsonError",
    "PayloadTooDeepError",
    "PayloadTooLargeError",
    "PublishError",
    "PublishSettings",
    "RetryPolicy",
    "SpectralError",
    "SubstrateLostError",
    "TerminalHandlerError",
    "Transaction",
    "UnknownContextError",
    "WorkerSettings",
    "WorkerTimes",
    "new_event_id",
]
