"""What travels on a broker, and what the flow asks of one.

A broker carries references, never payloads: which row, in which of its lives. The outbox stays the truth, so a message
may be lost, doubled, late or forged without harm: whoever receives it asks the database for exactly that row, and gets
it only if the message still tells the truth. Everything else is void.

Every method of the ports may raise `BrokerLostError`; every wait in them is bounded by the settings' `answer`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast
from uuid import UUID

from spectral.core.events.channels import DEFAULT_CHANNEL, MAX_GENERATION, PROCESSING_CLASS_PATTERN
from spectral.core.events.envelope import CONTEXT_PATTERN, EVENT_TYPE_PATTERN, MAX_NAME_LENGTH, TRACEPARENT_PATTERN
from spectral.core.events.failure import SpectralError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

NO_CLASS: Final = "-"
"""How a lane without a processing class is called on a broker."""

DEFAULT_CLASS: Final = "_default"
"""How the lane of rows without a channel is called; no processing class can have this name."""

_VERSION: Final = 1
_MAX_BYTES: Final = 4096  # the names' limits leave a reference far below
_MAX_COUNT: Final = 2**31 - 1  # a column's
_CONTEXT: Final = re.compile(CONTEXT_PATTERN)
_EVENT_TYPE: Final = re.compile(EVENT_TYPE_PATTERN)
_TRACEPARENT: Final = re.compile(TRACEPARENT_PATTERN)
_CLASS: Final = re.compile(PROCESSING_CLASS_PATTERN)


class BrokerLostError(SpectralError):
    """The broker is gone, refuses, or does not answer; no event is to blame. The message never holds a URL or a secret.

    Whoever gets it may `open` again.
    """


class BrokerLane(NamedTuple):
    """Rows that the same workers take: of one generation, channel and context."""

    generation: int
    channel: str
    context: str

    @property
    def processing_class(self) -> str:
        """The class within the generation, as it is called on a broker; `NO_CLASS` and `DEFAULT_CLASS` are none."""
        if self.channel == DEFAULT_CHANNEL:
            return DEFAULT_CLASS
        return self.channel.removeprefix(f"outbox_gen_{self.generation}").removeprefix("_") or NO_CLASS

    @property
    def is_valid(self) -> bool:
        """Whether a row can have this lane: every name is one, and the channel belongs to the generation."""
        if not 0 <= self.generation <= MAX_GENERATION or _CONTEXT.fullmatch(self.context) is None:
            return False
        plain = f"outbox_gen_{self.generation}"
        return self.channel in {DEFAULT_CHANNEL, plain} or (
            self.channel.startswith(f"{plain}_") and _CLASS.fullmatch(self.channel[len(plain) + 1 :]) is not None
        )


class Reference(NamedTuple):
    """A row in one of its lives: so many times replayed, so many times attempted when it was sent.

    sent: when that was, in microseconds of the database's clock; a row that is sent once more is another message.
    """

    row_id: UUID
    event_id: UUID
    event_type: str
    lane: BrokerLane
    replays: int
    attempts: int
    traceparent: str | None = None
    sent: int = 0

    @property
    def message_id(self) -> str:
        """By which a broker may drop what reaches it twice; not what is sent again because it was lost."""
        return f"{self.row_id}.{self.replays}.{self.attempts}.{self.sent}"

    def encode(self) -> bytes:
        """What travels: compact JSON that names its version."""
        written: dict[str, object] = {
            "v": _VERSION,
            "id": str(self.row_id),
            "event": str(self.event_id),
            "type": self.event_type,
            "generation": self.lane.generation,
            "channel": self.lane.channel,
            "context": self.lane.context,
            "replays": self.replays,
            "attempts": self.attempts,
            "sent": self.sent,
        }
        if self.traceparent is not None:
            written["traceparent"] = self.traceparent
        return json.dumps(written, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, message: bytes) -> Reference | None:
        """What was sent; none if this is not a reference of ours, or of a version that is not known here."""
        if len(message) > _MAX_BYTES:
            return None
        try:
            loaded: object = json.loads(message)
        except (ValueError, RecursionError):
            return None
        if not isinstance(loaded, dict):
            return None
        written = cast("dict[str, object]", loaded)
        if written.get("v") != _VERSION:
            return None
        try:
            return cls._read(written)
        except (KeyError, TypeError, ValueError):
            return None

    @classmethod
    def _read(cls, written: dict[str, object]) -> Reference | None:
        """From its fields; none, or an error, if one of them is not what a row can have."""
        lane = BrokerLane(_count(written["generation"]), _text(written["channel"]), _text(written["context"]))
        traceparent = written.get("traceparent")
        reference = cls(
            row_id=UUID(_text(written["id"])),
            event_id=UUID(_text(written["event"])),
            event_type=_text(written["type"]),
            lane=lane,
            replays=_count(written["replays"]),
            attempts=_count(written["attempts"]),
            # a broken trace must not cost an event
            traceparent=traceparent if isinstance(traceparent, str) and _TRACEPARENT.fullmatch(traceparent) else None,
            sent=_count(written.get("sent", 0)),
        )
        named = len(reference.event_type) <= MAX_NAME_LENGTH and _EVENT_TYPE.fullmatch(reference.event_type) is not None
        counted = reference.replays <= _MAX_COUNT and reference.attempts <= _MAX_COUNT
        return reference if lane.is_valid and named and counted else None


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _count(given: object) -> int:
    if type(given) is not int or given < 0:  # True is an int too
        raise TypeError
    return given


class Received(NamedTuple):
    """A reference, and what its adapter needs to acknowledge it or to give it back."""

    reference: Reference
    receipt: object


class BrokerSender(Protocol):
    """The relay's side of a broker."""

    async def open(self) -> None:
        """Connect.

        Raises:
            BrokerLostError: it cannot be reached, or refuses.
            ConfigurationError: what is there cannot be used; the message says what to change.
        """
        ...

    async def prepare(self, lane: BrokerLane) -> None:
        """See to it that messages of the lane can be kept and received; cheap if that was done before.

        Raises:
            ConfigurationError: something else is in the way; the message says what.
        """
        ...

    async def send(self, references: Sequence[Reference]) -> list[Reference]:
        """Send, of lanes that were prepared; the broker keeps them when this returns.

        Answers those it refused for want of room. If it raises, any number may have been sent.
        """
        ...

    async def waiting(self, lane: BrokerLane) -> int:
        """How many messages are not acknowledged yet, handed out or not."""
        ...

    async def forget(self, generation: int) -> None:
        """Remove what is kept for a generation; nothing if nothing is."""
        ...

    async def check(self) -> None:
        """See whether the broker still answers, for a relay that has nothing to ask."""
        ...

    def advice(self) -> tuple[str, ...]:
        """What the broker's operator should change, once it is open; none of it is a reason not to work."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class BrokerReceiver(Protocol):
    """A worker's side of a broker."""

    async def open(self, lanes: Sequence[BrokerLane]) -> None:
        """Connect, prepare the lanes, and be ready to receive from them.

        Raises:
            BrokerLostError: it cannot be reached, or refuses.
            ConfigurationError: what is there cannot be used; the message says what to change.
        """
        ...

    async def receive(self, limit: int, for_at_most: timedelta) -> list[Received]:
        """Up to `limit`, as soon as there are any; none if there were none in this time.

        What cannot be decoded is acknowledged and left out: see `unreadable`.
        """
        ...

    @property
    def unreadable(self) -> int:
        """How many messages were no references, since this was made."""
        ...

    def advice(self) -> tuple[str, ...]:
        """As that of `BrokerSender`."""
        ...

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """These need not be handed out again; the broker knows when this returns, as far as can be told."""
        ...

    async def give_back(self, received: Sequence[Received]) -> None:
        """Somebody else may have these, after a moment."""
        ...

    async def close(self) -> None:
        """Close the connection. What was not acknowledged is handed out again, to somebody, after a while."""
        ...
