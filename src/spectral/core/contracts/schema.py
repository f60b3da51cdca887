"""What a payload looks like as JSON Schema, always written the same way; and the snapshot of all of them.

A snapshot is what a release promises. It is kept in a file or read from a revision, and compared with the next one. So
it is stable (keys sorted, no titles made up from field names) and its lines change only where the promise does.
"""

from __future__ import annotations

import json
from datetime import date
from typing import TYPE_CHECKING, Any, Final, TypedDict, cast

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from spectral.core.contracts.contract import ContractError, Deprecation
from spectral.core.contracts.wording import Wording

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.json_schema import JsonSchemaValue

    from spectral.core.contracts.contract import Contracts, EventContract

Schema = dict[str, Any]
"""A JSON Schema (2020-12), as pydantic writes it."""


class DeprecationSnapshot(TypedDict):
    """A deprecation as JSON; the deadline in ISO 8601."""

    deadline: str
    replaced_by: str | None
    reason: str


class ContractSnapshot(TypedDict):
    """What one event type promised."""

    version: int
    owner: str
    deprecation: DeprecationSnapshot | None
    schema: Schema


Snapshot = dict[str, ContractSnapshot]
"""What every event type promised, by type."""


def payload_schema(model: type[BaseModel]) -> Schema:
    """What the producer may write. A field with a default is not promised: it is not in `required`."""
    return _sorted(model.model_json_schema(mode="serialization", schema_generator=Wording))


def consumer_schema(model: type[BaseModel]) -> Schema:
    """What the consumer can read.

    Raises:
        PydanticInvalidForJsonSchema: the model has a part that JSON Schema has no words for.
    """
    return _sorted(model.model_json_schema(mode="validation", schema_generator=Wording))


def contract_snapshot(contract: EventContract) -> ContractSnapshot:
    """What this type promises."""
    going = contract.deprecation
    return {
        "version": contract.version,
        "owner": contract.owner,
        "deprecation": None if going is None else _deprecation(going),
        "schema": payload_schema(contract.payload),
    }


def snapshot(contracts: Contracts) -> Snapshot:
    """What all types promise."""
    return {event_type: contract_snapshot(contract) for event_type, contract in contracts.items()}


def render_snapshot(document: Mapping[str, ContractSnapshot]) -> str:
    """The snapshot as the text of a file; the same contracts always give the same text."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def parse_snapshot(text: str, *, source: str) -> Snapshot:
    """The snapshot in this text; `source` names it in messages.

    Raises:
        ContractError: it is no snapshot.
    """
    try:
        _FILE.validate_json(text)
    except ValidationError:
        raise ContractError(
            f"{source} is no snapshot of contracts; write one with: spectral catalog snapshot --output contracts.json"
        ) from None
    return cast("Snapshot", json.loads(text))


def _deprecation(going: Deprecation) -> DeprecationSnapshot:
    return {"deadline": going.deadline.isoformat(), "replaced_by": going.replaced_by, "reason": going.reason}


def _sorted(schema: JsonSchemaValue) -> Schema:
    """The schema with its keys in order, and the lists whose order means nothing."""
    return {key: _sorted_keyword(key, schema[key]) for key in sorted(schema)}


def _sorted_keyword(key: str, value: object) -> object:
    if key == "required":
        return sorted(cast("list[str]", value))
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        # The keys are names, such as that of a field called `required`; the values are schemas.
        return {name: _sorted_part(part) for name, part in sorted(cast("dict[str, object]", value).items())}
    return _sorted_part(value)


def _sorted_part(value: object) -> object:
    if isinstance(value, dict):
        return _sorted(cast("JsonSchemaValue", value))
    if isinstance(value, list):
        return [_sorted_part(each) for each in cast("list[object]", value)]
    return value


_NAMED: Final = frozenset({"properties", "$defs", "patternProperties"})
_DATA: Final = frozenset({"default", "examples", "const", "enum"})


class _DeprecationInFile(BaseModel):
    deadline: date
    replaced_by: str | None
    reason: str


class _ContractInFile(BaseModel):
    version: int
    owner: str
    deprecation: _DeprecationInFile | None
    shape: dict[str, Any] = Field(alias="schema")


_FILE: Final = TypeAdapter(dict[str, _ContractInFile])
