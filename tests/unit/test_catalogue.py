"""The catalogue of a project that is not this one: its pages, its documents, the directory they stand in."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Final

import jsonschema  # type: ignore[import-untyped]
import pytest
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from spectral.core.contracts.contract import Contracts
from spectral.core.contracts.discover import discover
from spectral.core.events.consumer import Consumer
from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.failure import ConfigurationError
from spectral.core.retention import POLICY_REGISTRY
from spectral_ops.catalogue import (
    Catalogue,
    Difference,
    Release,
    State,
    as_cloudevent,
    asyncapi_document,
    cloudevents_document,
    collect,
    compare,
    render_pages,
    schemas_document,
    write,
)
from spectral_ops.catalogue.fields import fields_of
from spectral_ops.catalogue.sources import sources_of
from spectral_ops.cli.app import app
from spectral_workers.locate import locate_consumers

ASYNCAPI: Final = Path(__file__).parents[1] / "contracts" / "asyncapi-3.0.0.json"
PACKAGE: Final = "catalogued.orders"

FILES: Final = {
    "catalogued/__init__.py": "",
    "catalogued/orders/__init__.py": "",
    "catalogued/orders/contracts/__init__.py": "",
    "catalogued/orders/contracts/events/__init__.py": "",
    "catalogued/orders/contracts/events/order_placed.py": '''
        """A customer has placed an order.

        Its lines <b>cannot</b> change any more, but for `list[<new>]`.
        """
        from datetime import date
        from typing import Final, Literal
        from pydantic import BaseModel, ConfigDict, Field
        from spectral.core.contracts.contract import Deprecation

        ORDER_PLACED_TYPE: Final = "orders.order.placed"
        ORDER_PLACED_VERSION: Final = 2

        class Card(BaseModel):
            model_config = ConfigDict(frozen=True, extra="forbid")
            kind: Literal["card"] = Field(description="How.")
            digits: str = Field(description="The last ones.", min_length=4, max_length=4)

        class Invoice(BaseModel):
            model_config = ConfigDict(frozen=True, extra="forbid")
            kind: Literal["invoice"] = Field(description="How.")

        class Line(BaseModel):
            model_config = ConfigDict(frozen=True, extra="forbid")
            sku: str = Field(description="Which article | which size.", min_length=1)
            quantity: int = Field(description="How many.", ge=1)

        class OrderPlaced(BaseModel):
            model_config = ConfigDict(frozen=True, extra="forbid")
            order_id: int = Field(description="Which.")
            lines: tuple[Line, ...] = Field(description="What.")
            position: tuple[float, float] = Field(description="Where to.")
            payment: Card | Invoice = Field(description="How it is paid.", discriminator="kind")
            note: str | None = Field(default=None, description="For the [packer].")

        EXAMPLES: Final = (
            OrderPlaced(
                order_id=1,
                lines=(Line(sku="a", quantity=2),),
                position=(1.5, 2),
                payment=Invoice(kind="invoice"),
            ),
        )
        DEPRECATION: Final = Deprecation(date(2030, 1, 31), "orders.order.placed.v2", "Addresses replace positions.")
    ''',
    "catalogued/orders/contracts/events/order_placed_v2.py": '''
        """A customer has placed an order, with an address."""
        from typing import Final
        from pydantic import BaseModel, ConfigDict, Field

        ORDER_PLACED_V2_TYPE: Final = "orders.order.placed.v2"
        ORDER_PLACED_V2_VERSION: Final = 1

        class OrderPlacedV2(BaseModel):
            model_config = ConfigDict(frozen=True, extra="forbid")
            order_id: int = Field(description="Which.")

        EXAMPLES: Final = (OrderPlacedV2(order_id=1),)
    ''',
    "catalogued/orders/contracts/protocols/__init__.py": "",
    "catalogued/orders/contracts/protocols/stock.py": '''
        """What is in stock."""
        from typing import Protocol

        class Stock(Protocol):
            """Answers at once."""

            async def available(self, sku: str, *, least: int = 1) -> bool:
                """Whether there is enough.

                Raises:
                    LookupError: there is no such article.
                """
                ...
    ''',
    "catalogued/orders/shelves.py": """
        class Shelves:
            async def available(self, sku: str, *, least: int = 1) -> bool:
                return True
    """,
    "catalogued/orders/checkout.py": """
        from catalogued.orders.contracts.events import order_placed
        from catalogued.orders.contracts.events.order_placed_v2 import OrderPlacedV2
        from spectral.core.events import EventEnvelope

        class Checkout:
            def place(self) -> EventEnvelope:
                return EventEnvelope(event_type=order_placed.ORDER_PLACED_TYPE, source="orders")

        def address() -> OrderPlacedV2:
            return OrderPlacedV2(order_id=1)
    """,
    "catalogued/orders/migrations/20260101000000_orders.sql": """
        create function orders.place() returns void language sql as $$
            -- not 'orders.order.placed.v2'
            select core.publish('orders.order.placed', 'orders')
        $$;
        select core.publish('orders.order.placed', 'orders');
    """,
    "catalogued/app.py": """
        from pydantic import BaseModel
        from catalogued.orders.contracts.events.order_placed import ORDER_PLACED_TYPE
        from catalogued.orders.shelves import Shelves
        from spectral.core.events import Consumer, EventEnvelope

        stock = Shelves()
        end = Consumer("end")

        class LineView(BaseModel):
            sku: str

        class OrderPlacedEvent(BaseModel):
            order_id: int
            lines: list[LineView]

        @end.on(ORDER_PLACED_TYPE)
        async def pack(event: OrderPlacedEvent) -> None: ...

        @end.on(ORDER_PLACED_TYPE)
        async def count(envelope: EventEnvelope) -> None: ...
    """,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with one context and one app, importable for as long as this module is tested."""
    root = tmp_path_factory.mktemp("project")
    (root / "pyproject.toml").touch()
    for name, text in FILES.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text).lstrip())
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "catalogued"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def catalogue(project: Path) -> Catalogue:
    assert project.exists()
    return collect(
        discover([PACKAGE]),
        consumers=locate_consumers(["catalogued.app:end"]),
        packages=[PACKAGE],
        apps=["catalogued"],
    )


