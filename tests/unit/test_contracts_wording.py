"""Types that pydantic has no words for in JSON Schema: numbers as text, times with a zone, keys of mappings."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from enum import IntEnum
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import pytest
from pydantic import (
    UUID4,
    AwareDatetime,
    BaseModel,
    Field,
    FutureDate,
    NaiveDatetime,
    PastDate,
    PastDatetime,
    create_model,
)

from spectral.core.contracts import ChangeKind, ContractSnapshot, compare, consumer_schema, payload_schema
from spectral.core.contracts.fitting import CONSUMER, misfits

TYPE: Final = "shop.order.placed"
Money = Annotated[Decimal, Field(ge=0, max_digits=8, decimal_places=2)]
SmallMoney = Annotated[Decimal, Field(gt=0, max_digits=6, decimal_places=2)]
Since2020 = Annotated[datetime, Field(ge=datetime(2020, 1, 1))]  # noqa: DTZ001  it is the limit of a naive one


class Size(IntEnum):
    SMALL = 1


def model_of(kind: Any) -> type[BaseModel]:  # noqa: ANN401  any type
    fields: Any = {"field": (kind, ...)}
    return create_model("OrderPlaced", **fields)


def fits(written: Any, read: Any) -> bool:  # noqa: ANN401  any type
    return not misfits(payload_schema(model_of(written)), consumer_schema(model_of(read)), CONSUMER)


def kinds(before: Any, after: Any) -> set[ChangeKind]:  # noqa: ANN401  any type
    return {each.kind for each in compare({TYPE: promise(before, 1)}, {TYPE: promise(after, 2)}) if each.path}


def promise(kind: Any, version: int) -> ContractSnapshot:  # noqa: ANN401  any type
    return {"version": version, "owner": "shop", "deprecation": None, "schema": payload_schema(model_of(kind))}


WIDER: Final = [
    (dict[str, int], dict[UUID, int]),
    (dict[str, int], dict[int, int]),
    (dict[str, int], dict[float, int]),
    (dict[str, int], dict[bool, int]),
    (dict[str, int], dict[date, int]),
    (dict[str, int], dict[Decimal, int]),
    (dict[str, int], dict[Literal["a", "b"], int]),
    (dict[int | str, int], dict[int, int]),
    (dict[int, int], dict[Annotated[int, Field(ge=0)], int]),
    (dict[UUID, int], dict[UUID4, int]),
    (str, Decimal),
    (Decimal, Money),
    (Money, SmallMoney),
    (datetime, AwareDatetime),
    (datetime, NaiveDatetime),
    (NaiveDatetime, AwareDatetime),
    (AwareDatetime, NaiveDatetime),
    (AwareDatetime, PastDatetime),
    (datetime, Since2020),
    (date, PastDate),
    (PastDate, FutureDate),
]


@pytest.mark.parametrize(("written", "read"), WIDER)
def test_a_reader_of_less_does_not_fit(written: Any, read: Any) -> None:  # noqa: ANN401  any type
    assert not fits(written, read)


@pytest.mark.parametrize(("before", "after"), WIDER)
def test_a_change_to_less_and_back_is_breaking(before: Any, after: Any) -> None:  # noqa: ANN401  any type
    assert kinds(before, after) == kinds(after, before) == {ChangeKind.BREAKING}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((each, each) for each in (Money, AwareDatetime, PastDatetime, Since2020, PastDate, time)),
        *((each, each) for each in (dict[UUID, int], dict[int, int], dict[float, int], dict[bool, int])),
        *((each, each) for each in (dict[date, int], dict[Decimal, int], dict[Size, int], dict[int | str, int])),
        (dict[UUID, int], dict[str, int]),
        (dict[UUID4, int], dict[UUID, int]),
        (dict[int, int], dict[str, int]),
        (dict[int, int], dict[float, int]),
        (dict[int, int], dict[Decimal, int]),
        (dict[Literal["a"], int], dict[Literal["a", "b"], int]),
        (dict[Literal[1], int], dict[Literal[1, 2], int]),
        (Decimal, str),
        (SmallMoney, Money),
        (int, Decimal),
        (AwareDatetime, datetime),
        (PastDatetime, datetime),
        (AwareDatetime, str),
        (PastDate, date),
    ],
)
def test_a_reader_of_as_much_or_more_fits(written: Any, read: Any) -> None:  # noqa: ANN401  any type
    assert fits(written, read)


@pytest.mark.parametrize("kind", [AwareDatetime, NaiveDatetime, PastDatetime, dict[UUID, int]])
def test_a_promise_in_the_words_of_an_older_release_is_the_same_promise(kind: Any) -> None:  # noqa: ANN401  any type
    # What pydantic says by itself is what was kept before.
    own: ContractSnapshot = {
        **promise(kind, 1),
        "schema": model_of(kind).model_json_schema(mode="serialization"),
    }
    (change,) = compare({TYPE: own}, {TYPE: promise(kind, 1)})
    assert change.kind is ChangeKind.COSMETIC
    assert not misfits(own["schema"], consumer_schema(model_of(kind)), CONSUMER)
