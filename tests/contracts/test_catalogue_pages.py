"""The committed catalogue is what the contracts say: every contract has its page, no page is old, the exports hold.

`asyncapi-3.0.0.json` is the official schema of AsyncAPI 3.0.0, unchanged, from the npm package @asyncapi/specs 6.11.1
(Apache License 2.0).
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import pytest

from spectral.core.retention import POLICY_REGISTRY
from spectral_ops.catalogue import (
    Catalogue,
    Release,
    asyncapi_document,
    cloudevents_document,
    compare,
    render_pages,
    schemas_document,
)
from spectral_ops.catalogue.cloudevents import MAPPING
from spectral_ops.cli.catalog_build import catalogue_of

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ROOT / "docs" / "events"
ASYNCAPI: Final = json.loads((Path(__file__).parent / "asyncapi-3.0.0.json").read_text())


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return catalogue_of()


def test_the_committed_pages_are_current(catalogue: Catalogue) -> None:
    pages = render_pages(catalogue, directory=PAGES, root=ROOT, retention=POLICY_REGISTRY)
    assert [f"{each.page} is {each.state}" for each in compare(PAGES, pages)] == [], "run: spectral catalog build"


def test_every_contract_and_every_protocol_has_a_committed_page(catalogue: Catalogue) -> None:
    # Found by their files, so that what discovery overlooks is noticed here.
    contexts = ROOT / "src" / "spectral"
    modules = [each for each in contexts.glob("*/contracts/events/*.py") if not each.stem.startswith("_")]
    committed = {each.stem for each in PAGES.glob("*.md")}
    assert len(modules) == len(catalogue.events) > 0
    assert {entry.event_type for entry in catalogue.events} == committed - {"README", "index"}
    protocols = [each for each in contexts.glob("*/contracts/protocols/*.py") if not each.stem.startswith("_")]
    assert len(protocols) <= len(catalogue.protocols) == len(list((PAGES / "protocols").glob("*.md")))


def test_the_narrative_names_every_event(catalogue: Catalogue) -> None:
    told = (PAGES / "README.md").read_text()
    assert [entry.event_type for entry in catalogue.events if f"({entry.event_type}.md)" not in told] == []


def test_every_event_of_ours_is_published_and_handled(catalogue: Catalogue) -> None:
    assert [entry.event_type for entry in catalogue.events if not entry.producers] == []
    assert [entry.event_type for entry in catalogue.events if not entry.readers] == []


def test_agent_tasks_are_handled_though_a_project_brings_the_executor(catalogue: Catalogue) -> None:
    readers = {entry.event_type: [each.handler for each in entry.readers] for entry in catalogue.events}
    assert readers["agent.task.dispatched"] == readers["platform.agent_task.resumed"] == ["platform.run_agent_task"]
    assert "platform.run_agent_task" in (PAGES / "agent.task.dispatched.md").read_text()


def test_every_protocol_of_ours_is_answered_and_composed(catalogue: Catalogue) -> None:
    assert [entry.title for entry in catalogue.protocols if not (entry.implementers and entry.composers)] == []


def test_the_asyncapi_document_is_valid_by_the_official_schema(catalogue: Catalogue) -> None:
    jsonschema.Draft7Validator.check_schema(ASYNCAPI)
    validator = jsonschema.Draft7Validator(ASYNCAPI)
    document = asyncapi_document(catalogue, Release())
    assert [f"{each.json_path}: {each.message[:200]}" for each in validator.iter_errors(document)] == []
    # And the schema does look: a word that AsyncAPI does not know is refused.
    document["operations"][f"publish.{catalogue.events[0].event_type}"]["action"] = "shout"
    assert not validator.is_valid(document)


def test_examples_are_valid_by_the_asyncapi_document_and_by_the_schemas(catalogue: Catalogue) -> None:
    asyncapi, schemas = asyncapi_document(catalogue, Release()), schemas_document(catalogue)
    for entry in catalogue.events:
        seventh = jsonschema.Draft7Validator({**asyncapi, "$ref": f"#/components/schemas/{entry.event_type}"})
        bundled = jsonschema.Draft202012Validator({**schemas, "$ref": schemas["$defs"][entry.event_type]["$id"]})
        for example in entry.contract.examples:
            seventh.validate(example)
            bundled.validate(example)
        for validator in (seventh, bundled):
            assert not validator.is_valid({"no such field": 1})


def test_every_example_is_a_cloudevent(catalogue: Catalogue) -> None:
    events = cloudevents_document(catalogue)["events"]
    assert list(events) == [entry.event_type for entry in catalogue.events]
    for entry in catalogue.events:
        examples = events[entry.event_type]["examples"]
        assert [each["data"] for each in examples] == [dict(each) for each in entry.contract.examples]
        for each in examples:
            assert _complaints(each) == []


def test_the_reference_shows_the_mapping_to_cloudevents_as_it_is() -> None:
    page = (ROOT / "docs" / "reference" / "event-catalogue.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert dict(rows) == MAPPING


def _complaints(event: dict[str, Any]) -> list[str]:
    """What CloudEvents 1.0 and its JSON format would refuse; the rules, written down by hand."""
    found = [f"no {name}" for name in ("id", "source", "type") if not event.get(name)]
    if event["specversion"] != "1.0":
        found.append("specversion")
    attributes = {name: value for name, value in event.items() if name != "data"}
    found += [name for name in attributes if re.fullmatch(r"[a-z0-9]+", name) is None]
    found += [name for name, value in attributes.items() if not isinstance(value, str | int | bool)]
    found += [f"{name} is empty" for name, value in attributes.items() if value == ""]
    if re.fullmatch(r"[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+", event["source"]) is None:
        found.append("source is no URI reference")
    if re.match(r"[a-z][a-z0-9+.-]*:", event["dataschema"]) is None:
        found.append("dataschema is no absolute URI")
    if datetime.fromisoformat(event["time"]).tzinfo is None:
        found.append("time has no zone")
    return found
