"""Two snapshots and the consumers that are known: what has changed, and whom it breaks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from spectral.core.contracts.compatibility import Change, ChangeKind, compare
from spectral.core.contracts.consumers import Problem, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from spectral.core.contracts.schema import ContractSnapshot
    from spectral.core.events.consumer import Consumer, Handler


@dataclass(frozen=True, slots=True)
class ReviewedChange:
    """A change, the handlers it breaks, and those that have the field in their model; of those that are known.

    A field that only gets narrower breaks whoever reads it: a model tells what can be read, not what is waited for.
    """

    change: Change
    breaks: tuple[str, ...]
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """What has changed, breaking changes first; and handlers that cannot read events which are published already."""

    changes: tuple[ReviewedChange, ...]
    doubts: tuple[Problem, ...]

    @property
    def compatible(self) -> bool:
        """Whether the producers have only added."""
        return all(each.change.kind is not ChangeKind.BREAKING for each in self.changes)


def review(
    old: Mapping[str, ContractSnapshot],
    new: Mapping[str, ContractSnapshot],
    *,
    consumers: Sequence[Consumer] = (),
    today: date | None = None,
) -> Review:
    """Compare the snapshots, and tell which handlers every breaking change breaks."""
    changes = [_reviewed(change, old, new, consumers) for change in compare(old, new, today=today)]
    return Review(tuple(changes), tuple(_doubts(old, new, consumers)))


def _handlers(consumers: Sequence[Consumer], event_type: str) -> Iterator[Handler]:
    for consumer in consumers:
        yield from consumer.handlers_of(event_type)


def _reviewed(
    change: Change,
    old: Mapping[str, ContractSnapshot],
    new: Mapping[str, ContractSnapshot],
    consumers: Sequence[Consumer],
) -> ReviewedChange:
    handlers = list(_handlers(consumers, change.event_type))
    if change.kind is not ChangeKind.BREAKING or change.event_type not in old:
        return ReviewedChange(change, ())
    if change.event_type not in new:
        everybody = tuple(each.name for each in handlers)
        return ReviewedChange(change, everybody, everybody)
    if not change.path:
        return ReviewedChange(change, ())
    before, after = old[change.event_type], new[change.event_type]
    readers = tuple(each.name for each in handlers if _reads(each, change, before))
    broken = tuple(each.name for each in handlers if change.path in _paths(each, change.event_type, after, before))
    return ReviewedChange(change, readers if change.narrows else broken, readers)


def _reads(handler: Handler, change: Change, contract: ContractSnapshot) -> bool:
    """Whether the handler's model has the field: without it, the two would disagree about it."""
    names = _names(change.path)
    if not names:  # the payload is itself a mapping: whoever has a model reads its entries
        return handler.signature.model is not None
    less: ContractSnapshot = {**contract, "schema": _without(contract["schema"], names)}
    return bool(_paths(handler, change.event_type, less, contract))


def _paths(
    handler: Handler, event_type: str, contract: ContractSnapshot, before: ContractSnapshot | None = None
) -> set[str]:
    """The fields that the handler's model and the contract disagree about, and have not before."""
    model = handler.signature.model
    if model is None:
        return set()
    known: set[str] = _paths(handler, event_type, before) if before else set()
    return {each.path for each in check_schema(handler.name, model, event_type, contract["schema"])} - known


def _names(path: str) -> list[str]:
    """The names that lead to a field; of items and of entries, to that which holds them."""
    names = [each.partition("[")[0] for each in path.split(".")]
    while names and names[-1] in _ENTRIES:
        names.pop()
    return names


def _without(schema: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The schema of a payload that is the same but for this field."""
    whole: dict[str, Any] = copy.deepcopy(dict(schema))
    _drop(whole, names, whole.get("$defs", {}))
    return whole


def _drop(
    node: dict[str, Any], names: Sequence[str], shared: Mapping[str, Any], seen: frozenset[str] = frozenset()
) -> None:
    """Drop the field below the node. What is referred to is copied into its place, for others refer to it too."""
    if "$ref" in node:
        name = str(node["$ref"]).removeprefix("#/$defs/")
        if name in seen:  # lists of lists of itself: no name stands between them, so the field is not further in
            return
        seen |= {name}
        del node["$ref"]
        node.update(copy.deepcopy(shared[name]))
    for part in [each for key in _INSIDE for each in node.get(key, ())] + [node.get("items")]:
        if isinstance(part, dict):
            _drop(cast("dict[str, Any]", part), names, shared, seen)
    first, *rest = names
    fields: dict[str, Any] = node.get("properties", {})
    below = node.get("additionalProperties") if first == "*" else fields.get(first)
    if rest and isinstance(below, dict):
        _drop(cast("dict[str, Any]", below), rest, shared)
    elif not rest and fields.pop(first, None) is not None:
        node["required"] = [each for each in node.get("required", ()) if each != first]


def _doubts(
    old: Mapping[str, ContractSnapshot], new: Mapping[str, ContractSnapshot], consumers: Sequence[Consumer]
) -> Iterator[Problem]:
    """Handlers that fit the new contract and not the old one, whose events may still be delivered or replayed."""
    for event_type in sorted(old.keys() & new.keys()):
        for handler in _handlers(consumers, event_type):
            model = handler.signature.model
            if model is None:
                continue
            now = _paths(handler, event_type, new[event_type])
            for each in check_schema(handler.name, model, event_type, old[event_type]["schema"]):
                if each.breaks and each.path not in now:
                    what = f"{each.what}, in events published before this change"
                    yield replace(each, what=what, remedy="give it a default in the model", breaks=False)


_ENTRIES: Final = ("*", "(key)")  # how a path names the entries of a mapping and their keys
_INSIDE: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
