"""A handler's parameters are filled by annotation; one that nothing can be given to is refused at once."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict

from spectral.core.events import ConfigurationError, DeliveryContext, EventEnvelope, Transaction
from spectral.core.events.signature import Source, read_signature

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


class Scan(BaseModel):
    """A view of a payload."""


class Strict(BaseModel):
    """A view that breaks as soon as the producer adds a field."""

    model_config = ConfigDict(extra="forbid")


class Wrapped(BaseModel, Generic[T]):
    """A view of something in something."""

    inner: T


async def everything(scan: Scan, envelope: EventEnvelope, tx: Transaction, context: DeliveryContext) -> None: ...
async def by_keyword(*, context: DeliveryContext, scan: Scan) -> None: ...
async def nothing() -> None: ...
async def annotated(scan: Annotated[Scan, "mine"]) -> None: ...
async def generic(scan: Wrapped[int]) -> None: ...
async def with_a_default(scan: Scan, retries: int = 3, note: str | None = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "arguments", "model"),
    [
        (
            everything,
            (
                ("scan", Source.PAYLOAD),
                ("envelope", Source.ENVELOPE),
                ("tx", Source.TRANSACTION),
                ("context", Source.CONTEXT),
            ),
            Scan,
        ),
        (by_keyword, (("context", Source.CONTEXT), ("scan", Source.PAYLOAD)), Scan),
        (nothing, (), None),
        (annotated, (("scan", Source.PAYLOAD),), Scan),
        (generic, (("scan", Source.PAYLOAD),), Wrapped[int]),
        (with_a_default, (("scan", Source.PAYLOAD),), Scan),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_parameters_are_filled_by_what_they_are_annotated_with(
    function: Any,  # noqa: ANN401  a function
    arguments: tuple[tuple[str, Source], ...],
    model: type[BaseModel] | None,
) -> None:
    signature = read_signature(function)
    assert (signature.arguments, signature.model) == (arguments, model)


def test_who_asks_for_the_transaction_is_transactional() -> None:
    assert read_signature(everything).transactional
    assert not read_signature(by_keyword).transactional


def test_a_function_with_arguments_bound_beforehand_is_a_handler() -> None:
    async def project(prefix: str, scan: Scan) -> None:
        raise AssertionError(prefix, scan)

    bound = functools.partial(project, "card")
    assert read_signature(bound).arguments == (("scan", Source.PAYLOAD),)


def test_a_method_is_a_handler() -> None:
    class Projector:
        async def project(self, scan: Scan) -> None: ...

    assert read_signature(Projector().project).arguments == (("scan", Source.PAYLOAD),)


def blocking(scan: Scan) -> None: ...
async def generating(scan: Scan) -> AsyncIterator[Scan]:
    yield scan


async def not_annotated(scan) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
async def a_dictionary(payload: dict[str, Any]) -> None: ...
async def a_number(number: int) -> None: ...
async def a_choice(scan: Scan | None) -> None: ...
async def anything(scan: Any) -> None: ...  # noqa: ANN401  that is the fault
async def many(*scans: Scan) -> None: ...
async def named(**scans: Scan) -> None: ...
async def by_position(scan: Scan, /) -> None: ...
async def strict(scan: Strict) -> None: ...
async def two_views(scan: Scan, again: Wrapped[int]) -> None: ...
async def two_transactions(tx: Transaction, again: Transaction) -> None: ...
async def only_for_the_type_checker(amount: Decimal) -> None: ...
async def misspelt(scan: Skan) -> None: ...  # type: ignore[name-defined]  # noqa: F821
async def broken(scan: "1 +") -> None: ...  # type: ignore[valid-type]  # noqa: F722
async def of_a_module(scan: pytest.NoSuchThing) -> None: ...  # type: ignore[name-defined]


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (blocking, "must be an async function.*asyncio.to_thread"),
        (generating, "must be an async function"),
        (not_annotated, "'scan' is annotated with nothing; a handler can ask for"),
        (a_dictionary, "'payload' is annotated with dict"),
        (a_number, "'number' is annotated with int"),
        (a_choice, "'scan' is annotated with "),
        (anything, "'scan' is annotated with "),
        (many, "cannot be filled by name"),
        (named, "cannot be filled by name"),
        (by_position, "cannot be filled by name"),
        (strict, 'Strict forbids unknown fields.*remove extra="forbid"'),
        (two_views, r"asks twice for the same thing \(payload\)"),
        (two_transactions, r"asks twice for the same thing \(transaction\)"),
        (only_for_the_type_checker, "'Decimal' is not known at run time.*TYPE_CHECKING"),
        (misspelt, "'Skan' is not known at run time"),
        (broken, "annotation"),
        (of_a_module, "annotation"),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_what_cannot_be_a_handler_is_refused_by_name(function: Any, complaint: str) -> None:  # noqa: ANN401  a function
    with pytest.raises(
        ConfigurationError, match=rf"handler tests\.unit\.test_signature\.{function.__name__}\b.*{complaint}"
    ):
        read_signature(function)


@pytest.mark.parametrize("thing", [Scan, print])
def test_what_is_no_function_at_all_is_refused(thing: Any) -> None:  # noqa: ANN401  that is the fault
    with pytest.raises(ConfigurationError, match="must be an async function"):
        read_signature(thing)
