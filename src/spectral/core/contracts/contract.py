"""A contract: what an event type promises, as its producer states it in one module of its own.

The module `<package>.contracts.events.<noun>_<verb>` holds the whole promise:

    ORDER_PLACED_TYPE: Final = "shop.order.placed"
    ORDER_PLACED_VERSION: Final = 1
    class OrderPlaced(BaseModel)              frozen, extra="forbid", every field described
    EXAMPLES: Final = (OrderPlaced(...),)     real payloads; consumers are tried on them
    DEPRECATION: Final = Deprecation(...)     only where the type is to go

The first line of its docstring says what has happened when this event is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from spectral.core.events.failure import SpectralError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from pydantic import BaseModel

FOREIGN_OWNERS: Final[Mapping[str, str]] = {"agent.task.dispatched": "platform"}
"""Types whose first part is not the context that owns them."""


class ContractError(SpectralError):
    """Contracts that cannot be worked with; `findings` holds one line for each thing to correct."""

    def __init__(self, *findings: str) -> None:
        super().__init__("\n  ".join(findings))
        self.findings = findings


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A type that is to go: until when it is published, what to consume instead, and why."""

    deadline: date
    replaced_by: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class EventContract:
    """One event type and what its payload looks like. The examples are as they travel: JSON."""

    event_type: str
    version: int
    payload: type[BaseModel]
    examples: tuple[Mapping[str, Any], ...]
    owner: str
    summary: str
    module: str
    deprecation: Deprecation | None


class Contracts(Mapping[str, EventContract]):
    """All contracts that were found, by event type, in the order of their types."""

    def __init__(self, contracts: Sequence[EventContract]) -> None:
        self._by_type = {each.event_type: each for each in sorted(contracts, key=lambda each: each.event_type)}

    def __getitem__(self, event_type: str) -> EventContract:
        return self._by_type[event_type]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_type)

    def __len__(self) -> int:
        return len(self._by_type)

    def __repr__(self) -> str:
        return f"Contracts({list(self._by_type)})"

    @property
    def owners(self) -> frozenset[str]:
        """The contexts that publish these types."""
        return frozenset(each.owner for each in self._by_type.values())


def owner_of(event_type: str) -> str:
    """The context that owns the type: its first part, but for the exceptions."""
    return FOREIGN_OWNERS.get(event_type, event_type.partition(".")[0])


def family_of(event_type: str) -> tuple[str, int]:
    """The type without its suffix, and the number of the suffix; one without has the number 1."""
    parts = event_type.split(".")
    last = parts[-1]
    if len(parts) > _PARTS and last.startswith("v") and last[1:].isdigit():
        return ".".join(parts[:-1]), int(last[1:])
    return event_type, 1


def successor_of(event_type: str) -> str:
    """The name of the type that a breaking change of this one needs."""
    family, number = family_of(event_type)
    return f"{family}.v{number + 1}"


_PARTS: Final = 3  # context, noun, verb
