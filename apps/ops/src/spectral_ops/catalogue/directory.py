"""The pages in a directory: how they differ from what they should be, and making them equal."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from spectral_ops.catalogue.pages import MARK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


class State(StrEnum):
    """How a page stands."""

    MISSING = "missing"
    DIFFERENT = "different"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Difference:
    """One page that is not as it should be."""

    page: str
    state: State


def compare(directory: Path, pages: Mapping[str, str]) -> tuple[Difference, ...]:
    """What is not as it should be, by name. A file that the catalogue did not write is nobody's business."""
    found: list[Difference] = []
    for name, text in pages.items():
        file = directory / name
        if not file.is_file():
            found.append(Difference(name, State.MISSING))
        elif file.read_bytes() != text.encode():
            found.append(Difference(name, State.DIFFERENT))
    for file in directory.rglob("*.md"):
        name = file.relative_to(directory).as_posix()
        if name not in pages and file.read_text(encoding="utf-8", errors="replace").startswith(MARK):
            found.append(Difference(name, State.STALE))
    return tuple(sorted(found, key=lambda each: each.page))


def write(directory: Path, pages: Mapping[str, str], differences: Iterable[Difference]) -> None:
    """Write what is missing or different, remove what is stale."""
    for each in differences:
        file = directory / each.page
        if each.state is State.STALE:
            file.unlink()
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pages[each.page].encode())
