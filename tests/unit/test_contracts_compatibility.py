"""Two versions of a payload: what is breaking, what is additive, what is only words."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import UUID4, BaseModel, Field, RootModel, create_model

from spectral.core.contracts import (
    Change,
    ChangeKind,
    ContractSnapshot,
    DeprecationSnapshot,
    ReviewedChange,
    compare,
    is_breaking,
    payload_schema,
    review,
    tell_change,
)
from spectral.core.events import Consumer

TYPE = "shop.order.placed"


class Address(BaseModel):
    street: str
    zip: str


class NewAddress(BaseModel):
    street: str
    zip: str
    country: str = "de"


class ShortAddress(BaseModel):
    street: str


class Card(BaseModel):
    kind: Literal["card"]
    number: str


class Cash(BaseModel):
    kind: Literal["cash"]


class Voucher(BaseModel):
    kind: Literal["voucher"]


class MaskedCard(BaseModel):
    kind: Literal["card"]
    number: str | None


class Node(BaseModel):
    name: str
    children: "list[Node]"


class LeafyNode(BaseModel):
    name: str | None
    children: "list[LeafyNode]"


class OtherNode(BaseModel):
    """The same as Node under another name."""

    name: str
    children: "list[OtherNode]"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class MoreColours(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


Paid = Annotated[Card | Cash, Field(discriminator="kind")]
PaidOtherwise = Annotated[Card | Cash | Voucher, Field(discriminator="kind")]
PaidMasked = Annotated[MaskedCard | Cash, Field(discriminator="kind")]


def contract(
    fields: dict[str, Any], *, version: int = 1, deprecation: DeprecationSnapshot | None = None
) -> ContractSnapshot:
    """What a payload with these fields promises; a type, or a type and its default."""
    definitions: Any = {name: each if isinstance(each, tuple) else (each, ...) for name, each in fields.items()}
    model: type[BaseModel] = create_model("Payload", **definitions)
    return {"version": version, "owner": "shop", "deprecation": deprecation, "schema": payload_schema(model)}


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Kind, path and what of every change; the version is bumped, as it must be."""
    found = compare({TYPE: contract(old)}, {TYPE: contract(new, version=2)})
    return [(each.kind.value, each.path, each.what) for each in found]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (int, str, "is string, not integer"),
        (str, str | None, "may be null, not only string"),
        (int, float, "is number, not integer"),
        (int, int | str, "may be string, not only integer"),
        (str, Any, "is any, not string"),
        (Literal["a", "b"], Literal["a", "b", "c"], "may be the value 'c', not only the value 'a', the value 'b'"),
        (Colour, MoreColours, "may be the value 'green', not only the value 'red', the value 'blue'"),
        (Literal["a"], str, "is string, not the value 'a'"),
        (Literal["a"], Literal["b"], "is the value 'b', not the value 'a'"),
        (Literal[1], Literal[True], "is the value True, not the value 1"),
        (Literal[True], bool, "is boolean, not the value True"),
        (datetime, str, "format none, not date-time"),
        (datetime, date, "format date, not date-time"),
        (UUID, str, "format none, not uuid"),
        (UUID4, UUID, "format uuid, not uuid4"),
        (Decimal, float, "is number, not string (decimal)"),
        (Annotated[str, Field(max_length=5)], Annotated[str, Field(max_length=6)], "maxLength 6, not 5"),
        (Annotated[str, Field(min_length=5)], str, "minLength none, not 5"),
        (Annotated[str, Field(pattern="^a$")], Annotated[str, Field(pattern="^b$")], "pattern ^b$, not '^a$'"),
        (Annotated[int, Field(ge=0)], Annotated[int, Field(ge=-1)], "minimum -1, not 0"),
        (Annotated[int, Field(gt=0)], Annotated[int, Field(ge=0)], "minimum 0, not 0 (excluded)"),
        (Annotated[int, Field(lt=9)], Annotated[int, Field(le=9)], "maximum 9, not 9 (excluded)"),
        (Annotated[int, Field(multiple_of=4)], Annotated[int, Field(multiple_of=2)], "multipleOf 2, not 4"),
        (set[int], list[int], "items may repeat"),
        (Annotated[list[int], Field(max_length=1)], list[int], "maxItems none, not 1"),
        (dict[Colour, int], dict[str, int], None),
        (dict[Annotated[str, Field(pattern="^a")], int], dict[str, int], None),
        (Card, dict[str, str], None),
    ],
)
def test_what_widens_a_field_is_breaking(old: Any, new: Any, what: str | None) -> None:  # noqa: ANN401  any type
    found = changes({"field": old}, {"field": new})
    assert found
    assert all(kind == "breaking" for kind, _, _ in found)
    if what is not None:
        assert found == [("breaking", "field", what)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (str | None, str),
        (float, int),
        (int | str, int),
        (Any, str),
        (Literal["a", "b"], Literal["a"]),
        (MoreColours, Colour),
        (str, Literal["a"]),
        (Annotated[str, Field(max_length=1, pattern="^a$")], Literal["a"]),
        (Annotated[int, Field(ge=0, lt=9, multiple_of=2)], Literal[8]),
        (bool, Literal[True]),
        (str, datetime),
        (UUID, UUID4),
        (str, Annotated[str, Field(max_length=6)]),
        (Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]),
        (Annotated[int, Field(multiple_of=2)], Annotated[int, Field(multiple_of=4)]),
        (list[int], set[int]),
        (tuple[int, ...], tuple[int, int]),
        (dict[str, int], dict[Colour, int]),
        (PaidOtherwise, Paid),
    ],
)
def test_what_narrows_a_field_is_breaking_too(old: Any, new: Any) -> None:  # noqa: ANN401  any type
    found = compare({TYPE: contract({"field": old})}, {TYPE: contract({"field": new}, version=2)})
    assert found
    assert all(each.kind is ChangeKind.BREAKING and each.narrows and "narrower" in each.what for each in found)
    assert all("events published before are still replayed" in each.why for each in found)
    assert all(each.remedy.endswith(f"publish {TYPE}.v2") for each in found)


