"""The shape others rely on, written down by hand: a difference here is a change of contract, not of a test."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.failure import FailureCycle

ENVELOPE_FIELDS = [
    "event_id",
    "event_type",
    "event_version",
    "occurred_at",
    "source",
    "target",
    "workspace_id",
    "payload",
    "idempotency_key",
    "trace_context",
]

ENVELOPE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "EventEnvelope",
    "additionalProperties": False,
    "required": ["event_type", "source"],
    "properties": {
        "event_id": {"type": "string", "format": "uuid", "title": "Event Id"},
        "event_type": {
            "type": "string",
            "title": "Event Type",
            "maxLength": 200,
            "pattern": r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){2}(\.v[1-9][0-9]*)?$",
        },
        "event_version": {
            "type": "integer",
            "title": "Event Version",
            "default": 1,
            "minimum": 1,
            "maximum": 2_147_483_647,
        },
        "occurred_at": {"type": "string", "format": "date-time", "title": "Occurred At"},
        "source": {"type": "string", "title": "Source", "pattern": "^[a-z][a-z0-9_]{0,62}$"},
        "target": {
            "anyOf": [{"type": "string", "pattern": "^[a-z][a-z0-9_]{0,62}$"}, {"type": "null"}],
            "title": "Target",
            "default": None,
        },
        "workspace_id": {
            "anyOf": [{"type": "string", "format": "uuid"}, {"type": "null"}],
            "title": "Workspace Id",
            "default": None,
        },
        "payload": {"type": "object", "title": "Payload", "additionalProperties": True},
        "idempotency_key": {"type": "string", "title": "Idempotency Key", "minLength": 1, "maxLength": 255},
        "trace_context": {
            "anyOf": [{"type": "string"}, {"type": "null"}],
            "title": "Trace Context",
            "default": None,
        },
    },
}

CYCLE_FIELDS = ["cycle", "attempts", "last_error", "first_failed_at", "failed_at", "replayed_at", "replayed_by"]

CYCLE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "FailureCycle",
    "required": CYCLE_FIELDS,
    "properties": {
        "cycle": {"type": "integer", "title": "Cycle", "minimum": 1},
        "attempts": {"type": "integer", "title": "Attempts", "minimum": 0},
        "last_error": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Last Error"},
        "first_failed_at": {
            "anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}],
            "title": "First Failed At",
        },
        "failed_at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}], "title": "Failed At"},
        "replayed_at": {"type": "string", "format": "date-time", "title": "Replayed At"},
        "replayed_by": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Replayed By"},
    },
}


def without_description(schema: dict[str, Any]) -> dict[str, Any]:
    """The docstring is for readers; its wording is not part of the contract."""
    return {key: value for key, value in schema.items() if key != "description"}


def test_the_envelope_has_these_fields_in_this_order() -> None:
    assert list(EventEnvelope.model_fields) == ENVELOPE_FIELDS


def test_the_envelope_takes_what_this_schema_says() -> None:
    assert without_description(EventEnvelope.model_json_schema(mode="validation")) == ENVELOPE_SCHEMA


def test_the_envelope_gives_what_this_schema_says() -> None:
    assert without_description(EventEnvelope.model_json_schema(mode="serialization")) == ENVELOPE_SCHEMA


def test_the_envelope_is_written_to_json_in_this_form() -> None:
    envelope = EventEnvelope.model_validate(
        {
            "event_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "event_type": "orders.order.placed.v2",
            "event_version": 3,
            "occurred_at": "2026-11-15T10:00:00.250000+00:00",
            "source": "orders",
            "target": "billing",
            "workspace_id": "7f0f5f53-58a0-4d70-9d6f-4c3f6f2f3f11",
            "payload": {"total": 7, "lines": [{"sku": "a"}]},
            "idempotency_key": "order-1",
            "trace_context": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01",
        }
    )
    assert envelope.model_dump_json() == (
        '{"event_id":"01890a5d-ac96-774b-bcce-b302099a8057","event_type":"orders.order.placed.v2","event_version":3,'
        '"occurred_at":"2026-11-15T10:00:00.250000Z","source":"orders","target":"billing",'
        '"workspace_id":"7f0f5f53-58a0-4d70-9d6f-4c3f6f2f3f11","payload":{"total":7,"lines":[{"sku":"a"}]},'
        '"idempotency_key":"order-1","trace_context":"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}'
    )


def test_the_smallest_envelope_is_a_type_and_a_source() -> None:
    envelope = EventEnvelope(event_type="core.thing.done", source="core")
    written = json.loads(envelope.model_dump_json())
    assert list(written) == ENVELOPE_FIELDS
    assert UUID(written["event_id"]) == UUID(written["idempotency_key"]) == envelope.event_id
    assert {
        name: written[name] for name in ENVELOPE_FIELDS if name not in {"event_id", "idempotency_key", "occurred_at"}
    } == {
        "event_type": "core.thing.done",
        "event_version": 1,
        "source": "core",
        "target": None,
        "workspace_id": None,
        "payload": {},
        "trace_context": None,
    }


def test_a_failure_cycle_has_these_fields_in_this_order() -> None:
    assert list(FailureCycle.model_fields) == CYCLE_FIELDS


def test_a_failure_cycle_takes_what_this_schema_says() -> None:
    assert without_description(FailureCycle.model_json_schema(mode="validation")) == CYCLE_SCHEMA


def test_a_failure_cycle_gives_what_this_schema_says() -> None:
    assert without_description(FailureCycle.model_json_schema(mode="serialization")) == CYCLE_SCHEMA
