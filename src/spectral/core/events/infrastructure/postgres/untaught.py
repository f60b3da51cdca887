"""The driver's ways with types as it has them by itself, for statements that are our own.

What a project teaches the driver of its own types, such as to write lists as JSON, or a handler its connection, is no
business of theirs. Handlers are used to the project's ways: their connections keep them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import postgres
from psycopg.adapt import AdaptersMap
from psycopg.types import TypesRegistry
from psycopg.types.array import register_all_arrays

if TYPE_CHECKING:
    import psycopg


@dataclass(frozen=True, slots=True)
class Untaught:
    """Implements the driver's `AdaptContext`."""

    adapters: AdaptersMap
    connection: psycopg.AsyncConnection[Any] | None = None

    def on(self, connection: psycopg.AsyncConnection[Any]) -> Untaught:
        """The same for values that are quoted as this server wants it."""
        return Untaught(self.adapters, connection)


def _untaught() -> Untaught:
    """Made anew, as the driver itself makes its map: a copy of that would have what somebody has added."""
    types = TypesRegistry()
    postgres.register_default_types(types)
    made = Untaught(AdaptersMap(types=types))
    postgres.register_default_adapters(made)
    register_all_arrays(made)
    return made


UNTAUGHT: Final = _untaught()
