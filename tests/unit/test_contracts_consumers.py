"""A consumer's model against what the producer promises, in both directions, and against its examples."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, create_model, field_validator

from spectral.core.contracts import (
    Contracts,
    ContractSnapshot,
    EventContract,
    Problem,
    check_consumer,
    check_consumers,
    contract_snapshot,
    review,
    tell_change,
    tell_problem,
)
from spectral.core.events import Consumer, EventEnvelope

TYPE = "shop.order.placed"


class Line(BaseModel):
    sku: str
    count: int = 1


class OrderPlaced(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    order_id: UUID
    at: datetime
    state: Literal["new", "paid"]
    lines: list[Line]
    total: Decimal
    note: str | None
    coupon: str = ""


EXAMPLE: Mapping[str, Any] = {
    "order_id": "0198c0de-0000-7000-8000-000000000001",
    "at": "2026-11-15T09:00:00Z",
    "state": "new",
    "lines": [{"sku": "a", "count": 1}],
    "total": "9.50",
    "note": None,
    "coupon": "",
}


def contract_of(
    payload: type[BaseModel] = OrderPlaced,
    *,
    event_type: str = TYPE,
    examples: tuple[Mapping[str, Any], ...] = (EXAMPLE,),
) -> EventContract:
    return EventContract(event_type, 1, payload, examples, "shop", "An order.", "shop.contracts.events.x", None)


def check(**fields: Any) -> list[tuple[bool, str, str]]:  # noqa: ANN401  any type
    """A consumer's model with these fields; a type, or a type and its default."""
    definitions: Any = {name: each if isinstance(each, tuple) else (each, ...) for name, each in fields.items()}
    found = check_consumer("billing.invoice", create_model("OrderPlacedEvent", **definitions), contract_of())
    return [(each.breaks, each.path, each.what) for each in found]


class LineRead(BaseModel):
    sku: str


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sku: str
    count: int = 1


class LineCounted(BaseModel):
    sku: str
    count: int


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "order_id": UUID,
            "at": datetime,
            "state": Literal["new", "paid", "sent"],
            "total": Decimal,
            "note": str | None,
        },
        {"order_id": str, "at": str, "state": str, "total": str},
        {"lines": list[LineRead], "coupon": (str, "")},
        {"lines": tuple[LineRead, ...], "note": Any},
        {"lines": list[dict[str, Any]]},
    ],
)
def test_a_model_that_reads_a_part_of_what_is_promised_fits(fields: dict[str, Any]) -> None:
    assert check(**fields) == []


@pytest.mark.parametrize(
    ("fields", "path", "what"),
    [
        ({"email": str}, "email", "is never written, and billing.invoice cannot do without it"),
        ({"coupon": str}, "coupon", "need not be written, and billing.invoice counts on it"),
        ({"note": str}, "note", "may be null, not only string"),
        ({"state": Literal["new"]}, "state", "may be the value 'paid', not only the value 'new'"),
        ({"total": float}, "total", "is string (decimal), not number"),
        ({"order_id": int}, "order_id", "is string (uuid), not integer"),
        ({"at": UUID}, "at", "format date-time, not uuid"),
        ({"order_id": Annotated[str, Field(max_length=10)]}, "order_id", "maxLength none, not 10"),
        ({"lines": list[LineCounted]}, "lines[].count", "need not be written, and billing.invoice counts on it"),
        ({"lines": list[Closed]}, "lines[]", "the model refuses unknown fields, and the producer may add some"),
        ({"lines": dict[str, LineRead]}, "lines", "is array, not object"),
        ({"lines": Annotated[list[LineRead], Field(min_length=1)]}, "lines", "minItems none, not 1"),
    ],
)
def test_what_the_model_cannot_read_or_count_on_breaks_it(fields: dict[str, Any], path: str, what: str) -> None:
    assert check(**fields) == [(True, path, what)]


def test_a_field_that_nobody_writes_is_doubtful_where_it_has_a_default() -> None:
    ((breaks, path, _),) = check(copon=(str, ""))
    assert (breaks, path) == (False, "copon")
    model = create_model("OrderPlacedEvent", copon=(str, ""))
    (problem,) = check_consumer("billing.invoice", model, contract_of())
    assert problem.remedy == "did you mean 'coupon'?"


class Picky(BaseModel):
    state: str

    @field_validator("state")
    @classmethod
    def must_be_paid(cls, value: str) -> str:
        if value != "paid":
            raise ValueError("not paid")
        return value


def test_examples_find_what_a_schema_cannot_say() -> None:
    (problem,) = check_consumer("billing.invoice", Picky, contract_of())
    assert problem.path == "state"
    assert "example 1" in problem.what
    assert "not paid" in problem.what


class Broken(BaseModel):
    state: str

    @field_validator("state")
    @classmethod
    def fails(cls, value: str) -> str:
        raise KeyError(value)


def test_a_validator_that_fails_in_its_own_way_is_a_problem_too() -> None:
    (problem,) = check_consumer("billing.invoice", Broken, contract_of())
    assert "KeyError" in problem.what