def test_what_was_taken_away_is_named() -> None:
    assert changes({"field": Literal["a", "b"]}, {"field": Literal["a"]}) == [
        ("breaking", "field", "is narrower (before: may be the value 'b', not only the value 'a')")
    ]
    assert changes({"field": str | None}, {"field": str}) == [
        ("breaking", "field", "is narrower (before: may be null, not only string)")
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Node, OtherNode),
        (Colour, Literal["blue", "red"]),
        (bool, Literal[True, False]),
        (Paid, Annotated[Cash | Card, Field(discriminator="kind")]),
        (Paid, Card | Cash),
        (Annotated[str, Field(description="one")], Annotated[str, Field(description="another", title="T")]),
    ],
)
def test_other_words_for_the_same_payloads_are_cosmetic(old: Any, new: Any) -> None:  # noqa: ANN401  any type
    found = compare({TYPE: contract({"field": old})}, {TYPE: contract({"field": new})})
    assert [(each.kind, each.what) for each in found] == [(ChangeKind.COSMETIC, "is described in other words")]


def test_a_new_field_is_additive_wherever_it_is() -> None:
    old = {"number": int, "to": Address, "others": list[Address], "by_name": dict[str, Address]}
    new = {"number": int, "to": NewAddress, "others": list[NewAddress], "by_name": dict[str, NewAddress]}
    assert changes(old, {**new, "note": (str | None, None), "sum": int}) == [
        ("additive", "by_name.*.country", "is new"),
        ("additive", "note", "is new"),
        ("additive", "others[].country", "is new"),
        ("additive", "sum", "is new"),
        ("additive", "to.country", "is new"),
    ]


