"""Contract modules: what is found, what is refused and why, and the snapshot that is kept of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from spectral.core.contracts import (
    ContractError,
    Deprecation,
    check_succession,
    discover,
    family_of,
    parse_snapshot,
    render_snapshot,
    snapshot,
    successor_of,
)

ORDER_PLACED: Final = '''
"""A customer has placed an order."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

ORDER_PLACED_TYPE: Final = "shop.order.placed"
ORDER_PLACED_VERSION: Final = 1


class OrderPlaced(BaseModel):
    """What was ordered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    order_id: int = Field(description="The order.")
    email: str = Field(description="Where the invoice goes.")


EXAMPLES: Final = (OrderPlaced(order_id=1, email="ada@example.com"),)
'''


def write_contract(root: Path, text: str, *, name: str = "order_placed", package: str = "shop") -> Path:
    """A contract module of the package, and the packages around it."""
    events = root / package / "contracts" / "events"
    events.mkdir(parents=True, exist_ok=True)
    for directory in (events, *list(events.parents)[:2]):
        (directory / "__init__.py").touch()
    file = events / f"{name}.py"
    file.write_text(text)
    return file


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that modules are imported from; they are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in list(sys.modules):
        if name.partition(".")[0] in {"shop", "billing"}:
            del sys.modules[name]


def findings_of(packages: tuple[str, ...] = ("shop",)) -> str:
    with pytest.raises(ContractError) as caught:
        discover(packages)
    return "\n".join(caught.value.findings)


def test_a_contract_module_is_read_whole(project: Path) -> None:
    write_contract(project, ORDER_PLACED)
    write_contract(project, "raise RuntimeError", name="_draft")
    (contract,) = discover(["shop", "shop"]).values()
    assert (contract.event_type, contract.version, contract.owner) == ("shop.order.placed", 1, "shop")
    assert contract.payload.__name__ == "OrderPlaced"
    assert contract.examples == ({"order_id": 1, "email": "ada@example.com"},)
    assert contract.summary == "A customer has placed an order."
    assert contract.module == "shop.contracts.events.order_placed"
    assert contract.deprecation is None


def test_contracts_are_in_the_order_of_their_types(project: Path) -> None:
    write_contract(project, ORDER_PLACED)
    write_contract(project, renamed(ORDER_PLACED, "basket_filled", "basket.filled"), name="basket_filled")
    contracts = discover(["shop"])
    assert list(contracts) == ["shop.basket.filled", "shop.order.placed"]
    assert contracts.owners == {"shop"}


def renamed(text: str, stem: str, rest: str) -> str:
    """The module of another event with the same payload."""
    title = "".join(part.capitalize() for part in stem.split("_"))
    return text.replace("ORDER_PLACED", stem.upper()).replace("OrderPlaced", title).replace("order.placed", rest)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ORDER_PLACED_TYPE", "ORDER_TYPE", "it has no ORDER_PLACED_TYPE"),
        ("ORDER_PLACED_VERSION: Final = 1", "", "it has no ORDER_PLACED_VERSION"),
        ("VERSION: Final = 1", "VERSION: Final = '1'", "ORDER_PLACED_VERSION must be a plain int, not str"),
        ("VERSION: Final = 1", "VERSION: Final = 0", "versions begin with 1"),
        ("shop.order.placed", "shop.placed", "'shop.placed' is no event type"),
        ("shop.order.placed", "billing.order.placed", "belongs to 'billing'"),
        ("shop.order.placed", "shop.order.sent", "must be called order_sent"),
        ("OrderPlaced", "Placed", "it has no payload class OrderPlaced"),
        ("frozen=True, ", "", "must be frozen and closed"),
        ('extra="forbid"', 'extra="ignore"', "must be frozen and closed"),
        (' = Field(description="The order.")', "", "OrderPlaced.order_id: not described"),
        ("EXAMPLES", "SAMPLES", "it has no examples"),
        ('(OrderPlaced(order_id=1, email="ada@example.com"),)', "()", "it has no examples"),
        ('(OrderPlaced(order_id=1, email="ada@example.com"),)', "({},)", "example 1 is a dict, not a OrderPlaced"),
        ("ada@example.com", "\\0", "example 1 cannot be published: PayloadNotJsonError"),
        ('description="The order."', 'description="The order.", alias="id"', "cannot be imported: ValidationError"),
        ('description="The order."', 'description="x", serialization_alias="id"', "aliases that it does not write"),
        ('"""A customer has placed an order."""', "", "it has no docstring"),
        ("EXAMPLES", "DEPRECATION = 'soon'\nEXAMPLES", "DEPRECATION must be a Deprecation"),
        ("EXAMPLES", "import nowhere\nEXAMPLES", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_breaks_the_convention_is_refused_by_module(project: Path, old: str, new: str, message: str) -> None:
    assert old in ORDER_PLACED
    write_contract(project, ORDER_PLACED.replace(old, new))
    found = findings_of()
    assert found.startswith("shop.contracts.events.order_placed: ")
    assert message in found


def test_everything_that_is_wrong_is_told_at_once(project: Path) -> None:
    write_contract(project, "")
    write_contract(project, "", name="basket_filled")
    found = findings_of(("shop", "nowhere", "json"))
    assert [line.partition(":")[0] for line in found.splitlines()] == [
        "shop.contracts.events.basket_filled",
        "shop.contracts.events.order_placed",
        "nowhere",
        "json",
    ]


def test_a_type_has_one_contract(project: Path) -> None:
    write_contract(project, ORDER_PLACED)
    text = ORDER_PLACED.replace("ORDER_PLACED", "SHOP_ORDER_PLACED").replace("OrderPlaced", "ShopOrderPlaced")
    write_contract(project, text, name="shop_order_placed")
    assert "shop.order.placed is the type of shop.contracts.events.order_placed already" in findings_of()


def test_events_must_be_a_package(project: Path) -> None:
    write_contract(project, ORDER_PLACED)
    events = project / "shop" / "contracts" / "events"
    events.rename(project / "elsewhere")
    (project / "shop" / "contracts" / "events.py").touch()
    assert "is a single module" in findings_of()


def test_the_dispatch_of_agent_tasks_belongs_to_platform_by_name() -> None:
    contract = discover(["spectral.platform"])["agent.task.dispatched"]
    assert contract.owner == "platform"


@pytest.mark.parametrize(
    ("event_type", "family", "successor"),
    [
        ("shop.order.placed", ("shop.order.placed", 1), "shop.order.placed.v2"),
        ("shop.order.placed.v2", ("shop.order.placed", 2), "shop.order.placed.v3"),
        ("shop.order.v2", ("shop.order.v2", 1), "shop.order.v2.v2"),
    ],
)
def test_a_type_knows_its_successor(event_type: str, family: tuple[str, int], successor: str) -> None:
    assert family_of(event_type) == family
    assert successor_of(event_type) == successor


V2: Final = renamed(ORDER_PLACED, "order_placed_v2", "order.placed.v2")
DEPRECATED: Final = ORDER_PLACED + dedent("""
    from datetime import date
    from spectral.core.contracts import Deprecation
    DEPRECATION: Final = Deprecation(deadline=date(2027, 1, 31), replaced_by="shop.order.placed.v2", reason="no email")
