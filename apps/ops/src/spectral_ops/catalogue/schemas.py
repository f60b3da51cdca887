"""The payloads as one JSON Schema document (2020-12): each event under an `$id` of its own, examples beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spectral.core.contracts.schema import payload_schema

if TYPE_CHECKING:
    from spectral.core.contracts.contract import EventContract
    from spectral_ops.catalogue.entry import Catalogue

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema_id(contract: EventContract) -> str:
    """The name of a payload's schema, wherever it is kept: `urn:spectral:event:<type>:<version>`."""
    return f"urn:spectral:event:{contract.event_type}:{contract.version}"


def schemas_document(catalogue: Catalogue) -> dict[str, Any]:
    """A bundle: a validator that has read it knows every `$id` in it."""
    contracts = [entry.contract for entry in catalogue.events]
    return {"$schema": DIALECT, "$defs": {each.event_type: _schema(each) for each in contracts}}


def _schema(contract: EventContract) -> dict[str, Any]:
    document = {
        "$schema": DIALECT,
        "$id": schema_id(contract),
        **payload_schema(contract.payload),
        "description": contract.summary,
        "examples": [dict(each) for each in contract.examples],
    }
    if contract.deprecation is not None:
        document["deprecated"] = True
    return document