def test_a_field_that_is_gone_is_breaking_wherever_it_is() -> None:
    old = {"sum": int, "to": Address, "others": list[Address], "pair": tuple[int, Address], "some": Address | None}
    new = {"to": ShortAddress, "others": list[ShortAddress], "pair": tuple[int, ShortAddress]}
    assert changes(old, {**new, "some": ShortAddress | None}) == [
        ("breaking", "others[].zip", "is gone"),
        ("breaking", "pair[1].zip", "is gone"),
        ("breaking", "some.zip", "is gone"),
        ("breaking", "sum", "is gone"),
        ("breaking", "to.zip", "is gone"),
    ]


def test_a_field_with_a_default_that_is_gone_is_breaking_too() -> None:
    assert changes({"note": (str, ""), "a": int}, {"a": int}) == [("breaking", "note", "is gone")]


def test_a_renamed_field_is_gone_and_the_message_guesses_it() -> None:
    found = changes({"email": str}, {"mail": str})
    assert found == [("breaking", "email", "is gone (renamed to mail?)"), ("additive", "mail", "is new")]


def test_a_field_that_may_be_absent_from_now_on_is_breaking_and_the_reverse_is_additive() -> None:
    assert changes({"a": int}, {"a": (int, 1)}) == [("breaking", "a", "may be absent")]
    assert changes({"a": (int, 1)}, {"a": int}) == [("additive", "a", "is always written now")]


def test_a_mapping_that_becomes_a_model_promises_its_fields_and_takes_away_the_others() -> None:
    found = compare({TYPE: contract({"paid": dict[str, str]})}, {TYPE: contract({"paid": Card}, version=2)})
    assert {(each.path, each.kind.value, each.narrows) for each in found} == {
        ("paid.kind", "breaking", True),
        ("paid.kind", "additive", False),
        ("paid.number", "additive", False),
    }


def test_a_new_variant_of_a_tagged_union_is_breaking_and_is_named() -> None:
    found = changes({"paid": Paid}, {"paid": PaidOtherwise})
    assert found == [("breaking", "paid", "may be another variant (kind 'voucher')")]


def test_a_change_inside_a_variant_is_told_of_that_variant() -> None:
    assert changes({"paid": Paid}, {"paid": PaidMasked}) == [
        ("breaking", "paid.number", "may be null, not only string")
    ]


def test_recursive_models_are_compared_to_the_end() -> None:
    assert changes({"tree": Node}, {"tree": LeafyNode}) == [
        ("breaking", "tree.name", "may be null, not only string"),
    ]
    with_self = payload_schema(Node)
    assert with_self["$ref"] == "#/$defs/Node"  # a payload that contains itself is all reference
    before: ContractSnapshot = {"version": 1, "owner": "shop", "deprecation": None, "schema": with_self}
    after: ContractSnapshot = {**before, "version": 2, "schema": payload_schema(LeafyNode)}
    assert [each.path for each in compare({TYPE: before}, {TYPE: after})] == ["name"]


def test_tuples_are_compared_by_position() -> None:
    assert changes({"pair": tuple[int, str]}, {"pair": tuple[int, int]}) == [
        ("breaking", "pair[1]", "is integer, not string")
    ]
    assert ("breaking", "pair", "maxItems 3, not 2") in changes(
        {"pair": tuple[int, str]}, {"pair": tuple[int, str, int]}
    )


def of_version(before: int, after: int, *, changed: bool) -> list[Change]:
    fields: dict[str, Any] = {"a": int}
    new = {**fields, "b": int} if changed else fields
    return compare({TYPE: contract(fields, version=before)}, {TYPE: contract(new, version=after)})


def test_another_shape_needs_another_version() -> None:
    breaking, _ = of_version(3, 3, changed=True)
    assert (breaking.kind, breaking.path) == (ChangeKind.BREAKING, "")
    assert breaking.what == "has another shape and is still version 3"
    assert breaking.remedy == "set its version to 4"
    assert [each.kind for each in of_version(3, 4, changed=True)] == [ChangeKind.ADDITIVE]


def test_a_version_never_goes_back() -> None:
    (change,) = of_version(3, 2, changed=False)
    assert change.kind is ChangeKind.BREAKING
    assert not is_breaking(of_version(3, 4, changed=False))


