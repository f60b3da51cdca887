"""What an event is on the wire: `EventEnvelope`, the patterns of its names, the limits of its payload.

The envelope knows nothing of delivery: no generation, no channel, no status. Those are stamped on the row.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import time
from copy import deepcopy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, cast
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTEXT_PATTERN: Final = r"^[a-z][a-z0-9_]{0,62}$"
"""A context: `platform`, `worlds`, yours."""

EVENT_TYPE_PATTERN: Final = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$"
"""`<context>.<noun>.<verb>`, with `.v2` and so on after a breaking change."""

TRACEPARENT_PATTERN: Final = r"^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
"""The W3C traceparent header."""

MAX_NAME_LENGTH: Final = 200
MAX_IDEMPOTENCY_KEY_LENGTH: Final = 255
MAX_PAYLOAD_BYTES: Final = 256 * 1024
MAX_PAYLOAD_DEPTH: Final = 64

EARLIEST: Final = datetime(1900, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9900, 1, 1, tzinfo=UTC)
"""What every reader can represent, whatever its time zone."""

DEFAULT_CONTEXTS: Final = frozenset({"platform", "worlds", "core"})
"""The contexts a project has until it declares its own."""

_EVENT_TYPE: Final = re.compile(EVENT_TYPE_PATTERN)
_TRACEPARENT: Final = re.compile(TRACEPARENT_PATTERN)
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")

_VERSION_AND_VARIANT: Final = (0x7 << 76) | (0b10 << 62)
_MOST_KNOWN: Final = 1_000


class _Ids:
    """The ids of this process: its clock, and randomness that is fetched for many of them at once."""

    def __init__(self) -> None:
        self._last_stamp = 0
        self.start_anew()

    def start_anew(self) -> None:
        """In the child of a fork: with a lock that nobody holds, and with nothing that the parent draws from too."""
        self._lock = threading.Lock()
        self._random: list[int] = []

    def draw(self) -> int:
        """The next, as a number."""
        try:
            random = self._random.pop()
        except IndexError:
            random = self._fetch()
        # 48 bits of milliseconds, then 12 bits that count the fractions of one: the order within a millisecond.
        stamp = (time.time_ns() << 12) // 1_000_000
        with self._lock:  # nothing is made inside: a finalizer that the garbage collector calls may draw an id too
            if stamp <= self._last_stamp:
                stamp = self._last_stamp + 1
            self._last_stamp = stamp
        return ((stamp >> 12) << 80) | ((stamp & 0xFFF) << 64) | _VERSION_AND_VARIANT | random

    def _fetch(self) -> int:
        """For this id, and for those to come; another thread may be at it too, and nothing is used twice."""
        fetched: list[int] = [each >> 2 for (each,) in struct.iter_unpack("Q", os.urandom(8 * 64))]
        random = fetched.pop()
        self._random = fetched
        return random


_ids: Final = _Ids()
os.register_at_fork(after_in_child=_ids.start_anew)


def new_event_id() -> UUID:
    """A UUIDv7: ids of one process are strictly increasing, so neighbours in time are neighbours in the index."""
    return UUID(int=_ids.draw())


def is_traceparent(text: str) -> bool:
    """Whether this is a W3C traceparent that names a trace and a span."""
    return _TRACEPARENT.fullmatch(text) is not None


def is_storable(text: str) -> bool:
    """Whether Postgres can store this text: it takes neither NUL nor a lone surrogate."""
    return "\x00" not in text if text.isascii() else _UNSTORABLE.search(text) is None


def _canonical(event_id: object) -> str:
    """The id as every reader will see it; what is no id is complained about elsewhere."""
    if type(event_id) is UUID:
        return str(event_id)
    try:
        return str(UUID(str(event_id)))
    except ValueError:
        return "not an id"


_known_names: Final[set[str]] = set()


def _refuse_other_names(text: str) -> str:
    if text in _known_names:  # a program publishes few types, and many events of each
        return text
    if _EVENT_TYPE.fullmatch(text) is None:
        raise ValueError(
            "must be <context>.<noun>.<verb>, lower case, such as orders.order.placed (then .v2, .v3, ...)"
        )
    if len(_known_names) < _MOST_KNOWN:
        _known_names.add(text)
    return text


def _refuse_unstorable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("contains a NUL or a lone surrogate, which Postgres cannot store; remove it")
    return text


# The pattern is in the schema for programs; people get words instead of a regular expression.
EventTypeName = Annotated[
    str,
    Field(max_length=MAX_NAME_LENGTH, json_schema_extra={"pattern": EVENT_TYPE_PATTERN}),
    AfterValidator(_refuse_other_names),
]
ContextName = Annotated[str, Field(pattern=CONTEXT_PATTERN)]


class EventEnvelope(BaseModel):
    """One thing that happened, told by one context to another, or (no target) to all that subscribe."""

    # A message about a wrong envelope must not show the payload.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    event_id: UUID = Field(default_factory=new_event_id)
    event_type: EventTypeName
    event_version: int = Field(default=1, ge=1, le=2**31 - 1)
    occurred_at: Annotated[AwareDatetime, Field(ge=EARLIEST, le=LATEST)] = Field(
        default_factory=lambda: datetime.now(UTC)
    )
    source: ContextName
    target: ContextName | None = None
    workspace_id: UUID | None = None
    payload: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: Annotated[
        str, Field(min_length=1, max_length=MAX_IDEMPOTENCY_KEY_LENGTH), AfterValidator(_refuse_unstorable)
    ] = Field(default_factory=str)  # always given: `_complete` sees to it
    trace_context: str | None = None

    def __hash__(self) -> int:
        return hash(self.event_id)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, checked like a new envelope; a key that was the event's id stays the event's id."""
        given = dict(update or {})
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in given}
        if "event_id" in given and self.idempotency_key == str(self.event_id):
            fields.pop("idempotency_key", None)
        return type(self).model_validate((deepcopy(fields) if deep else fields) | given)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: object) -> object:
        """The key defaults to the id; `domain_id`, an older name of `workspace_id`, is taken but not given out."""
        if not isinstance(given, dict):
            return given
        fields = dict(cast("dict[object, object]", given))
        if "domain_id" in fields:
            if "workspace_id" in fields:
                raise ValueError("workspace_id and domain_id are the same thing; give one of them")
            fields["workspace_id"] = fields.pop("domain_id")
        if "idempotency_key" not in fields:
            if "event_id" not in fields:
                fields["event_id"] = new_event_id()
            fields["idempotency_key"] = _canonical(fields["event_id"])
        return fields

    @field_validator("trace_context", mode="before")
    @classmethod
    def _drop_broken_trace(cls, given: object) -> str | None:
        """A trace context that is none is dropped: a broken trace must not cost an event."""
        return given if isinstance(given, str) and is_traceparent(given) else None
