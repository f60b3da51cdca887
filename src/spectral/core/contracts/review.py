"""Two snapshots and the consumers that are known: what has changed, and whom it breaks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spectral.core.contracts.compatibility import Change, ChangeKind, compare
from spectral.core.contracts.consumers import Problem, check_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from spectral.core.contracts.schema import ContractSnapshot
    from spectral.core.events.consumer import Consumer, Handler


@dataclass(frozen=True, slots=True)
class ReviewedChange:
    """A change, and the handlers it breaks, of those that are known."""

    change: Change
    breaks: tuple[str, ...]


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
    changes = [
        ReviewedChange(change, tuple(_broken(change, old, new, consumers))) for change in compare(old, new, today=today)
    ]
    return Review(tuple(changes), tuple(_doubts(old, new, consumers)))


def _handlers(consumers: Sequence[Consumer], event_type: str) -> Iterator[Handler]:
    for consumer in consumers:
        yield from consumer.handlers_of(event_type)


def _broken(
    change: Change,
    old: Mapping[str, ContractSnapshot],
    new: Mapping[str, ContractSnapshot],
    consumers: Sequence[Consumer],
) -> Iterator[str]:
    if change.kind is not ChangeKind.BREAKING:
        return
    for handler in _handlers(consumers, change.event_type):
        if change.event_type not in new:
            yield handler.name
        elif change.path and change.event_type in old:
            before, after = (_paths(handler, change.event_type, each[change.event_type]) for each in (old, new))
            if change.path in after - before:
                yield handler.name


def _paths(handler: Handler, event_type: str, contract: ContractSnapshot) -> set[str]:
    """The fields that the handler's model and the contract disagree about."""
    model = handler.signature.model
    if model is None:
        return set()
    return {each.path for each in check_schema(handler.name, model, event_type, contract["schema"])}


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
