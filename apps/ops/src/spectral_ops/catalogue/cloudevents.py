"""An envelope as a CloudEvent 1.0 in the JSON format. Names of extensions are lower-case letters and digits there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, uuid5

from spectral.core.events.envelope import EventEnvelope
from spectral_ops.catalogue.schemas import schema_id

if TYPE_CHECKING:
    from spectral.core.contracts.contract import EventContract
    from spectral_ops.catalogue.entry import Catalogue

MAPPING: Final = {
    "event_id": "id",
    "event_type": "type",
    "event_version": "eventversion",
    "occurred_at": "time",
    "source": "source",
    "target": "target",
    "workspace_id": "workspaceid",
    "payload": "data",
    "idempotency_key": "idempotencykey",
    "trace_context": "traceparent",
}
"""The attribute of each field of the envelope. `traceparent` is the extension for distributed tracing."""

_EXAMPLE_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)


def as_cloudevent(envelope: EventEnvelope, *, dataschema: str | None = None) -> dict[str, Any]:
    """The event for a reader of CloudEvents; what the envelope leaves empty is left out, as the standard wants."""
    fields = envelope.model_dump(mode="json")
    known = {attribute: fields[name] for name, attribute in MAPPING.items() if fields[name] is not None}
    schema = {} if dataschema is None else {"dataschema": dataschema}
    return {"specversion": "1.0", "datacontenttype": "application/json", **schema, **known}


def cloudevents_document(catalogue: Catalogue) -> dict[str, Any]:
    """The mapping, and every example of every event under it."""
    return {
        "specversion": "1.0",
        "attributes": dict(MAPPING),
        "events": {
            entry.event_type: {
                "dataschema": schema_id(entry.contract),
                "examples": [
                    as_cloudevent(each, dataschema=schema_id(entry.contract)) for each in _examples(entry.contract)
                ],
            }
            for entry in catalogue.events
        },
    }


def _examples(contract: EventContract) -> list[EventEnvelope]:
    """Envelopes around the examples; ids come from the names, so that the document is the same every time."""
    return [
        EventEnvelope(
            event_id=uuid5(NAMESPACE_URL, f"{schema_id(contract)}#{number}"),
            event_type=contract.event_type,
            event_version=contract.version,
            occurred_at=_EXAMPLE_TIME,
            source=contract.owner,
            payload=dict(payload),
        )
        for number, payload in enumerate(contract.examples)
    ]
