"""Finds contract modules and reads them. What breaks the convention is refused, all of it at once, by module."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar, cast

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from spectral.core.contracts.contract import ContractError, Contracts, Deprecation, EventContract, owner_of
from spectral.core.contracts.nodes import Place
from spectral.core.contracts.schema import payload_schema
from spectral.core.events.describe import describe
from spectral.core.events.envelope import EVENT_TYPE_PATTERN, MAX_NAME_LENGTH
from spectral.core.events.failure import PayloadError
from spectral.core.events.payload import encode_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from spectral.core.contracts.schema import Schema

T = TypeVar("T")

EVENTS: Final = "contracts.events"
"""Where the contract modules of a package are."""


class _Wrong(Exception):  # noqa: N818  never leaves this module
    """One thing about a module that is not as the convention has it."""


def discover(packages: Iterable[str]) -> Contracts:
    """Every contract of these packages, such as `spectral.worlds`.

    Raises:
        ContractError: a package or a module is not as the convention has it; all of them are named.
    """
    found: list[EventContract] = []
    findings: list[str] = []
    for package in dict.fromkeys(packages):
        try:
            modules = list(_modules(package))
        except _Wrong as wrong:
            findings.append(f"{package}: {wrong}")
            continue
        for name in modules:
            try:
                found.append(_read(package, name))
            except _Wrong as wrong:
                findings.append(f"{name}: {wrong}")
    findings += _duplicates(found)
    if findings:
        raise ContractError(*findings)
    return Contracts(found)


def _duplicates(found: list[EventContract]) -> Iterator[str]:
    first: dict[str, str] = {}
    for each in found:
        other = first.setdefault(each.event_type, each.module)
        if other != each.module:
            yield f"{each.module}: {each.event_type} is the type of {other} already; give one of them another"


def _modules(package: str) -> Iterator[str]:
    where = f"{package}.{EVENTS}"
    try:
        home = import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise _Wrong(f"cannot be imported: {describe(error)}") from error
        raise _Wrong(
            f"there is no module {error.name}; contracts are modules of {where}. Check the spelling, and run this in "
            "the directory that the package's name begins in, or install it"
        ) from None
    except Exception as error:
        raise _Wrong(f"cannot be imported: {describe(error)}") from error
    if not hasattr(home, "__path__"):
        raise _Wrong(f"{where} is a single module; make it a package with a module for each event")
    for each in sorted(pkgutil.iter_modules(home.__path__), key=lambda each: each.name):
        if not each.name.startswith("_"):
            yield f"{where}.{each.name}"


def _read(package: str, name: str) -> EventContract:
    module = _imported(name)
    stem = name.rpartition(".")[2]
    event_type = _constant(module, f"{stem.upper()}_TYPE", str)
    version = _constant(module, f"{stem.upper()}_VERSION", int)
    if version < 1:
        raise _Wrong(f"{stem.upper()}_VERSION is {version}; versions begin with 1")
    _check_type(event_type, stem, package)
    payload = _payload(module, "".join(part.capitalize() for part in stem.split("_")))
    return EventContract(
        event_type=event_type,
        version=version,
        payload=payload,
        examples=tuple(_examples(module, payload)),
        owner=owner_of(event_type),
        summary=_summary(module),
        module=name,
        deprecation=_deprecation(module, event_type),
    )


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:
        raise _Wrong(f"cannot be imported: {describe(error)}") from error


def _constant(module: ModuleType, name: str, kind: type[T]) -> T:
    value: object = vars(module).get(name)
    if value is None:
        raise _Wrong(f"it has no {name}; write {name}: Final = ...")
    if type(value) is not kind:
        raise _Wrong(f"{name} must be a plain {kind.__name__}, not {type(value).__name__}")
    return value


def _check_type(event_type: str, stem: str, package: str) -> None:
    if re.fullmatch(EVENT_TYPE_PATTERN, event_type) is None or len(event_type) > MAX_NAME_LENGTH:
        raise _Wrong(f"{event_type[:80]!r} is no event type; write <context>.<noun>.<verb>, then .v2, .v3 and so on")
    context, *rest = event_type.split(".")
    if owner_of(event_type) != package.rpartition(".")[2]:
        raise _Wrong(
            f"{event_type} belongs to {owner_of(event_type)!r}, the first part of its name, and not to {package}; "
            f"name it {'.'.join([package.rpartition('.')[2], *rest])} or move the module"
        )
    if stem not in {"_".join(rest), "_".join([context, *rest])}:
        raise _Wrong(f"the module of {event_type} must be called {'_'.join(rest)}")


def _payload(module: ModuleType, name: str) -> type[BaseModel]:
    payload: object = vars(module).get(name)
    if not isinstance(payload, type) or not issubclass(payload, BaseModel):
        raise _Wrong(f"it has no payload class {name}; write class {name}(BaseModel)")
    config = payload.model_config
    if not config.get("frozen") or config.get("extra") != "forbid":
        raise _Wrong(f'{name} must be frozen and closed: model_config = ConfigDict(frozen=True, extra="forbid")')
    try:
        schema = payload_schema(payload)
    except PydanticInvalidForJsonSchema as error:
        raise _Wrong(f"{name} cannot be described as JSON Schema: {error.message}") from None
    silent = sorted(_undescribed(schema, name))
    if silent:
        raise _Wrong(f"{', '.join(silent)}: not described; write Field(description=...) for every field")
    return payload


def _undescribed(schema: Schema, name: str) -> Iterator[str]:
    """Fields that nobody has said a word about, of the payload and of the models in it."""
    whole = Place.root(schema)
    parts: dict[str, Schema] = schema.get("$defs", {})
    for owner, part in [(name, schema), *parts.items()]:
        for field, described in part.get("properties", {}).items():
            # The tag of a union explains itself.
            if not whole.at(described).keyword("description") and "const" not in described:
                yield f"{owner}.{field}"


def _examples(module: ModuleType, payload: type[BaseModel]) -> Iterator[dict[str, object]]:
    examples: object = vars(module).get("EXAMPLES")
    if not isinstance(examples, tuple) or not examples:
        raise _Wrong(f"it has no examples; write EXAMPLES: Final = ({payload.__name__}(...),)")
    for number, example in enumerate(cast("tuple[object, ...]", examples), start=1):
        if type(example) is not payload:
            raise _Wrong(f"example {number} is a {type(example).__name__}, not a {payload.__name__}")
        document = example.model_dump(mode="json")
        if document != example.model_dump(mode="json", by_alias=True):
            raise _Wrong(f"{payload.__name__} has aliases that it does not write; set serialize_by_alias=True")
        try:
            encode_payload(document)
        except PayloadError as error:
            raise _Wrong(f"example {number} cannot be published: {describe(error)}") from None
        yield document


def _summary(module: ModuleType) -> str:
    lines = (module.__doc__ or "").strip().splitlines()
    if not lines:
        raise _Wrong("it has no docstring; its first line says what has happened when this event is published")
    return lines[0].strip()


def _deprecation(module: ModuleType, event_type: str) -> Deprecation | None:
    going: object = vars(module).get("DEPRECATION")
    if going is None:
        return None
    if not isinstance(going, Deprecation):
        raise _Wrong(f"DEPRECATION must be a Deprecation(deadline, replaced_by, reason), not {type(going).__name__}")
    if going.replaced_by == event_type:
        raise _Wrong(f"{event_type} cannot be replaced by itself; name its successor, or None")
    return going
