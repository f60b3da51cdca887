"""The substrate on psycopg's async connections."""

from spectral.core.events.infrastructure.postgres.outbox import OutboxPublisher

__all__ = ["OutboxPublisher"]
