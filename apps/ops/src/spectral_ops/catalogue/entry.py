"""What the catalogue knows: the values that pages and exports are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from spectral.core.contracts.contract import EventContract


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A piece of code: its dotted name, and the file it stands in."""

    name: str
    file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A handler of an event; `model` is its view of the payload, `reads` that model's fields."""

    handler: str
    context: str
    place: Place
    model: str | None
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventEntry:
    """One event: its contract, what its author says beyond the summary, where it stands, who is at either end."""

    contract: EventContract
    text: str
    place: Place
    producers: tuple[Place, ...]
    readers: tuple[Reader, ...]

    @property
    def event_type(self) -> str:
        """Its name on the wire."""
        return self.contract.event_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One thing that a protocol can be asked for."""

    name: str
    signature: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEntry:
    """A protocol owned by the context that answers it."""

    name: str
    owner: str
    text: str
    place: Place
    methods: tuple[Method, ...]
    implementers: tuple[Place, ...]
    composers: tuple[Place, ...]

    @property
    def title(self) -> str:
        """Its name, qualified by its owner."""
        return f"{self.owner}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All events and protocols, in the order of their names."""

    events: tuple[EventEntry, ...]
    protocols: tuple[ProtocolEntry, ...]

    @property
    def contexts(self) -> tuple[str, ...]:
        """Every context that owns or handles something."""
        owners = {entry.contract.owner for entry in self.events} | {each.owner for each in self.protocols}
        return tuple(sorted(owners | {reader.context for entry in self.events for reader in entry.readers}))
