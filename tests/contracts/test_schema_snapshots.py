"""Every payload is pinned: `snapshots/<event type>.json` is what was promised, and promises are only added to.

To accept an addition: SPECTRAL_UPDATE_GOLDEN=1 make test (or this file alone). A change that breaks a consumer is not
accepted like this: publish a new type with the suffix .v2, and give the old one a deadline.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy

import pytest

from spectral.core.contracts import Snapshot, render_snapshot, snapshot
from tests.contracts.promises import SNAPSHOTS, broken, contracts, kept

CARD = "worlds.world_model_card.published"


def test_no_promise_is_broken_and_every_addition_is_accepted() -> None:
    old, new = kept(), snapshot(contracts())
    if complaints := broken(old, new):
        pytest.fail("\n".join(complaints), pytrace=False)
    if os.environ.get("SPECTRAL_UPDATE_GOLDEN"):
        for event_type, promised in new.items():
            (SNAPSHOTS / f"{event_type}.json").write_text(render_snapshot({event_type: promised}))
    assert kept() == new, "accept it with: SPECTRAL_UPDATE_GOLDEN=1 pytest tests/contracts/test_schema_snapshots.py"


def test_a_snapshot_is_what_pydantic_says_of_the_payload() -> None:
    """Independent of the machinery that writes the snapshots: the names, what is required, and the types."""
    for event_type, contract in contracts().items():
        own = contract.payload.model_json_schema(mode="serialization")
        promised = json.loads((SNAPSHOTS / f"{event_type}.json").read_text())[event_type]
        assert promised["version"] == contract.version
        assert (
            promised["schema"]["properties"].keys() == own["properties"].keys() == contract.payload.model_fields.keys()
        )
        assert promised["schema"]["required"] == sorted(own["required"])
        for name, field in own["properties"].items():
            assert promised["schema"]["properties"][name].get("type") == field.get("type")


def without(field: str, promised: Snapshot) -> None:
    schema = promised[CARD]["schema"]
    del schema["properties"][field]
    schema["required"].remove(field)


def another_type(promised: Snapshot) -> None:
    promised[CARD]["schema"]["properties"]["revision"] = {"type": "string", "description": "As text."}


def nullable(promised: Snapshot) -> None:
    field = promised[CARD]["schema"]["properties"]["published_at"]
    promised[CARD]["schema"]["properties"]["published_at"] = {"anyOf": [field, {"type": "null"}]}


def no_longer_promised(promised: Snapshot) -> None:
    promised[CARD]["schema"]["required"].remove("world_model_id")


def narrower(promised: Snapshot) -> None:
    promised[CARD]["schema"]["properties"]["revision"]["maximum"] = 99


def renamed(promised: Snapshot) -> None:
    promised["worlds.world_model_card.released"] = promised.pop(CARD)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda promised: without("revision", promised), "revision"),
        (another_type, "revision"),
        (nullable, "published_at"),
        (narrower, "revision is narrower"),
        (no_longer_promised, "world_model_id"),
        (renamed, CARD),
    ],
    ids=[
        "a field is removed",
        "a type is changed",
        "null is added",
        "a type is narrowed",
        "a field is optional now",
        "the type is renamed",
    ],
)
def test_a_broken_promise_is_told_with_the_consumer_it_breaks(change: object, told: str) -> None:
    assert callable(change)
    old = snapshot(contracts())
    new = deepcopy(old)
    change(new)
    (complaint, *_) = broken(old, new)
    assert told in complaint
    assert "breaks platform.world_model_card_projection" in complaint
    assert "instead:" in complaint


def test_a_field_that_no_consumer_of_ours_reads_may_not_go_either() -> None:
    old = snapshot(contracts())
    new = deepcopy(old)
    without("limitations", new)
    (complaint, *_) = broken(old, new)
    assert complaint.startswith(f"breaking: {CARD}: limitations")
    assert "platform." not in complaint
    assert "no known handler has it in its model" in complaint


def test_a_verdict_that_is_taken_away_is_told_with_who_counts_it() -> None:
    old = snapshot(contracts())
    new = deepcopy(old)
    new["platform.decision.recorded"]["schema"]["$defs"]["DecisionVerdict"]["enum"].pop()
    (complaint, *_) = broken(old, new)
    assert complaint.startswith("breaking: platform.decision.recorded: verdict is narrower")
    assert "breaks platform.decision_recorded_aggregator" in complaint


def test_what_no_handler_reads_may_not_get_narrower_either() -> None:
    old = snapshot(contracts())
    new = deepcopy(old)
    new[CARD]["schema"]["$defs"]["CardEvaluation"]["properties"]["score"]["minimum"] = 0
    (complaint, *_) = broken(old, new)
    assert complaint.startswith(f"breaking: {CARD}: evaluations[].score is narrower")
    assert "no known handler has it in its model" in complaint


def test_a_verdict_that_the_aggregator_does_not_know_is_told() -> None:
    old = snapshot(contracts())
    new = deepcopy(old)
    new["platform.decision.recorded"]["schema"]["$defs"]["DecisionVerdict"]["enum"].append("postpone")
    (complaint, *_) = broken(old, new)
    assert "breaks platform.decision_recorded_aggregator" in complaint


def test_an_addition_breaks_nobody() -> None:
    old = snapshot(contracts())
    new = deepcopy(old)
    new[CARD]["version"] += 1
    new[CARD]["schema"]["properties"]["licence"] = {"type": "string", "description": "Added later."}
    assert broken(old, new) == []
