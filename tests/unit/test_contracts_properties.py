"""The comparison against an independent judge: a JSON Schema validator, on payloads made up by hypothesis."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spectral.core.contracts import ChangeKind, ContractSnapshot, compare
from spectral.core.contracts.fitting import CONSUMER, PROMISE, misfits

TYPE: Final = "shop.order.placed"
NAMES: Final = st.sampled_from(["a", "b", "c"])
# Drawn from few values, so that two schemas meet often enough to be worth comparing.
WORDS: Final = st.sampled_from(["", "x", "yy", "zzz"])
NUMBERS: Final = st.integers(-2, 3)

Schema = dict[str, Any]


@st.composite
def texts(draw: st.DrawFn) -> Schema:
    limits = draw(st.fixed_dictionaries({}, optional={"minLength": st.integers(0, 2), "maxLength": st.integers(2, 3)}))
    return {"type": "string", **limits}


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    bounds = {
        "minimum": st.integers(-2, 0),
        "exclusiveMinimum": st.integers(-2, 0),
        "maximum": st.integers(1, 3),
        "exclusiveMaximum": st.integers(1, 3),
    }
    return {"type": draw(st.sampled_from(["integer", "number"])), **draw(st.fixed_dictionaries({}, optional=bounds))}


@st.composite
def objects(draw: st.DrawFn, parts: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(NAMES, parts, max_size=3))
    required = sorted(name for name in properties if draw(st.booleans()))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


PLAIN: Final = st.one_of(
    texts(),
    numbers(),
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {}]),
    st.lists(WORDS, min_size=1, max_size=3, unique=True).map(lambda values: {"enum": values}),
    WORDS.map(lambda value: {"const": value, "type": "string"}),
)
PARTS: Final = st.recursive(
    PLAIN,
    lambda parts: st.one_of(
        st.lists(parts, min_size=2, max_size=3).map(lambda branches: {"anyOf": branches}),
        parts.map(lambda part: {"type": "array", "items": part}),
        parts.map(lambda part: {"type": "object", "additionalProperties": part}),
        objects(parts),
    ),
    max_leaves=5,
)
PAYLOADS: Final = objects(PARTS)
VALUES: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.just(0.5), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=4,
)


def opened(schema: Any) -> Any:  # noqa: ANN401  a schema or a part of one
    """As a consumer reads it: unknown fields are ignored."""
    if isinstance(schema, list):
        return [opened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in {"enum", "const"} else opened(value) for key, value in schema.items()}
    return {**found, "additionalProperties": True} if found.get("additionalProperties") is False else found


SIMPLE: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "string": WORDS,
    "integer": NUMBERS,
    "number": st.one_of(NUMBERS, st.just(0.5)),
    "boolean": st.booleans(),
    "null": st.none(),
    "any": VALUES,
}


@st.composite
def instances(draw: st.DrawFn, schema: Mapping[str, Any]) -> Any:  # noqa: ANN401  JSON
    """A value that this schema allows, or one that it may not allow; the validator tells."""
    kind = schema.get("type", "any")
    if "anyOf" in schema:
        return draw(instances(draw(st.sampled_from(schema["anyOf"]))))
    if "enum" in schema or "const" in schema:
        return draw(st.sampled_from(schema.get("enum") or [schema["const"]]))
    if kind == "array":
        return [draw(instances(schema["items"])) for _ in range(draw(st.integers(0, 2)))]
    if kind == "object":
        parts = schema.get("properties") or dict.fromkeys("ab", schema["additionalProperties"] or {})
        names = [each for each in parts if each in schema.get("required", ()) or draw(st.booleans())]
        return {name: draw(instances(parts[name])) for name in names}
    return draw(SIMPLE[kind])


def allows(schema: Mapping[str, Any], value: object) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def contract(schema: Schema, version: int = 1) -> ContractSnapshot:
    return {"version": version, "owner": "shop", "deprecation": None, "schema": schema}


@given(PAYLOADS)
def test_a_payload_is_compatible_with_itself(schema: Schema) -> None:
    assert compare({TYPE: contract(schema)}, {TYPE: contract(copy.deepcopy(schema))}) == []


LEAVES: Final = st.one_of(PLAIN, st.lists(PLAIN, min_size=2, max_size=2).map(lambda branches: {"anyOf": branches}))
EVERYTHING: Final = (None, True, False, 0.5, *range(-4, 5), "", "x", "yy", "zzz", "xxxx", [], ["x"], {}, {"a": 1})


# Of the same kind often enough: two parts drawn apart hardly ever fit.
PAIRS: Final = st.one_of(
    st.tuples(LEAVES, LEAVES),
    st.tuples(numbers(), numbers()),
    st.tuples(texts(), texts()),
    LEAVES.map(lambda x: (x, x)),
)
AROUND: Final[tuple[Callable[[Schema], Schema], ...]] = (
    lambda part: {"type": "array", "items": part},
    lambda part: {"type": "array", "prefixItems": [part], "maxItems": 1},
    lambda part: {"type": "object", "additionalProperties": part},
    lambda part: {"type": "object", "properties": {"a": part}},
    lambda part: {"$defs": {"Part": part}, "$ref": "#/$defs/Part"},
)


@given(PAIRS)
@settings(max_examples=300)
def test_where_a_plain_field_fits_every_value_that_may_be_written_can_be_read(pair: tuple[Schema, Schema]) -> None:
    written, read = pair
    if not misfits(written, read, PROMISE):
        assert [each for each in EVERYTHING if allows(written, each) and not allows(read, each)] == []


@given(PAIRS)
@settings(max_examples=100)
def test_what_fits_by_itself_fits_inside_everything_and_nothing_else_does(pair: tuple[Schema, Schema]) -> None:
    written, read = pair
    fits = not misfits(written, read, PROMISE)
    assert [not misfits(around(written), around(read), PROMISE) for around in AROUND] == [fits] * len(AROUND)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_where_nothing_breaks_the_old_reader_reads_every_new_payload(data: st.DataObject) -> None:
    old = data.draw(PAYLOADS)
    # Two schemas drawn apart hardly ever fit; so the new one is often the old one with a part replaced.
    new = data.draw(st.one_of(PAYLOADS, evolved(old), evolved(old)))
    if misfits(new, old, PROMISE):
        return
    payload = data.draw(instances(new))
    if allows(new, payload):
        assert allows(opened(old), payload)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_where_a_consumer_fits_it_reads_every_payload(data: st.DataObject) -> None:
    producer = data.draw(PAYLOADS)
    consumer = opened(data.draw(st.one_of(PAYLOADS, evolved(producer))))
    if any(each.needed for each in misfits(producer, consumer, CONSUMER)):
        return
    payload = data.draw(instances(producer))
    if allows(producer, payload):
        assert allows(consumer, payload)


@st.composite
def evolved(draw: st.DrawFn, schema: Schema) -> Schema:
    """The payload with one field replaced, added, dropped, promised or no longer promised."""
    new: Schema = copy.deepcopy(schema)
    name = draw(NAMES)
    match draw(st.sampled_from(["replace", "drop", "promise", "keep"])):
        case "replace":
            new["properties"][name] = draw(st.one_of(PARTS, widened(new["properties"].get(name, {}))))
        case "drop":
            new["properties"].pop(name, None)
            new["required"] = [each for each in new["required"] if each != name]
        case "promise" if name in new["properties"]:
            new["required"] = sorted({*new["required"], name} if draw(st.booleans()) else {*new["required"]} - {name})
        case _:
            pass
    return new


def widened(part: Schema) -> st.SearchStrategy[Schema]:
    return st.sampled_from([{"anyOf": [part, {"type": "null"}]}, {"type": "array", "items": part}, part])


@given(PAYLOADS, PARTS)
def test_a_new_field_is_additive_and_nothing_else(schema: Schema, part: Schema) -> None:
    new = copy.deepcopy(schema)
    new["properties"]["added"] = part
    found = compare({TYPE: contract(schema)}, {TYPE: contract(new, version=2)})
    assert [(each.kind, each.path, each.what) for each in found] == [(ChangeKind.ADDITIVE, "added", "is new")]


@given(PAYLOADS, PARTS)
def test_a_field_that_is_gone_is_always_breaking(schema: Schema, part: Schema) -> None:
    old = copy.deepcopy(schema)
    old["properties"]["dropped"] = part
    found = compare({TYPE: contract(old)}, {TYPE: contract(schema, version=2)})
    assert [(each.kind, each.path) for each in found] == [(ChangeKind.BREAKING, "dropped")]


@given(PAYLOADS, PAYLOADS)
def test_two_payloads_that_differ_are_never_taken_for_the_same(one: Schema, other: Schema) -> None:
    assert bool(compare({TYPE: contract(one)}, {TYPE: contract(other)})) is (one != other)
