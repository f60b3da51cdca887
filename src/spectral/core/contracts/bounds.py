"""Limits on plain values: does everything that keeps the writer's limits keep the reader's?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from spectral.core.contracts.wording import DIGITS, NOW, PLACES, TIME_LIMITS, ZONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spectral.core.contracts.nodes import Branch


def looser(written: Mapping[str, Any], read: Mapping[str, Any], *, sets: bool) -> Iterator[str]:
    """Every limit of the reader that the writer does not keep, in words. `sets`: whether uniqueness is one."""
    yield from _bounds(written, read)
    yield from _text(written, read)
    yield from _time(written, read)
    if "multipleOf" in read and not _is_multiple(written.get("multipleOf"), read["multipleOf"]):
        yield f"multipleOf {_shown(written, 'multipleOf')}, not {read['multipleOf']}"
    if sets and read.get("uniqueItems") and not written.get("uniqueItems"):
        yield "items may repeat"


def keeps(value: object, branch: Branch) -> bool:
    """Whether this one value may stand where the branch is read."""
    if branch.value is not None:
        return branch.value[0] == value and isinstance(branch.value[0], bool) == isinstance(value, bool)
    limits = branch.keywords
    if isinstance(value, str):
        pattern = limits.get("pattern")
        return (
            "format" not in limits
            and _within(len(value), limits.get("minLength"), limits.get("maxLength"))
            and (pattern is None or re.search(pattern, value) is not None)
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        step = limits.get("multipleOf")
        return (
            _within(value, limits.get("minimum"), limits.get("maximum"))
            and ("exclusiveMinimum" not in limits or value > limits["exclusiveMinimum"])
            and ("exclusiveMaximum" not in limits or value < limits["exclusiveMaximum"])
            and (step is None or value % step == 0)
        )
    return True


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _bounds(written: Mapping[str, Any], read: Mapping[str, Any]) -> Iterator[str]:
    for least, above, most, below in _PAIRS:
        lower, wanted = _lower(written, least, above), _lower(read, least, above)
        if wanted is not None and (lower is None or lower < wanted):
            yield f"{least} {_shown(written, least, above)}, not {_shown(read, least, above)}"
        upper, wanted = _upper(written, most, below), _upper(read, most, below)
        if wanted is not None and (upper is None or upper > wanted):
            yield f"{most} {_shown(written, most, below)}, not {_shown(read, most, below)}"


def _lower(limits: Mapping[str, Any], least: str, above: str) -> tuple[float, int] | None:
    """The lower bound; one that is excluded itself is a little higher."""
    found = [(limits[name], rank) for rank, name in enumerate((least, above)) if name in limits]
    return max(found, default=None)


def _upper(limits: Mapping[str, Any], most: str, below: str) -> tuple[float, int] | None:
    """The upper bound; one that is excluded itself is a little lower."""
    found = [(limits[name], -rank) for rank, name in enumerate((most, below)) if name in limits]
    return min(found, default=None)


def _text(written: Mapping[str, Any], read: Mapping[str, Any]) -> Iterator[str]:
    for name in ("pattern", "contentEncoding", "contentMediaType", "contentSchema"):
        if name in read and written.get(name) != read[name]:
            yield f"{name} {_shown(written, name)}, not {read[name]!r}"
    form = written.get("format")
    if "format" in read and read["format"] != form and read["format"] not in _PART_OF.get(str(form), ()):
        yield f"format {_shown(written, 'format')}, not {read['format']}"


def _time(written: Mapping[str, Any], read: Mapping[str, Any]) -> Iterator[str]:
    # A schema that an older release wrote does not tell the zone.
    zone = written.get(ZONE)
    if zone is not None and read.get(ZONE, "any") not in {"any", zone}:
        yield f"zone {zone}, not {read[ZONE]}"
    if zone is None and "date-time" in {written.get("format"), read.get("format")}:
        return
    for name in (NOW, *TIME_LIMITS):
        if name in read and written.get(name) != read[name]:
            yield f"{name.removeprefix('x-')} {_shown(written, name)}, not {read[name]}"


def _is_multiple(step: float | None, wanted: float) -> bool:
    return step is not None and step % wanted == 0


def _shown(limits: Mapping[str, Any], *names: str) -> str:
    found = [
        f"{limits[name]}" + (" (excluded)" if name.startswith("exclusive") else "") for name in names if name in limits
    ]
    return found[0] if found else "none"


_PAIRS: Final = (
    ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    ("minLength", "", "maxLength", ""),
    ("minItems", "", "maxItems", ""),
    ("minProperties", "", "maxProperties", ""),
    ("", "", DIGITS, ""),
    ("", "", PLACES, ""),
)
_PART_OF: Final = {
    **{f"uuid{number}": frozenset({"uuid"}) for number in (1, 3, 4, 5, 6, 7, 8)},
    "integer": frozenset({"number", "decimal"}),
    "decimal": frozenset({"number"}),
}
"""Formats whose every text is one of another format too."""