GOING: DeprecationSnapshot = {"deadline": "2027-01-31", "replaced_by": f"{TYPE}.v2", "reason": "it was wrong"}


def fields_of(deprecation: DeprecationSnapshot | None = None) -> ContractSnapshot:
    return contract({"a": int}, deprecation=deprecation)


@pytest.mark.parametrize("today", [None, date(2026, 11, 15), date(2027, 1, 31)])
def test_a_type_that_is_gone_before_its_deadline_is_breaking(today: date | None) -> None:
    (change,) = compare({TYPE: fields_of(GOING)}, {}, today=today)
    assert change.kind is ChangeKind.BREAKING
    assert "it was promised until 2027-01-31" in change.why


def test_a_type_that_is_gone_after_its_deadline_is_not() -> None:
    assert not is_breaking(compare({TYPE: fields_of(GOING)}, {}, today=date(2027, 2, 1)))


def test_a_type_that_was_never_deprecated_is_never_gone() -> None:
    (change,) = compare({TYPE: fields_of()}, {}, today=date(2099, 1, 1))
    assert change.kind is ChangeKind.BREAKING
    assert f"publish {TYPE}.v2 beside it" in change.remedy


def test_a_renamed_type_is_gone_and_the_message_guesses_it() -> None:
    gone, new = compare({TYPE: fields_of()}, {"shop.order.sent": fields_of()})
    assert gone.what == "is gone; shop.order.sent has the same fields: was it renamed?"
    assert (new.kind, new.event_type) == (ChangeKind.ADDITIVE, "shop.order.sent")


def test_a_successor_needs_a_deadline_on_its_predecessor() -> None:
    after = {TYPE: fields_of(), f"{TYPE}.v2": contract({"b": str})}
    missing, _ = compare({TYPE: fields_of()}, after)
    assert (missing.kind, missing.event_type) == (ChangeKind.BREAKING, TYPE)
    assert not is_breaking(compare({TYPE: fields_of()}, {**after, TYPE: fields_of(GOING)}))


@pytest.mark.parametrize("day", ["2020-01-01", "2026-11-15"])
def test_a_first_deadline_that_leaves_no_time_is_breaking(day: str) -> None:
    late: DeprecationSnapshot = {**GOING, "deadline": day}
    old, new = {TYPE: fields_of()}, {TYPE: fields_of(late)}
    (change,) = compare(old, new, today=date(2026, 11, 15))
    assert (change.kind, change.remedy) == (ChangeKind.BREAKING, "set a deadline after 2026-11-15")
    assert not is_breaking(compare(old, new, today=date(2019, 1, 1)))
    assert not is_breaking(compare(old, new))


def test_a_deadline_is_never_moved_up() -> None:
    earlier: DeprecationSnapshot = {**GOING, "deadline": "2027-01-30"}
    later: DeprecationSnapshot = {**GOING, "deadline": "2027-02-28"}
    for old, new, breaking in (
        (GOING, earlier, True),
        (GOING, later, False),
        (GOING, None, False),
        (None, GOING, False),
    ):
        found = compare({TYPE: fields_of(old)}, {TYPE: fields_of(new)}, today=date(2026, 11, 15))
        assert len(found) == 1
        assert is_breaking(found) is breaking
    assert not is_breaking(compare({TYPE: fields_of(GOING)}, {TYPE: fields_of(earlier)}, today=date(2028, 1, 1)))


def test_another_owner_is_told() -> None:
    other: ContractSnapshot = {**fields_of(), "owner": "billing"}
    (change,) = compare({TYPE: fields_of()}, {TYPE: other})
    assert (change.kind, change.what) == (ChangeKind.COSMETIC, "belongs to billing now")


def test_breaking_changes_come_first_and_say_what_to_do_instead() -> None:
    found = compare(
        {"a.b.c": contract({"x": int}), "z.b.c": contract({"x": int})},
        {"a.b.c": contract({"x": int, "y": int}, version=2), "z.b.c": contract({"y": int}, version=2)},
    )
    assert [(each.kind.value, each.event_type) for each in found] == [
        ("breaking", "z.b.c"),
        ("additive", "a.b.c"),
        ("additive", "z.b.c"),
    ]
    assert found[0].remedy == "keep writing it, under its old name too; or publish z.b.c.v2"