@pytest.fixture(scope="module")
def pages(catalogue: Catalogue, project: Path) -> dict[str, str]:
    return render_pages(catalogue, directory=project / "docs/events", root=project, retention=POLICY_REGISTRY)


def test_there_is_a_page_for_every_event_and_every_protocol_and_an_index(pages: dict[str, str]) -> None:
    assert sorted(pages) == [
        "index.md",
        "orders.order.placed.md",
        "orders.order.placed.v2.md",
        "protocols/orders.Stock.md",
    ]


def test_a_page_says_who_publishes_and_not_who_only_listens(catalogue: Catalogue) -> None:
    placed, second = catalogue.events
    assert [each.name for each in placed.producers] == [
        "catalogued.orders.checkout.Checkout.place",
        "function orders.place",
    ]
    # Nobody publishes the second, so whoever builds its payload is the best answer.
    assert [each.name for each in second.producers] == ["catalogued.orders.checkout.address"]


def test_a_page_says_which_fields_each_handler_reads(pages: dict[str, str]) -> None:
    page = pages["orders.order.placed.md"]
    assert "| `end.count` | `end` | [`catalogued.app.count`](../../catalogued/app.py) | the envelope only |" in page
    assert "`lines`, `lines[].sku`, `order_id` (as `OrderPlacedEvent`) |" in page
    assert "No consumer here handles it." in pages["orders.order.placed.v2.md"]


def test_the_table_of_a_payload_has_every_field_in_the_author_s_order(pages: dict[str, str]) -> None:
    lines = pages["orders.order.placed.md"].splitlines()
    assert lines[lines.index("## Payload") + 2 : lines.index("## Example") - 1] == [
        "| Field | Type | Required | Description |",
        "| --- | --- | --- | --- |",
        "| `order_id` | integer | yes | Which. |",
        "| `lines` | list of object | yes | What. |",
        "| `lines[].sku` | string, not empty | yes | Which article \\| which size. |",
        "| `lines[].quantity` | integer, ≥ 1 | yes | How many. |",
        "| `position` | list of (number, number), 2 items | yes | Where to. |",
        "| `payment` | object | yes | How it is paid. |",
        '| `payment.kind` | "card" | yes | How. |',
        "| `payment.digits` | string, 4 characters | yes | The last ones. |",
        '| `payment.kind` | "invoice" | yes | How. |',
        "| `note` | string or null | no | For the \\[packer]. |",
    ]


def test_a_deprecated_event_warns_and_leads_to_what_replaces_it(pages: dict[str, str]) -> None:
    page = pages["orders.order.placed.md"]
    assert (
        "> [!WARNING]\n> Deprecated: published until 2030-01-31. "
        "Use [`orders.order.placed.v2`](orders.order.placed.v2.md) instead. Addresses replace positions.\n"
    ) in page
    assert "- Other versions: [`orders.order.placed`](orders.order.placed.md)" in pages["orders.order.placed.v2.md"]
    assert "(deprecated, until 2030-01-31)" in pages["index.md"]


def test_an_example_on_a_page_is_the_contract_s_own(pages: dict[str, str], catalogue: Catalogue) -> None:
    shown = pages["orders.order.placed.md"].partition("```json\n")[2].partition("```")[0]
    assert json.loads(shown) == catalogue.events[0].contract.examples[0]