class Renamed(BaseModel):
    number: UUID = Field(validation_alias=AliasChoices("order_number", "order_id"))
    total_sum: Decimal = Field(alias="total")


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)
    state: str = Field(alias="status")


class Inside(BaseModel):
    first: str = Field(validation_alias=AliasPath("lines", 0, "sku"))
    either: str = Field(validation_alias=AliasChoices("order_number", AliasPath("lines", 0, "sku")))


class InsideNothing(BaseModel):
    street: str = Field(validation_alias=AliasPath("address", "street"))


def test_a_field_that_is_read_from_the_inside_of_nothing_is_missed() -> None:
    (problem,) = check_consumer("billing.invoice", InsideNothing, contract_of(examples=()))
    assert problem.breaks


@pytest.mark.parametrize("model", [Renamed, ByName, Inside])
def test_a_field_that_goes_by_several_names_is_read_under_the_one_that_is_written(model: type[BaseModel]) -> None:
    assert check_consumer("billing.invoice", model, contract_of()) == []


def test_a_model_that_json_has_no_words_for_is_doubtful() -> None:
    model = create_model("Odd", kind=(type(lambda: None), None), __config__=ConfigDict(arbitrary_types_allowed=True))
    (problem,) = check_consumer("billing.invoice", model, contract_of())
    assert not problem.breaks
    assert "cannot be compared" in problem.what


class OrderPlacedEvent(BaseModel):
    note: str


def consumer_of(*event_types: str) -> Consumer:
    consumer = Consumer("billing")

    @consumer.on(*event_types)
    async def invoice(event: OrderPlacedEvent) -> None: ...

    @consumer.on(*event_types)
    async def count(event: EventEnvelope) -> None: ...

    return consumer


def told(problems: list[Problem]) -> list[str]:
    return [tell_problem(each) for each in problems]


def test_every_handler_with_a_model_is_checked() -> None:
    (problem,) = check_consumers(Contracts([contract_of()]), [consumer_of(TYPE)])
    assert tell_problem(problem) == (
        "breaks billing.invoice: shop.order.placed: note may be null, not only string\n"
        "  try: widen the field's type in the model"
    )


def test_a_type_that_its_owner_does_not_publish_breaks_its_handlers() -> None:
    contracts = Contracts([contract_of(event_type="shop.order.sent")])
    assert told(check_consumers(contracts, [consumer_of(TYPE)]))[0] == (
        "breaks billing.invoice: shop.order.placed is published by nobody\n  try: did you mean shop.order.sent?"
    )
    assert len(check_consumers(contracts, [consumer_of(TYPE)])) == 2


def test_a_type_of_an_owner_that_was_not_looked_at_is_doubtful() -> None:
    contracts = Contracts([contract_of()])
    assert [each.breaks for each in check_consumers(contracts, [consumer_of("stock.item.moved")])] == [False, False]


class OrderPlacedBefore(BaseModel):
    note: str
    sum: int


class OrderPlacedNow(BaseModel):
    note: str | None
    number: int


def test_a_review_names_the_handlers_that_a_change_breaks() -> None:
    before = contract_snapshot(contract_of(OrderPlacedBefore, examples=()))
    after: ContractSnapshot = {**contract_snapshot(contract_of(OrderPlacedNow, examples=())), "version": 2}
    found = review({TYPE: before}, {TYPE: after}, consumers=[consumer_of(TYPE)])
    assert not found.compatible
    assert {each.change.path: each.breaks for each in found.changes} == {
        "note": ("billing.invoice",),
        "sum": (),  # nobody reads it
        "number": (),
    }
    assert tell_change(found.changes[0]) == (
        "breaking: shop.order.placed: note may be null, not only string\n"
        "  consumers cannot read the values that are new\n"
        "  breaks billing.invoice\n"
        "  instead: add a field for the new values and leave this one as it was; or publish shop.order.placed.v2"
    )


def test_a_type_that_is_gone_breaks_all_its_handlers() -> None:
    before = contract_snapshot(contract_of(OrderPlacedBefore, examples=()))
    (change,) = review({TYPE: before}, {}, consumers=[consumer_of(TYPE)]).changes
    assert change.breaks == ("billing.invoice", "billing.count")


class NumberRead(BaseModel):
    number: int


def test_a_handler_that_counts_on_a_field_just_added_is_doubtful_for_events_of_before() -> None:
    consumer = Consumer("billing")

    @consumer.on(TYPE)
    async def invoice(event: NumberRead) -> None: ...

    class Before(BaseModel):
        note: str | None

    before = contract_snapshot(contract_of(Before, examples=()))
    after: ContractSnapshot = {**contract_snapshot(contract_of(OrderPlacedNow, examples=())), "version": 2}
    found = review({TYPE: before}, {TYPE: after}, consumers=[consumer])
    assert found.compatible
    (doubt,) = found.doubts
    assert (doubt.handler, doubt.path, doubt.breaks) == ("billing.invoice", "number", False)
    assert "events published before this change" in doubt.what
