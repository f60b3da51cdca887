"""Additive only: what has changed between two snapshots, and whether anybody who reads the events can be hurt.

Within an event type a producer only adds. Everything else is a new type with the suffix `.v2`, beside the old one,
which gets a deadline. So a narrower field is breaking like a wider one: whoever wrote a reader for the values that are
taken away waits for them, and events of before, which hold them, are replayed to readers that were written since.
`compare` is a pure function of two snapshots and a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from spectral.core.contracts.contract import family_of, successor_of
from spectral.core.contracts.fitting import PROMISE, Misfit, Reason, misfits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spectral.core.contracts.schema import ContractSnapshot, DeprecationSnapshot


class ChangeKind(StrEnum):
    """Whether a change can hurt, in the order in which they are told."""

    BREAKING = "breaking"
    ADDITIVE = "additive"
    COSMETIC = "cosmetic"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `path` is the field's, empty for the type itself; `remedy` says what to do instead.

    `narrows`: everything that is written now could be written before.
    """

    kind: ChangeKind
    event_type: str
    path: str
    what: str
    why: str
    remedy: str = ""
    narrows: bool = False


def compare(
    old: Mapping[str, ContractSnapshot], new: Mapping[str, ContractSnapshot], *, today: date | None = None
) -> list[Change]:
    """What has changed, breaking changes first; without a day, no deadline has passed."""
    changes = [
        change for event_type in sorted(old.keys() | new.keys()) for change in _of_type(event_type, old, new, today)
    ]
    ranks = list(ChangeKind)
    return sorted(changes, key=lambda each: ranks.index(each.kind))


def is_breaking(changes: list[Change]) -> bool:
    """Whether any of them breaks somebody."""
    return any(each.kind is ChangeKind.BREAKING for each in changes)


def _of_type(
    event_type: str, old: Mapping[str, ContractSnapshot], new: Mapping[str, ContractSnapshot], today: date | None
) -> Iterator[Change]:
    if event_type not in new:
        yield _removed(event_type, old, new, today)
    elif event_type not in old:
        yield from _added(event_type, new)
    else:
        before, after = old[event_type], new[event_type]
        shape = list(_shape(event_type, before, after))
        yield from shape
        yield from _version(event_type, before["version"], after["version"], changed=bool(shape))
        yield from _deadline(event_type, before["deprecation"], after["deprecation"], today)
        if not shape and before["schema"] != after["schema"]:
            yield Change(
                ChangeKind.COSMETIC, event_type, "", "is described in other words", "the payloads are the same"
            )
        if before["owner"] != after["owner"]:
            yield Change(ChangeKind.COSMETIC, event_type, "", f"belongs to {after['owner']} now", _NOT_PAYLOAD)


def _removed(
    event_type: str, old: Mapping[str, ContractSnapshot], new: Mapping[str, ContractSnapshot], today: date | None
) -> Change:
    going = old[event_type]["deprecation"]
    if going is not None and today is not None and _day(going) < today:
        return Change(
            ChangeKind.ADDITIVE, event_type, "", "is gone, as announced", f"its deadline was {going['deadline']}"
        )
    alike = [
        name for name in new.keys() - old.keys() if new[name]["schema"].get("properties") == _fields(old[event_type])
    ]
    renamed = f"; {' or '.join(sorted(alike))} has the same fields: was it renamed?" if alike else ""
    why = "it was not deprecated" if going is None else f"it was promised until {going['deadline']}"
    return Change(
        ChangeKind.BREAKING,
        event_type,
        "",
        f"is gone{renamed}",
        f"its consumers would wait for ever: {why}",
        f"put the module back with DEPRECATION = Deprecation(deadline=..., replaced_by=...), publish "
        f"{successor_of(event_type)} beside it, and remove it after the deadline",
    )


def _fields(contract: ContractSnapshot) -> object:
    return contract["schema"].get("properties")


def _added(event_type: str, new: Mapping[str, ContractSnapshot]) -> Iterator[Change]:
    yield Change(ChangeKind.ADDITIVE, event_type, "", "is new", "nobody reads it yet")
    family, number = family_of(event_type)
    for other in new:
        if family_of(other)[0] == family and family_of(other)[1] < number and new[other]["deprecation"] is None:
            yield Change(
                ChangeKind.BREAKING,
                other,
                "",
                f"is succeeded by {event_type} and has no deadline",
                "its consumers must know until when they have to move",
                f'write DEPRECATION = Deprecation(deadline=..., replaced_by="{event_type}", reason=...)',
            )