class Depth(RootModel["int | list[Depth]"]):
    """A number, or lists of lists of it: it refers to itself without a name between."""


class StreetRead(BaseModel):
    to: ShortAddress
    others: list[ShortAddress] = []
    by_name: dict[str, ShortAddress] = {}


def reviewed(model: type[BaseModel], old: dict[str, Any], new: dict[str, Any]) -> tuple[ReviewedChange, ...]:
    """The changes, where billing.invoice reads the events with this model."""
    billing = Consumer("billing")

    async def invoice(event: BaseModel) -> None: ...

    invoice.__annotations__["event"] = model
    billing.on(TYPE)(invoice)
    return review({TYPE: contract(old)}, {TYPE: contract(new, version=2)}, consumers=[billing]).changes


def read_by(model: type[BaseModel], old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Whom each change breaks, by the field's path."""
    return {each.change.path: each.breaks for each in reviewed(model, old, new)}


class WholeAddress(BaseModel):
    street: Literal["Main Street"]
    zip: Annotated[str, Field(max_length=5)]


def test_a_narrower_field_is_told_with_the_handlers_that_have_it_in_their_model() -> None:
    old = {"to": Address, "others": list[Address], "by_name": dict[str, Address | None], "sum": int}
    new = {
        "to": WholeAddress,
        "others": list[WholeAddress],
        "by_name": dict[str, WholeAddress | None],
        "sum": Literal[1],
    }
    assert read_by(StreetRead, old, new) == {
        "to.street": ("billing.invoice",),
        "to.zip": (),
        "others[].street": ("billing.invoice",),
        "others[].zip": (),
        "by_name.*.street": ("billing.invoice",),
        "by_name.*.zip": (),
        "sum": (),
    }


def test_who_reads_is_found_in_payloads_that_contain_themselves() -> None:
    class NameRead(BaseModel):
        tree: Node
        depth: Depth

    old = {"tree": Node, "depth": Depth, "sum": int}
    assert read_by(NameRead, old, {**old, "sum": Literal[1]}) == {"sum": ()}
    assert read_by(NameRead, {"tree": LeafyNode, "depth": Depth}, {"tree": Node, "depth": Depth}) == {
        "tree.name": ("billing.invoice",)
    }
    # On the way to a field below `depth` the lists of lists have to come to an end.
    deep: Any = list[Depth] | Address
    assert read_by(NameRead, {**old, "a": deep}, {**old, "a": list[Depth] | WholeAddress}) == {
        "a.street": (),
        "a.zip": (),
    }


def test_entries_of_a_payload_that_is_a_mapping_are_read_by_every_model() -> None:
    class Prices(RootModel[dict[str, int]]):
        """By article."""

    class FewPrices(RootModel[dict[str, Literal[1]]]):
        """By article."""

    billing = Consumer("billing")

    async def invoice(event: BaseModel) -> None: ...

    invoice.__annotations__["event"] = StreetRead
    billing.on(TYPE)(invoice)
    before: ContractSnapshot = {**contract({}), "schema": payload_schema(Prices)}
    after: ContractSnapshot = {**contract({}, version=2), "schema": payload_schema(FewPrices)}
    (change,) = review({TYPE: before}, {TYPE: after}, consumers=[billing]).changes
    assert (change.change.path, change.breaks) == ("*", ("billing.invoice",))


def test_a_handler_that_can_read_the_new_values_is_named_and_does_not_break() -> None:
    class NoteRead(BaseModel):
        note: str | None

    (wider,) = reviewed(NoteRead, {"note": str}, {"note": str | None})
    assert (wider.breaks, wider.readers) == ((), ("billing.invoice",))
    assert "  breaks no known handler; billing.invoice can read it all the same\n" in tell_change(wider)
