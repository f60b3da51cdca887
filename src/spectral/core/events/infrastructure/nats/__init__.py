"""The relay and the listener on NATS JetStream: references on a work queue, a stream for each generation."""

from spectral.core.events.infrastructure.nats.receiver import NatsReceiver
from spectral.core.events.infrastructure.nats.sender import NatsSender
from spectral.core.events.infrastructure.nats.shape import Limits

__all__ = ["Limits", "NatsReceiver", "NatsSender"]
