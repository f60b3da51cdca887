"""The relay on Redis Streams: one stream for each lane, one consumer group, references only."""

from spectral.core.events.infrastructure.redis.receiver import RedisReceiver
from spectral.core.events.infrastructure.redis.sender import RedisSender

__all__ = ["RedisReceiver", "RedisSender"]