def test_what_people_wrote_opens_no_tags(pages: dict[str, str]) -> None:
    assert "&lt;b>cannot&lt;/b> change any more, but for `list[<new>]`.\n" in pages["orders.order.placed.md"]


def test_the_index_draws_one_arrow_between_two_contexts_and_says_what_nobody_hears(pages: dict[str, str]) -> None:
    drawing = pages["index.md"].partition("```mermaid\n")[2].partition("```")[0]
    # `end` is a word of the drawing's own language: contexts are numbered there.
    assert drawing.splitlines() == [
        "flowchart LR",
        '    c0(["end"])',
        '    c1(["orders"])',
        '    unheard["nobody here"]',
        '    c1 -->|"orders.order.placed"| c0',
        '    c1 -.->|"orders.order.placed.v2"| unheard',
    ]


def test_a_protocol_s_page_says_what_can_be_asked_who_answers_and_who_composes(pages: dict[str, str]) -> None:
    page = pages["protocols/orders.Stock.md"]
    for part in (
        "What is in stock.\n\nAnswers at once.",
        "async def available(self, sku: str, *, least: int=1) -> bool\n",
        "```text\nRaises:\n    LookupError: there is no such article.\n```",
        "## Implemented by\n\n- [`catalogued.orders.shelves.Shelves`](../../../catalogued/orders/shelves.py)",
        "## Composed by\n\n- [`catalogued.app`](../../../catalogued/app.py)",
    ):
        assert part in page


def test_code_outside_the_project_is_named_without_a_link(catalogue: Catalogue, project: Path, tmp_path: Path) -> None:
    elsewhere = render_pages(catalogue, directory=tmp_path, root=tmp_path, retention=POLICY_REGISTRY)
    assert "- `catalogued.orders.checkout.Checkout.place`\n" in elsewhere["orders.order.placed.md"]
    assert str(project) not in "".join(elsewhere.values())


def test_the_same_contracts_give_the_same_pages(catalogue: Catalogue, pages: dict[str, str], project: Path) -> None:
    again = render_pages(catalogue, directory=project / "docs/events", root=project, retention=POLICY_REGISTRY)
    assert again == pages


def test_a_directory_is_brought_to_what_the_pages_say(tmp_path: Path, pages: dict[str, str]) -> None:
    write(tmp_path, pages, compare(tmp_path, pages))
    assert compare(tmp_path, pages) == ()
    by_hand = tmp_path / "README.md"
    by_hand.write_text("by hand\n")
    (tmp_path / "index.md").write_text("edited\n")
    (tmp_path / "orders.order.placed.md").unlink()
    (tmp_path / "orders.order.gone.md").write_text(pages["index.md"])
    found = compare(tmp_path, pages)
    assert found == (
        Difference("index.md", State.DIFFERENT),
        Difference("orders.order.gone.md", State.STALE),
        Difference("orders.order.placed.md", State.MISSING),
    )
    write(tmp_path, pages, found)
    assert compare(tmp_path, pages) == ()
    assert by_hand.read_text() == "by hand\n"


def test_a_payload_that_holds_itself_is_listed_once() -> None:
    class Node(BaseModel):
        name: str = Field(description="Which.")
        inner: list[Node] = Field(description="What it holds.")
        weights: dict[str, float] = Field(description="By name.")

    Node.model_rebuild(_types_namespace={"Node": Node})
    found = fields_of({"properties": {"root": {"$ref": "#/$defs/Node"}}, **Node.model_json_schema()})
    assert [(each.path, each.type) for each in found][:4] == [
        ("root", "object"),
        ("root.name", "string"),
        ("root.inner", "list of object"),
        ("root.weights", "map of number"),
    ]


def test_a_handler_with_arguments_bound_beforehand_is_named_by_its_function(catalogue: Catalogue) -> None:
    async def pack(envelope: EventEnvelope, *, shelf: int = 0) -> None: ...

    consumer = Consumer("end")
    consumer.on("orders.order.placed", name="end.pack")(partial(pack, shelf=1))
    contracts = Contracts([entry.contract for entry in catalogue.events])
    found = collect(contracts, consumers=[consumer], packages=[], apps=[])
    assert (
        found.events[0].readers[0].place.name.endswith(f"test_catalogue.{pack.__qualname__.replace('<locals>.', '')}")
    )
    assert found.events[0].readers[0].place.file == Path(__file__)


def test_a_package_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="there is no package 'no_such_package'"):
        sources_of(["no_such_package"])


# ------------------------------------------------------------------------------------------------ documents


def test_the_asyncapi_document_is_one_and_knows_both_ends(catalogue: Catalogue) -> None:
    document = asyncapi_document(catalogue, Release("Orders", "1.2.3"))
    jsonschema.Draft7Validator(json.loads(ASYNCAPI.read_text())).validate(document)
    assert document["info"]["title"] == "Orders"
    assert {name: each["action"] for name, each in document["operations"].items()} == {
        "publish.orders.order.placed": "send",
        "handle.orders.order.placed.by.end.count": "receive",
        "handle.orders.order.placed.by.end.pack": "receive",
        "publish.orders.order.placed.v2": "send",
    }


