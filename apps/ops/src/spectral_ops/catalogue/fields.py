"""A JSON Schema as lines of a table: the path of each field, its type in words, whether it is always there."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Schema = dict[str, Any]

_BOUNDS: Final = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("multipleOf", "a multiple of {}"),
    ("pattern", "like {}"),
)
_LENGTHS: Final = (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "items"))


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a payload; `path` leads to it, through lists by `[]` and through maps by `{}`."""

    path: str
    type: str
    required: bool
    text: str


def fields_of(schema: Mapping[str, Any]) -> tuple[Field, ...]:
    """Every field, outer ones before what they hold."""
    return tuple(_fields(dict(schema), dict(schema.get("$defs", {})), "", ()))


def _fields(schema: Schema, definitions: Schema, prefix: str, above: tuple[str, ...]) -> Iterator[Field]:
    required = frozenset(schema.get("required", ()))
    for name, given in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        text = given.get("description") or _resolve(given, definitions).get("description", "")
        yield Field(path, _type(given, definitions), name in required, " ".join(text.split()))
        yield from _inside(given, definitions, path, above)


def _inside(schema: Schema, definitions: Schema, path: str, above: tuple[str, ...]) -> Iterator[Field]:
    """The fields of what stands at this path: an object, the items of a list, the values of a map, each alternative."""
    reference = schema.get("$ref")
    if reference is not None:
        if reference in above:
            return  # it holds itself; the reader has seen it
        above = (*above, reference)
        schema = _resolve(schema, definitions)
    if "properties" in schema:
        yield from _fields(schema, definitions, f"{path}.", above)
    for step, key in (("[]", "items"), ("{}", "additionalProperties")):
        inner = schema.get(key)
        if isinstance(inner, dict):
            yield from _inside(inner, definitions, f"{path}{step}", above)
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for each in schema.get(key, ()):
            yield from _inside(each, definitions, f"{path}[]" if key == "prefixItems" else path, above)


def _resolve(schema: Schema, definitions: Schema) -> Schema:
    """What a reference stands for; its neighbours go first."""
    reference = schema.get("$ref")
    if reference is None:
        return schema
    target: Schema = definitions[reference.rpartition("/")[2]]
    return {**target, **{key: value for key, value in schema.items() if key != "$ref"}}


def _type(schema: Schema, definitions: Schema) -> str:
    schema = _resolve(schema, definitions)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each, definitions) for each in schema[key]))
    if "allOf" in schema:
        return " and ".join(dict.fromkeys(_type(each, definitions) for each in schema["allOf"]))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return " or ".join(json.dumps(each, ensure_ascii=False) for each in schema["enum"])
    bounds = [words.format(schema[key]) for key, words in _BOUNDS if key in schema]
    return ", ".join([_kind(schema, definitions), *_lengths(schema), *bounds])


def _lengths(schema: Schema) -> Iterator[str]:
    for least, most, what in _LENGTHS:
        match schema.get(least, 0), schema.get(most):
            case 0, None:
                pass
            case 1, None:
                yield "not empty"
            case low, None:
                yield f"at least {low} {what}"
            case 0, high:
                yield f"at most {high} {what}"
            case low, high:
                yield f"{low} to {high} {what}" if low != high else f"{low} {what}"


def _kind(schema: Schema, definitions: Schema) -> str:
    match schema.get("type"), schema.get("additionalProperties"):
        case "array", _:
            return _list(schema, definitions)
        case "object", dict() as values:
            return f"map of {_type(values, definitions)}"
        case "object", True:
            return "map of anything"
        case None, _:
            return "anything"
        case given, _:
            return str(schema.get("format", given))


def _list(schema: Schema, definitions: Schema) -> str:
    if "prefixItems" in schema:
        return f"list of ({', '.join(_type(each, definitions) for each in schema['prefixItems'])})"
    what = "set of" if schema.get("uniqueItems") else "list of"
    return f"{what} {_type(schema.get('items', {}), definitions)}"
