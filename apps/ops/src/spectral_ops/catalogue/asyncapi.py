"""The catalogue as an AsyncAPI 3.0 document: a channel per event type, who sends into it, who receives from it.

The envelope's fields are the headers of a message, its payload is the payload. AsyncAPI has JSON Schema of draft 7 and
looks references up from the document's root, so definitions move to the components and newer words are translated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spectral.core.contracts.schema import payload_schema
from spectral.core.events.envelope import EventEnvelope
from spectral_ops.catalogue.schemas import schema_id

if TYPE_CHECKING:
    from spectral_ops.catalogue.entry import Catalogue, EventEntry

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Release:
    """What the document calls itself."""

    title: str = "Events"
    version: str = "unreleased"


def asyncapi_document(catalogue: Catalogue, release: Release) -> Document:
    """The document; the same catalogue gives the same one."""
    events = catalogue.events
    schemas: Document = {"EventEnvelope": _headers()}
    for entry in events:
        schemas.update(_schemas(entry))
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": release.title,
            "version": release.version,
            "description": "Events are rows of `core.outbox`; a channel stands for those of one event type.",
            "tags": [{"name": context} for context in catalogue.contexts],
        },
        "defaultContentType": "application/json",
        "channels": {entry.event_type: _channel(entry) for entry in events},
        "operations": {name: operation for entry in events for name, operation in _operations(entry).items()},
        "components": {
            "messageTraits": {"envelope": {"headers": {"$ref": "#/components/schemas/EventEnvelope"}}},
            "messages": {entry.event_type: _message(entry) for entry in events},
            "schemas": schemas,
        },
    }


def _channel(entry: EventEntry) -> Document:
    return {
        "address": entry.event_type,
        "summary": entry.contract.summary,
        "messages": {entry.event_type: {"$ref": f"#/components/messages/{entry.event_type}"}},
    }


def _message(entry: EventEntry) -> Document:
    contract = entry.contract
    message: Document = {
        "name": entry.event_type,
        "title": contract.payload.__name__,
        "summary": contract.summary,
        "contentType": "application/json",
        "tags": [{"name": contract.owner}],
        "traits": [{"$ref": "#/components/messageTraits/envelope"}],
        "payload": {"$ref": f"#/components/schemas/{entry.event_type}"},
        "examples": [{"payload": dict(each)} for each in contract.examples],
        "x-event-version": contract.version,
        "x-schema-id": schema_id(contract),
    }
    going = contract.deprecation
    if going is not None:
        message["x-deprecation"] = {
            "deadline": going.deadline.isoformat(),
            "replaced_by": going.replaced_by,
            "reason": going.reason,
        }
    return message


def _operations(entry: EventEntry) -> dict[str, Document]:
    """One for the owner, which sends, and one for each handler, which receives."""
    channel = {"$ref": f"#/channels/{entry.event_type}"}
    messages = [{"$ref": f"#/channels/{entry.event_type}/messages/{entry.event_type}"}]
    owner = entry.contract.owner
    operations: dict[str, Document] = {
        f"publish.{entry.event_type}": {
            "action": "send",
            "channel": channel,
            "messages": messages,
            "tags": [{"name": owner}],
        }
    }
    for reader in entry.readers:
        operations[f"handle.{entry.event_type}.by.{reader.handler}"] = {
            "action": "receive",
            "channel": channel,
            "messages": messages,
            "tags": [{"name": reader.context}],
        }
    return operations


def _headers() -> Document:
    schema = EventEnvelope.model_json_schema(mode="serialization")
    properties = {name: each for name, each in schema["properties"].items() if name != "payload"}
    # An envelope travels with all of its fields; the empty ones are null.
    return _translated({"type": "object", "properties": properties, "required": list(properties)}, "")


def _schemas(entry: EventEntry) -> Document:
    """The payload's schema and its definitions, each under a name that no other event has."""
    schema = payload_schema(entry.contract.payload)
    definitions = schema.pop("$defs", {})
    prefix = f"{entry.event_type}."
    moved = {f"{prefix}{name}": _translated(each, prefix) for name, each in definitions.items()}
    return {entry.event_type: _translated(schema, prefix), **moved}


def _translated(schema: Document, prefix: str) -> Document:
    """In the words of AsyncAPI; `prefix` goes before the names of definitions."""
    found: Document = {}
    for key, value in schema.items():
        match key, value:
            case "$ref", str():
                found["$ref"] = f"#/components/schemas/{prefix}{value.rpartition('/')[2]}"
            case "prefixItems", list():
                found["items"] = [_translated(each, prefix) for each in value]
                found["additionalItems"] = False
            case "discriminator", dict():
                found["discriminator"] = value["propertyName"]
            case (("properties" | "patternProperties"), dict()):
                found[key] = {name: _translated(each, prefix) for name, each in value.items()}
            case (("anyOf" | "oneOf" | "allOf"), list()):
                found[key] = [_translated(each, prefix) for each in value]
            case (("items" | "additionalProperties" | "propertyNames" | "contains" | "not"), dict()):
                found[key] = _translated(value, prefix)
            case _:
                found[key] = value  # a number, a name, or data: nothing in it is a schema
    return found
