"""The ledger of publishers: what each of them tried to publish, and how that ended as far as it knows.

An attempt is written down before the event is, its end after the commit answered. Whoever is killed in between has left
an attempt without an end, and that is what it counts as: unknown. The file is lines of JSON, each appended in one
write, so that any number of processes may share one, or keep their own to be merged.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from spectral.core.events.envelope import EventEnvelope


class Publish(StrEnum):
    """How an attempt to publish ended."""

    OK = "ok"  # the commit was confirmed: it must be delivered
    FAILED = "failed"  # certainly rolled back: it must never be delivered
    UNKNOWN = "unknown"  # nobody can say: both are right


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the ledger says of one event; without an event type, only its id and key are known."""

    event_id: UUID
    key: str
    state: Publish
    event_type: str | None = None
    target: str | None = None
    generation: int | None = None


class Attempt:
    """One attempt to publish one event.

    Say how it ended, or leave that to a `with` block around the whole transaction: if that ends well it is ok, if an
    error comes out of it, unknown.
    """

    def __init__(self, ledger: Ledger, attempt_id: str) -> None:
        self._ledger = ledger
        self._id = attempt_id
        self._ended = False

    def ok(self) -> None:
        """The commit was confirmed."""
        self._end(Publish.OK)

    def failed(self) -> None:
        """The transaction was certainly rolled back."""
        self._end(Publish.FAILED)

    def unknown(self) -> None:
        """Whether it was committed cannot be said, as when the connection was lost at the commit."""
        self._end(Publish.UNKNOWN)

    def _end(self, state: Publish) -> None:
        self._ended = True
        self._ledger.write({"attempt": self._id, "state": state})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self._end(Publish.OK if kind is None else Publish.UNKNOWN)


class Ledger:
    """What was attempted. With a path, every line is in that file before the call returns.

    May be used from several threads; several processes each open their own on the same path, or on their own and `load`
    them all afterwards.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._lines: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    @classmethod
    def load(cls, *paths: Path | str) -> Ledger:
        """What is written in these files, merged, in memory.

        Raises:
            ValueError: a line is not of a ledger. A last line that is cut off, as by a kill, is passed over.
        """
        ledger = cls()
        for path in paths:
            ledger._lines += _read(Path(path))
        return ledger

    def attempt(
        self,
        event_id: UUID,
        key: str | None = None,
        *,
        event_type: str | None = None,
        target: str | None = None,
        generation: int | None = None,
    ) -> Attempt:
        """Note that this event is about to be published; the key is its id unless told.

        What else is given is needed only for events whose rows may be gone when the verdict is reached.
        """
        attempt_id = secrets.token_hex(8)
        self.write(
            {
                "attempt": attempt_id,
                "event_id": str(event_id),
                "key": str(event_id) if key is None else key,
                "event_type": event_type,
                "target": target,
                "generation": generation,
            }
        )
        return Attempt(self, attempt_id)

    def attempt_of(self, envelope: EventEnvelope, *, generation: int | None = None) -> Attempt:
        """`attempt`, of an envelope."""
        return self.attempt(
            envelope.event_id,
            envelope.idempotency_key,
            event_type=envelope.event_type,
            target=envelope.target,
            generation=generation,
        )

    def entries(self) -> dict[UUID, Entry]:
        """Every event that was attempted. Of several attempts, one that was ok decides; else one that may have been."""
        if self._path is None:
            with self._lock:
                lines = list(self._lines)
        else:
            lines = _read(self._path) if self._path.exists() else []
        begun = {line["attempt"]: line for line in lines if "event_id" in line}
        ended = {line["attempt"]: Publish(line["state"]) for line in lines if "state" in line}
        states: dict[str, list[Publish]] = {}
        for attempt_id, line in begun.items():
            states.setdefault(line["event_id"], []).append(ended.get(attempt_id, Publish.UNKNOWN))
        return {UUID(line["event_id"]): _entry(line, states[line["event_id"]]) for line in begun.values()}

    def write(self, line: dict[str, Any]) -> None:
        """Append a line, whole or not at all."""
        if self._path is None:
            with self._lock:
                self._lines.append(line)
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


def _read(path: Path) -> list[dict[str, Any]]:
    whole, _, _cut_off = path.read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def _entry(line: dict[str, Any], states: Iterable[Publish]) -> Entry:
    reached = set(states)
    return Entry(
        event_id=UUID(line["event_id"]),
        key=line["key"],
        state=next(state for state in (Publish.OK, Publish.UNKNOWN, Publish.FAILED) if state in reached),
        event_type=line["event_type"],
        target=line["target"],
        generation=line["generation"],
    )
