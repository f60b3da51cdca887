"""The one relation that everything here is judged by: can the reader read all that the writer may write?

Between two versions of a producer the new one writes and the old one stands for everybody who reads; between a producer
and a consumer the roles are plain. Fields that the reader does not know are ignored, as consumers do. Where a union
would have to be reasoned about as a whole, the answer errs on the side of "no".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from spectral.core.contracts.bounds import keeps, looser
from spectral.core.contracts.nodes import Branch, Kind, Place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Reason(StrEnum):
    """Why something does not fit."""

    ABSENT = "absent"  # the reader knows a field that is never written
    UNSURE = "unsure"  # the reader counts on a field that need not be written
    WIDER = "wider"  # a value may be written that cannot be read
    CLOSED = "closed"  # the reader refuses fields that it does not know


@dataclass(frozen=True, slots=True)
class Misfit:
    """One place where they do not fit. `needed`: the reader cannot do without the field."""

    path: str
    reason: Reason
    what: str
    needed: bool = True


@dataclass(frozen=True, slots=True)
class Reading:
    """How strictly it is read: is a closed model a misfit, and is a set one that reads a list?"""

    closed: bool
    sets: bool


PROMISE: Final = Reading(closed=False, sets=True)
"""What was promised before; readers of it ignore what they do not know, though the producer's class is closed."""

CONSUMER: Final = Reading(closed=True, sets=False)
"""A consumer's model: it must be open, and pydantic reads repeated items into a set."""


def misfits(written: Mapping[str, Any], read: Mapping[str, Any], reading: Reading) -> list[Misfit]:
    """Every place where the reader cannot read what may be written; none if it fits."""
    return _Fitting(reading).places(Place.root(written), Place.root(read), "")


class _Fitting:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        # Pairs that are being looked at: one that comes up again inside itself fits if the rest of it does.
        self._open: set[tuple[int, int]] = set()

    def places(self, written: Place, read: Place, path: str) -> list[Misfit]:
        pair = (written.identity, read.identity)
        if pair in self._open:
            return []
        self._open.add(pair)
        try:
            return list(self._union(written, read, path))
        finally:
            self._open.discard(pair)

    def _union(self, written: Place, read: Place, path: str) -> Iterator[Misfit]:
        readers = read.branches()
        if any(each.kind is Kind.ANY for each in readers):
            return
        strange: list[Branch] = []
        writers = written.branches()
        for branch in writers:
            related = [each for each in readers if _is_kind_of(branch, each)]
            if branch.value is not None:
                if not any(keeps(branch.value[0], each) for each in related):
                    strange.append(branch)
                continue
            whole = [each for each in related if each.value is None]
            if whole:
                # A single model may have fields of one value too; there they tell no variants apart.
                is_variant = len([each for each in writers if each.kind is Kind.OBJECT]) > 1
                yield from self._closest(branch, whole, (written, read), path, is_variant=is_variant)
            elif not _is_covered(branch, related):
                strange.append(branch)
        if strange:
            yield Misfit(path, Reason.WIDER, _in_words(strange, writers, readers))

    def _closest(
        self, branch: Branch, readers: Sequence[Branch], at: tuple[Place, Place], path: str, *, is_variant: bool
    ) -> list[Misfit]:
        """The misfits with the reader's branch that has the fewest; with a tagged union, that of the same tag."""
        same = [each for each in readers if not _tagged_apart(branch, each, at)]
        if len(readers) == 1 and not is_variant:
            same = list(readers)
        if not same:
            shown = ", ".join(
                f"{name} {' or '.join(map(repr, values))}" for name, values in _tags(branch, at[0]).items()
            )
            return [Misfit(path, Reason.WIDER, f"may be another variant ({shown})")]
        return min((list(self._branch(branch, each, at, path)) for each in same), key=len)

    def _branch(self, written: Branch, read: Branch, at: tuple[Place, Place], path: str) -> Iterator[Misfit]:
        for difference in looser(written.keywords, read.keywords, sets=self._reading.sets):
            yield Misfit(path, Reason.WIDER, difference)
        if written.kind is Kind.ARRAY:
            yield from self._array(written.keywords, read.keywords, at, path)
        elif written.kind is Kind.OBJECT:
            yield from self._fields(written.keywords, read.keywords, at, path)
            yield from self._others(written.keywords, read.keywords, at, path)

    def _array(
        self, written: Mapping[str, Any], read: Mapping[str, Any], at: tuple[Place, Place], path: str
    ) -> Iterator[Misfit]:
        firsts: Sequence[object] = written.get("prefixItems", ())
        expected: Sequence[object] = read.get("prefixItems", ())
        count = max(len(firsts), len(expected))
        longest = written.get("maxItems", count + 1)
        for index in range(min(count, longest)):
            one = firsts[index] if index < len(firsts) else written.get("items", True)
            other = expected[index] if index < len(expected) else read.get("items", True)
            yield from self.places(at[0].at(one), at[1].at(other), f"{path}[{index}]")
        if longest > count:
            rest = at[0].at(written.get("items", True)), at[1].at(read.get("items", True))
            yield from self.places(*rest, f"{path}[]")

    def _fields(
        self, written: Mapping[str, Any], read: Mapping[str, Any], at: tuple[Place, Place], path: str
    ) -> Iterator[Misfit]:
        """The fields that the reader knows."""
        fields: Mapping[str, object] = written.get("properties", {})
        promised = written.get("required", ())
        others = _others_of(written)
        for name, wanted in read.get("properties", {}).items():
            needed = name in read.get("required", ())
            here = _join(path, name)
            if name not in fields and others is False:
                yield Misfit(here, Reason.ABSENT, "is never written", needed)
                continue
            if needed and name not in promised:
                yield Misfit(here, Reason.UNSURE, "need not be written")
            yield from self.places(at[0].at(fields.get(name, others)), at[1].at(wanted), here)

    def _others(
        self, written: Mapping[str, Any], read: Mapping[str, Any], at: tuple[Place, Place], path: str
    ) -> Iterator[Misfit]:
        """Fields that the reader does not know by name: entries of a mapping, or unknown ones, which are ignored."""
        patterns: Mapping[str, object] = read.get("patternProperties", {})
        wanted = read.get("additionalProperties", not patterns)
        if wanted is False and self._reading.closed and "properties" in read:
            yield Misfit(path, Reason.CLOSED, "refuses unknown fields")
        entries = [(_join(path, name), name, part) for name, part in written.get("properties", {}).items()]
        entries += [(_join(path, "*"), name, part) for name, part in written.get("patternProperties", {}).items()]
        if _others_of(written) is not False:
            entries.append((_join(path, "*"), None, _others_of(written)))
        for here, name, part in entries:
            if name in read.get("properties", {}):
                continue
            expected = patterns.get(name or "", wanted)
            if expected is False and patterns:
                yield Misfit(here, Reason.WIDER, f"keys need not match {' or '.join(patterns)}")
            elif not isinstance(expected, bool):
                yield from self.places(at[0].at(part), at[1].at(expected), here)
        if "propertyNames" in read:
            # A key is a string, and pydantic does not say so.
            names = at[0].at(_as_string(written.get("propertyNames", {}))), at[1].at(_as_string(read["propertyNames"]))
            yield from self.places(*names, _join(path, "(key)"))


