"""A place in a JSON Schema, with what pydantic may write there made plain: references followed, unions laid open.

Every place becomes a list of branches, each of one kind of value; `Literal` and enums become one branch for each value.
So two schemas that say the same in different words look the same from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Kind(StrEnum):
    """What sort of JSON value. ANY is everything."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Branch:
    """One kind of value that may stand at a place; `values` are the only ones, if it is not None."""

    kind: Kind
    keywords: Mapping[str, Any]
    value: tuple[object] | None = None

    @property
    def label(self) -> str:
        """As a message names it."""
        if self.value is not None:
            return f"the value {self.value[0]!r}"
        form = self.keywords.get("format")
        return f"{self.kind.value} ({form})" if form else self.kind.value


@dataclass(frozen=True, slots=True)
class Place:
    """Where one is in a schema; `definitions` are those of the whole document."""

    schema: Any  # a schema, or the boolean that stands for everything or nothing
    definitions: Mapping[str, Any]

    @classmethod
    def root(cls, schema: Mapping[str, Any]) -> Place:
        """The payload itself."""
        return cls(schema, schema.get("$defs", {}))

    def at(self, schema: object) -> Place:
        """A place further inside."""
        return Place(schema, self.definitions)

    @property
    def identity(self) -> int:
        """The same for all places that refer to one definition."""
        if isinstance(self.schema, bool) or "$ref" not in self.schema:
            return id(self.schema)
        return id(_target(self.schema["$ref"], self.definitions))

    def branches(self) -> tuple[Branch, ...]:
        """What may stand here."""
        return tuple(_split(_resolve(self.schema, self.definitions), self.definitions))

    def keyword(self, name: str) -> object:
        """A keyword of this place, whatever it refers to included."""
        return _resolve(self.schema, self.definitions).get(name)


def kind_of(value: object) -> Kind:
    """The kind of a JSON value."""
    return next((kind for known, kind in _KINDS if isinstance(value, known)), Kind.OBJECT)


def _resolve(schema: object, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with what it refers to; keywords beside a reference (a description, a default) win."""
    if schema is True:
        return {}
    if schema is False:
        return {"enum": []}
    found = dict(cast("Mapping[str, Any]", schema))
    reference = found.pop("$ref", None)
    if reference is not None:
        found = {**_resolve(_target(reference, definitions), definitions), **found}
    for part in found.pop("allOf", ()):
        found = {**_resolve(part, definitions), **found}
    return found


def _target(reference: str, definitions: Mapping[str, Any]) -> object:
    return definitions[reference.removeprefix(_DEFINITIONS)]


def _split(schema: dict[str, Any], definitions: Mapping[str, Any]) -> Iterator[Branch]:
    for union in ("anyOf", "oneOf"):
        if union in schema:
            # What stands beside a union holds for each of its parts; what describes it does not.
            rest = {key: value for key, value in schema.items() if key not in _ASIDE}
            for part in schema[union]:
                yield from _split({**rest, **_resolve(part, definitions)}, definitions)
            return
    if "const" in schema or "enum" in schema:
        for value in [schema["const"]] if "const" in schema else schema["enum"]:
            yield Branch(kind_of(value), {}, (value,))
        return
    kinds: str | list[str] = schema.get("type", Kind.ANY)
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        yield Branch(Kind(kind), schema)


# The first that fits: a bool is an int too.
_KINDS: Final = (
    (type(None), Kind.NULL),
    (bool, Kind.BOOLEAN),
    (int, Kind.INTEGER),
    (float, Kind.NUMBER),
    (str, Kind.STRING),
    (list, Kind.ARRAY),
)
_DEFINITIONS: Final = "#/$defs/"
_ASIDE: Final = frozenset({"anyOf", "oneOf", "discriminator", "title", "description", "default", "examples", "$defs"})
