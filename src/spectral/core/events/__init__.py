"""The kernel of the event substrate: what an event is, how it can fail, when it is tried again, who may be asked.

Importing it loads no database driver. Adapters are in `spectral.core.events.infrastructure`.
"""

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
    TerminalHandlerError,
    UnknownContextError,
)
from spectral.core.events.protocols import EventHandler, EventListener, EventPublisher
from spectral.core.events.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from spectral.core.events.settings import PublishSettings

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "ConfigurationError",
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
    "TerminalHandlerError",
    "UnknownContextError",
    "new_event_id",
]