def _as_string(names: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": Kind.STRING.value, **names}


def _others_of(written: Mapping[str, Any]) -> object:
    """What a writer may put under names of its own choice; False: nothing.

    Pydantic writes no unknown fields of a model, whether its schema says so or not.
    """
    return written.get("additionalProperties", "properties" not in written and "patternProperties" not in written)


def _is_kind_of(written: Branch, read: Branch) -> bool:
    return written.kind is read.kind or (written.kind is Kind.INTEGER and read.kind is Kind.NUMBER)


def _is_covered(branch: Branch, values: Sequence[Branch]) -> bool:
    """Whether single values make up the whole kind."""
    single = {each.value[0] for each in values if each.value is not None and branch.kind is Kind.BOOLEAN}
    return (branch.kind is Kind.NULL and bool(values)) or single == {True, False}


def _tags(branch: Branch, at: Place) -> dict[str, list[object]]:
    """The fields that have fixed values, by which the variants of a union are told apart."""
    if branch.kind is not Kind.OBJECT:
        return {}
    found = {name: at.at(part).branches() for name, part in branch.keywords.get("properties", {}).items()}
    return {
        name: [each.value[0] for each in branches if each.value is not None]
        for name, branches in found.items()
        if branches and all(each.value is not None for each in branches)
    }


def _tagged_apart(written: Branch, read: Branch, at: tuple[Place, Place]) -> bool:
    known = _tags(read, at[1])
    return any(
        not [each for each in values if each in known.get(name, values)]
        for name, values in _tags(written, at[0]).items()
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _in_words(strange: Sequence[Branch], writers: Sequence[Branch], readers: Sequence[Branch]) -> str:
    new = ", ".join(dict.fromkeys(each.label for each in strange))
    known = ", ".join(dict.fromkeys(each.label for each in readers)) or "nothing"
    return f"is {new}, not {known}" if len(strange) == len(writers) else f"may be {new}, not only {known}"
