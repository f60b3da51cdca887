"""What the broker keeps: names, subjects and settings of streams and consumers. Pure values, nothing is sent from here.

    stream    <prefix>_<generation>                                  a work queue in files, refuses what is too much
    subject   <prefix>.<generation>.<context>.<class>.<event type>
    consumer  <context>-<class>                                      durable, pulled, every message acknowledged

A name of a context or class holds no dash, so that no two lanes share a consumer.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.events.broker import BrokerLane, Reference
    from spectral.core.events.broker_settings import BrokerSettings

DUPLICATE_WINDOW: Final = timedelta(minutes=2)
"""Within this time a message that was sent twice is kept once."""

MAX_AGE: Final = timedelta(hours=1)
"""Far beyond the time after which the relay sends again; it clears away what nobody was allowed to receive any more."""

MAX_DELIVER: Final = 20
MAX_UNACKNOWLEDGED: Final = 20_000
MAX_WAITING: Final = 2_048
"""Requests of workers that wait for a message of the same lane."""

_SHORT: Final = 9
_DELIVERIES_AT: Final = 4
_NANOSECONDS_PER_MICROSECOND: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a stream keeps before it refuses more. The server sets the bytes aside when it creates the stream."""

    messages: int = 200_000
    bytes: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How everything of one database is called on the broker, and what it has to be like."""

    prefix: str
    replicas: int
    redeliver_after: timedelta
    limits: Limits

    @classmethod
    def of(cls, settings: BrokerSettings, prefix: str, limits: Limits | None) -> Shape:
        """As the settings ask for."""
        return cls(
            prefix=prefix,
            replicas=settings.replicas,
            redeliver_after=settings.redeliver_after,
            limits=limits or Limits(),
        )

    def stream_name(self, generation: int) -> str:
        """The stream of a generation."""
        return f"{self.prefix}_{generation}"

    def consumer_name(self, lane: BrokerLane) -> str:
        """The consumer of a lane, within the stream of its generation."""
        return f"{lane.context}-{lane.processing_class}"

    def subject(self, reference: Reference) -> str:
        """Where a reference is sent."""
        return f"{self._subjects(reference.lane)}.{reference.event_type}"

    def lane_key(self, lane: BrokerLane) -> str:
        """What tells the lane of a message apart, as `key_of` finds it in the message's subject."""
        return f"{lane.generation}.{lane.context}.{lane.processing_class}"

    def key_of(self, subject: str) -> str:
        """The key of the lane that a subject belongs to."""
        return ".".join(subject.removeprefix(f"{self.prefix}.").split(".", 3)[:3])

    def stream(self, generation: int) -> dict[str, object]:
        """The settings of a generation's stream, as the server writes them."""
        return {
            "name": self.stream_name(generation),
            "subjects": [f"{self.prefix}.{generation}.>"],
            "retention": "workqueue",
            "storage": "file",
            "discard": "new",
            "max_msgs": self.limits.messages,
            "max_bytes": self.limits.bytes,
            "max_age": nanoseconds(MAX_AGE),
            "duplicate_window": nanoseconds(DUPLICATE_WINDOW),
            "num_replicas": self.replicas,
            "max_consumers": -1,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
        }

    def consumer(self, lane: BrokerLane) -> dict[str, object]:
        """The settings of a lane's consumer, as the server writes them."""
        name = self.consumer_name(lane)
        return {
            "name": name,
            "durable_name": name,
            "filter_subject": f"{self._subjects(lane)}.>",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": nanoseconds(self.redeliver_after),
            "max_deliver": MAX_DELIVER,
            "max_ack_pending": MAX_UNACKNOWLEDGED,
            "max_waiting": MAX_WAITING,
        }

    def _subjects(self, lane: BrokerLane) -> str:
        return f"{self.prefix}.{self.lane_key(lane)}"


def differing(existing: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """The names of the settings that are not as they have to be."""
    return [name for name, value in wanted.items() if existing.get(name) != value]


def is_usable(existing: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    """Whether a consumer hands out what it has to, to whoever asks and acknowledges, though it may be set otherwise."""
    needed = ("filter_subject", "ack_policy", "deliver_policy")
    return not existing.get("deliver_subject") and not differing(existing, {name: wanted[name] for name in needed})


def deliveries_of(reply: str) -> int:
    """How often a message was handed out, from where it is to be acknowledged; 1 if that does not tell.

    The subject is $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<sequence>.<time>.<pending>; newer servers put
    the domain and the account behind $JS.ACK, and may put something at the end.
    """
    parts = reply.split(".")
    at = _DELIVERIES_AT if len(parts) == _SHORT else _DELIVERIES_AT + 2
    return int(parts[at]) if len(parts) >= _SHORT and parts[at].isdecimal() else 1


def nanoseconds(time: timedelta) -> int:
    """As the server counts time."""
    return time // timedelta(microseconds=1) * _NANOSECONDS_PER_MICROSECOND
