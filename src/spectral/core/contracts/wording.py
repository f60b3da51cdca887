"""How pydantic's types are put into JSON Schema here: with what JSON Schema has no words for, in words of our own.

To pydantic a `Decimal` is any string, an aware time is any time, and the keys of a mapping of numbers are any keys. A
reader of those fails all the same, so two schemas could not be compared. The words that are ours begin with `x-`, and
other tools ignore them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import core_schema

ZONE: Final = "x-zone"
"""Of a time: `aware`, `naive`, or `any`. Always written: where it is not, an older release wrote the schema."""

NOW: Final = "x-now"
"""Of a time: it is `past` or `future`."""

TIME_LIMITS: Final = ("x-ge", "x-gt", "x-le", "x-lt")
"""Of a time: the first or last that is allowed, in ISO 8601."""

DIGITS: Final = "x-max-digits"
PLACES: Final = "x-decimal-places"


class Wording(GenerateJsonSchema):
    """Without the titles that are made up from the names of fields: they say nothing that the name does not."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002  the signature is pydantic's
        """Never."""
        return False

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """A string that is a number, within the limits of the number."""
        found = super().decimal_schema(schema)
        known = cast("Mapping[str, Any]", schema)
        limits = {word: float(known[name]) for name, word in _BOUNDS if known.get(name) is not None}
        limits |= {word: known[name] for name, word in _COUNTS if known.get(name) is not None}
        for part in found.get("anyOf", [found]):
            if part.get("type") == "string":
                part.update({"format": "decimal", **limits})
            else:
                part.update({word: limits[word] for _, word in _COUNTS if word in limits})
        return found

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        """A time, with or without a zone."""
        return {**super().datetime_schema(schema), ZONE: _zone(schema), **_time_limits(schema)}

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        """A time of day, with or without a zone."""
        return {**super().time_schema(schema), ZONE: _zone(schema), **_time_limits(schema)}

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        """A day."""
        return {**super().date_schema(schema), **_time_limits(schema)}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """A mapping; its keys are strings, whatever they stand for."""
        found = super().dict_schema(schema)
        keys = schema.get("keys_schema")
        if keys is None or "patternProperties" in found:
            return found
        names = _as_key(self.generate_inner(keys))
        # What a reference leads to is not known yet; pydantic's own words have to do.
        if "$ref" not in names and names not in ({}, {"type": "string"}):
            found["propertyNames"] = names
        return found


def _zone(schema: core_schema.DatetimeSchema | core_schema.TimeSchema) -> str:
    wanted = schema.get("tz_constraint")
    # An offset in seconds is a zone too.
    return "any" if wanted is None else wanted if isinstance(wanted, str) else "aware"


def _time_limits(
    schema: core_schema.DatetimeSchema | core_schema.TimeSchema | core_schema.DateSchema,
) -> dict[str, str]:
    known = cast("Mapping[str, Any]", schema)
    found = {word: known[word[2:]].isoformat() for word in TIME_LIMITS if known.get(word[2:]) is not None}
    return {**found, NOW: known["now_op"]} if known.get("now_op") else found


def _as_key(schema: JsonSchemaValue) -> JsonSchemaValue:
    """The schema of a value as that of a key: numbers and truths are written as strings."""
    found = {key: value for key, value in schema.items() if key not in {"title", "description"}}
    for union in ("anyOf", "oneOf"):
        if union in found:
            return {**found, union: [_as_key(each) for each in found[union]]}
    single = [found["const"]] if "const" in found else found.get("enum")
    if single is not None:
        return {"type": "string", "enum": [_key(each) for each in single]}
    match found.get("type"):
        case "integer" | "number" as kind:
            return {**found, "type": "string", "format": kind}
        case "boolean":
            return {"type": "string", "enum": ["true", "false"]}
        case _:
            return found


def _key(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_BOUNDS: Final = (
    ("ge", "minimum"),
    ("gt", "exclusiveMinimum"),
    ("le", "maximum"),
    ("lt", "exclusiveMaximum"),
    ("multiple_of", "multipleOf"),
)
_COUNTS: Final = (("max_digits", DIGITS), ("decimal_places", PLACES))