def test_references_and_payloads_in_the_asyncapi_document_hold(catalogue: Catalogue) -> None:
    document = asyncapi_document(catalogue, Release())
    for entry in catalogue.events:
        validator = jsonschema.Draft7Validator({**document, "$ref": f"#/components/schemas/{entry.event_type}"})
        for example in entry.contract.examples:
            validator.validate(example)
        assert not validator.is_valid({})
    placed = jsonschema.Draft7Validator({**document, "$ref": "#/components/schemas/orders.order.placed"})
    assert not placed.is_valid({**catalogue.events[0].contract.examples[0], "position": [1, 2, 3]})


def test_the_schemas_document_validates_the_examples(catalogue: Catalogue) -> None:
    document = schemas_document(catalogue)
    jsonschema.Draft202012Validator.check_schema(document)
    for entry in catalogue.events:
        reference = f"urn:spectral:event:{entry.event_type}:{entry.contract.version}"
        validator = jsonschema.Draft202012Validator({**document, "$ref": reference})
        for example in entry.contract.examples:
            validator.validate(example)
        assert not validator.is_valid({"order_id": "one"})
    assert document["$defs"]["orders.order.placed"]["deprecated"] is True


def test_an_envelope_becomes_a_cloudevent_with_all_it_has() -> None:
    envelope = EventEnvelope(
        event_type="orders.order.placed",
        event_version=2,
        source="orders",
        target="billing",
        payload={"order_id": 1},
        trace_context="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )
    event = as_cloudevent(envelope)
    assert event == {
        "specversion": "1.0",
        "datacontenttype": "application/json",
        "id": str(envelope.event_id),
        "type": "orders.order.placed",
        "eventversion": 2,
        "time": envelope.model_dump(mode="json")["occurred_at"],
        "source": "orders",
        "target": "billing",
        "data": {"order_id": 1},
        "idempotencykey": str(envelope.event_id),
        "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    }


def test_the_cloudevents_document_maps_every_field_of_the_envelope(catalogue: Catalogue) -> None:
    document = cloudevents_document(catalogue)
    assert list(document["attributes"]) == list(EventEnvelope.model_fields)
    # The rule of CloudEvents for names: lower-case letters and digits.
    assert all(name.isalnum() and name.islower() for name in document["attributes"].values())
    assert document == cloudevents_document(catalogue)


# ------------------------------------------------------------------------------------------------ commands

OPTIONS: Final = ["--package", PACKAGE, "--app", "catalogued.app:end"]


@pytest.mark.usefixtures("catalogue")
def test_build_writes_check_compares_and_says_what_to_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    run = CliRunner()
    missing = run.invoke(app, ["catalog", "build", "--check", *OPTIONS])
    assert missing.exit_code == 1
    assert f"try: spectral catalog build --package {PACKAGE} --app catalogued.app:end" in missing.stderr
    assert not (project / "docs").exists()
    assert run.invoke(app, ["catalog", "build", *OPTIONS]).exit_code == 0
    clean = run.invoke(app, ["catalog", "build", "--check", "--json", *OPTIONS])
    assert clean.exit_code == 0
    assert json.loads(clean.stdout) == {"directory": "docs/events", "pages": 4, "written": False, "differences": []}
    (project / "docs/events/index.md").write_text("edited\n")
    edited = run.invoke(app, ["catalog", "build", "--check", *OPTIONS])
    assert edited.exit_code == 1
    assert "docs/events/index.md  different" in " ".join(edited.stdout.split(" "))


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("asyncapi", "asyncapi"),
        ("jsonschema", "$defs"),
        ("cloudevents", "attributes"),
        ("snapshot", "orders.order.placed"),
    ],
)
def test_export_writes_one_document(form: str, key: str, tmp_path: Path) -> None:
    run = CliRunner()
    shown = run.invoke(app, ["catalog", "export", "--format", form, *OPTIONS])
    assert shown.exit_code == 0
    assert key in json.loads(shown.stdout)
    file = tmp_path / "document.json"
    assert run.invoke(app, ["catalog", "export", "--format", form, *OPTIONS, "--output", str(file)]).exit_code == 0
    assert file.read_text() == shown.stdout


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, catalogue: Catalogue) -> None:
    assert catalogue.events
    wrong = tmp_path / "no" / "such" / "directory.json"
    ran = CliRunner().invoke(app, ["catalog", "export", "--format", "snapshot", *OPTIONS, "--output", str(wrong)])
    assert isinstance(ran.exception, ConfigurationError)
    assert str(wrong) in str(ran.exception)