def _shape(event_type: str, before: ContractSnapshot, after: ContractSnapshot) -> Iterator[Change]:
    hurts = misfits(after["schema"], before["schema"], PROMISE)
    gains = misfits(before["schema"], after["schema"], PROMISE)
    added = [each.path for each in gains if each.reason is Reason.ABSENT]
    for each in hurts:
        yield _hurt(event_type, each, added)
    told = {each.path for each in hurts}
    for each in gains:
        # A field that turned into something else is told as what it breaks, and that is enough.
        if each.path not in told:
            yield _gain(event_type, each)


def _hurt(event_type: str, misfit: Misfit, added: list[str]) -> Change:
    beside = [path for path in added if path.rpartition(".")[0] == misfit.path.rpartition(".")[0]]
    match misfit.reason:
        case Reason.ABSENT:
            renamed = f" (renamed to {' or '.join(beside)}?)" if beside else ""
            what, why = f"is gone{renamed}", "consumers that read it get nothing"
            remedy = "keep writing it, under its old name too"
        case Reason.UNSURE:
            what, why = "may be absent", "consumers that count on it fail when it is"
            remedy = "keep it without a default"
        case _:
            what, why = misfit.what, "consumers cannot read the values that are new"
            remedy = "add a field for the new values and leave this one as it was"
    return Change(
        ChangeKind.BREAKING, event_type, misfit.path, what, why, f"{remedy}; or publish {successor_of(event_type)}"
    )


def _gain(event_type: str, misfit: Misfit) -> Change:
    match misfit.reason:
        case Reason.ABSENT:
            return Change(
                ChangeKind.ADDITIVE, event_type, misfit.path, "is new", "consumers ignore what they do not know"
            )
        case Reason.UNSURE:
            return Change(ChangeKind.ADDITIVE, event_type, misfit.path, "is always written now", "a promise was added")
        case _:
            return Change(
                ChangeKind.BREAKING,
                event_type,
                misfit.path,
                f"is narrower (before: {misfit.what})",
                "events published before are still replayed with the other values, and consumers may rely on those",
                f"leave it as it was and add a field for the narrower values; or publish {successor_of(event_type)}",
                narrows=True,
            )


def _version(event_type: str, before: int, after: int, *, changed: bool) -> Iterator[Change]:
    if after < before:
        yield Change(
            ChangeKind.BREAKING,
            event_type,
            "",
            f"went back from version {before} to {after}",
            "a version says which shape an event has; this one is taken",
            f"set its version to {before + 1 if changed else before}",
        )
    elif changed and after == before:
        yield Change(
            ChangeKind.BREAKING,
            event_type,
            "",
            f"has another shape and is still version {before}",
            "nobody can tell which shape an event has",
            f"set its version to {before + 1}",
        )
    elif after > before and not changed:
        yield Change(
            ChangeKind.COSMETIC, event_type, "", f"is version {after} now, with the shape of {before}", _NOT_PAYLOAD
        )


def _deadline(
    event_type: str, before: DeprecationSnapshot | None, after: DeprecationSnapshot | None, today: date | None
) -> Iterator[Change]:
    if before is not None and after is not None and _day(after) < _day(before) and not (today and _day(before) < today):
        yield Change(
            ChangeKind.BREAKING,
            event_type,
            "",
            f"goes earlier than announced: {after['deadline']}, not {before['deadline']}",
            "its consumers count on the day that was announced",
            f"keep the deadline {before['deadline']}, or a later one",
        )
    elif before is None and after is not None and today is not None and _day(after) <= today:
        # Otherwise the next change could remove the type, "as announced", and nobody would have had any time.
        yield Change(
            ChangeKind.BREAKING,
            event_type,
            "",
            f"is deprecated with a deadline that leaves no time: {after['deadline']}",
            "its consumers must know beforehand until when they have to move",
            f"set a deadline after {today.isoformat()}",
        )
    elif before != after:
        now = "is no longer deprecated" if after is None else f"is deprecated, until {after['deadline']}"
        yield Change(ChangeKind.COSMETIC, event_type, "", now, _NOT_PAYLOAD)


def _day(going: DeprecationSnapshot) -> date:
    return date.fromisoformat(going["deadline"])


_NOT_PAYLOAD: Final = "the payloads are the same"
