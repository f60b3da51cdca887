"""Consumers against producers: does the handler's own model fit what the producer promises, and its examples?

Both directions. Forth: all that the producer may write, the model can read. Back: all that the model counts on, the
producer promises. A problem breaks the consumer, or is only doubtful: the model reads a field that nobody writes.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from spectral.core.contracts.contract import owner_of
from spectral.core.contracts.fitting import CONSUMER, Misfit, Reason, misfits
from spectral.core.contracts.schema import consumer_schema, payload_schema
from spectral.core.events.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic.fields import FieldInfo

    from spectral.core.contracts.contract import Contracts, EventContract
    from spectral.core.contracts.schema import Schema
    from spectral.core.events.consumer import Consumer


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a consumer; `breaks` is false where it works and is doubtful. `path` is the field's."""

    handler: str
    event_type: str
    path: str
    what: str
    remedy: str
    breaks: bool = True


def check_consumers(contracts: Contracts, consumers: Iterable[Consumer]) -> list[Problem]:
    """Every handler of these consumers against the contract of every type it handles."""
    return [
        problem
        for consumer in consumers
        for event_type in consumer.event_types
        for handler in consumer.handlers_of(event_type)
        for problem in _check(handler.name, handler.signature.model, event_type, contracts)
    ]


def _check(handler: str, model: type[BaseModel] | None, event_type: str, contracts: Contracts) -> list[Problem]:
    contract = contracts.get(event_type)
    if contract is None:
        return [_unknown(handler, event_type, contracts)]
    # A handler that takes the envelope as it is counts on nothing that could be known here.
    return [] if model is None else check_consumer(handler, model, contract)


def check_consumer(handler_name: str, model: type[BaseModel], contract: EventContract) -> list[Problem]:
    """The handler's model against the producer's schema, and against its examples."""
    found = check_schema(handler_name, model, contract.event_type, payload_schema(contract.payload))
    # Examples find what schemas have no words for, such as validators; what is known already is not told again.
    known = {_top(each.path) for each in found if each.breaks}
    remedy = "have the model read it, or ask the producer's owner"
    return found + [
        Problem(handler_name, contract.event_type, path, what, remedy)
        for path, what in dict(_failures(model, contract)).items()
        if not known & {"", _top(path)}
    ]


def check_schema(handler_name: str, model: type[BaseModel], event_type: str, schema: Schema) -> list[Problem]:
    """The handler's model against a schema of the payload, such as that of another release."""
    try:
        read = consumer_schema(model)
    except PydanticInvalidForJsonSchema as error:
        what = f"{model.__name__} cannot be compared: {error.message}"
        return [Problem(handler_name, event_type, "", what, "give the field a type that JSON has", breaks=False)]
    found = misfits(schema, _under_known_names(model, read, schema.get("properties", {})), CONSUMER)
    return [_problem(handler_name, event_type, each, schema) for each in found]


def _problem(handler: str, event_type: str, misfit: Misfit, schema: Schema) -> Problem:
    breaks = True
    match misfit.reason:
        case Reason.ABSENT:
            name = misfit.path.rpartition(".")[2]
            known: Mapping[str, object] = schema.get("properties", {})
            near = difflib.get_close_matches(name, known, n=1)
            what = f"{misfit.what}, and {handler} {'cannot do without it' if misfit.needed else 'has a default for it'}"
            remedy = f"did you mean {near[0]!r}?" if near else "remove it from the model, or ask the owner to add it"
            breaks = misfit.needed
        case Reason.UNSURE:
            what, remedy = f"{misfit.what}, and {handler} counts on it", "give it a default in the model"
        case Reason.CLOSED:
            what, remedy = "the model refuses unknown fields, and the producer may add some", 'remove extra="forbid"'
        case _:
            what, remedy = misfit.what, "widen the field's type in the model"
    return Problem(handler, event_type, misfit.path, what, remedy, breaks)


def _unknown(handler: str, event_type: str, contracts: Contracts) -> Problem:
    near = difflib.get_close_matches(event_type, contracts, n=1)
    if owner_of(event_type) not in contracts.owners:
        what = "has no contract among the packages that were looked at"
        return Problem(handler, event_type, "", what, "name its owner's package: --package ...", breaks=False)
    remedy = f"did you mean {near[0]}?" if near else f"ask {owner_of(event_type)}, or remove the handler"
    return Problem(handler, event_type, "", "is published by nobody", remedy)


def _failures(model: type[BaseModel], contract: EventContract) -> Iterator[tuple[str, str]]:
    for number, example in enumerate(contract.examples, start=1):
        for what, document in (("", example), (" with an unknown field", {**example, _UNKNOWN: None})):
            try:
                model.model_validate_json(json.dumps(document))
            except ValidationError as error:
                for each in error.errors(include_url=False, include_context=False, include_input=False):
                    yield _path(each["loc"]), f"example {number}{what} cannot be read: {each['msg']}"
            except Exception as error:  # noqa: BLE001  a validator is anybody's code
                yield "", f"example {number}{what} cannot be read: {describe(error)}"


def _top(path: str) -> str:
    """The field of the payload itself that the path leads through."""
    return path.partition(".")[0].partition("[")[0]


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(each) for each in location)


def _under_known_names(model: type[BaseModel], read: Schema, written: Mapping[str, object]) -> Schema:
    """The model's schema with each field under the name that the producer writes, where it goes by several."""
    names: dict[str, str] = {
        name: other
        for field, info in model.model_fields.items()
        for name in [_first_name(field, info)]
        if name not in written
        for other in _names(model, field, info)
        if other in written
    }
    # What is read from the inside of another field cannot be judged here, only that this one is written.
    inside = {
        name
        for field, info in model.model_fields.items()
        for name in [_first_name(field, info)]
        if name not in written and name not in names and _roots(info) & written.keys()
    }
    if not (names or inside) or "properties" not in read:
        return read
    fields: Mapping[str, Any] = read["properties"]
    properties = {names.get(name, name): part for name, part in fields.items() if name not in inside}
    required = [names.get(name, name) for name in read.get("required", ()) if name not in inside]
    return {**read, "properties": properties, "required": required}


def _first_name(field: str, info: FieldInfo) -> str:
    """What pydantic calls the field in the schema."""
    choices = _choices(info)
    return choices[0] if choices else field


def _names(model: type[BaseModel], field: str, info: FieldInfo) -> list[str]:
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    return [*_choices(info), *([field] if by_name else [])]


def _choices(info: FieldInfo) -> list[str]:
    match info.validation_alias:
        case AliasChoices(choices=choices):
            return [each for each in choices if isinstance(each, str)]
        case str(alias):
            return [alias]
        case _:
            return []


def _roots(info: FieldInfo) -> set[str]:
    """The fields that it is read from the inside of."""
    alias = info.validation_alias
    paths = alias.choices if isinstance(alias, AliasChoices) else [alias]
    return {str(each.path[0]) for each in paths if isinstance(each, AliasPath)}


_UNKNOWN: Final = "added_by_the_producer_later"