""")


def test_a_type_with_a_successor_needs_a_deadline(project: Path) -> None:
    write_contract(project, ORDER_PLACED)
    write_contract(project, V2, name="order_placed_v2")
    (finding,) = check_succession(discover(["shop"]), today=date(2026, 11, 15))
    assert (finding.event_type, finding.fails) == ("shop.order.placed", True)
    assert "succeeded by shop.order.placed.v2" in finding.what


def test_a_deprecated_type_and_its_successor_are_fine_until_the_deadline(project: Path) -> None:
    write_contract(project, DEPRECATED)
    write_contract(project, V2, name="order_placed_v2")
    contracts = discover(["shop"])
    assert contracts["shop.order.placed"].deprecation == Deprecation(
        date(2027, 1, 31), "shop.order.placed.v2", "no email"
    )
    assert check_succession(contracts, today=date(2027, 1, 31)) == []
    (late,) = check_succession(contracts, today=date(2027, 2, 1))
    assert (late.fails, late.what) == (False, "should be gone: its deadline was 2027-01-31")


def test_a_replacement_must_exist(project: Path) -> None:
    write_contract(project, DEPRECATED)
    (finding,) = check_succession(discover(["shop"]), today=date(2026, 11, 15))
    assert finding.fails
    assert "which has no contract" in finding.what


def test_a_snapshot_is_stable_and_comes_back_from_its_text(project: Path) -> None:
    write_contract(project, DEPRECATED)
    document = snapshot(discover(["shop"]))
    text = render_snapshot(document)
    assert parse_snapshot(text, source="a file") == document == json.loads(text)
    assert document["shop.order.placed"] == {
        "version": 1,
        "owner": "shop",
        "deprecation": {"deadline": "2027-01-31", "replaced_by": "shop.order.placed.v2", "reason": "no email"},
        "schema": {
            "additionalProperties": False,
            "description": "What was ordered.",
            "properties": {
                "email": {"description": "Where the invoice goes.", "type": "string"},
                "order_id": {"description": "The order.", "type": "integer"},
            },
            "required": ["email", "order_id"],
            "title": "OrderPlaced",
            "type": "object",
        },
    }


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a.b.c": {}}', '{"a.b.c": {"version": 1, "owner": "a", "deprecation": {}, "schema": {}}}']
)
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match=r"base\.json is no snapshot"):
        parse_snapshot(text, source="base.json")
