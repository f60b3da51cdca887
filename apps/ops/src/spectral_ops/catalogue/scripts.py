"""Producers that are not Python: SQL functions of a context that name an event type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spectral_ops.catalogue.entry import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FUNCTION: Final = re.compile(r"create\s+(?:or\s+replace\s+)?(function|procedure)\s+([\w.]+)", re.IGNORECASE)
_COMMENT: Final = re.compile(r"--[^\n]*")


@dataclass(frozen=True, slots=True)
class Script:
    """A file of SQL, without its comments."""

    file: Path
    sql: str


def scripts_of(packages: Iterable[str]) -> tuple[Script, ...]:
    """Every SQL file in these packages, in the order of their names."""
    found = {file for package in packages for file in _files(package)}
    return tuple(Script(file, _COMMENT.sub("", file.read_text(encoding="utf-8"))) for file in sorted(found))


def _files(package: str) -> Iterator[Path]:
    spec = find_spec(package)
    for location in (spec and spec.submodule_search_locations) or ():
        yield from Path(location).rglob("*.sql")


def functions_publishing(scripts: Iterable[Script], event_type: str) -> tuple[Place, ...]:
    """The functions that name this type as a literal: it counts for the function whose head stands last before it."""
    found: set[Place] = set()
    for script in scripts:
        heads = list(_FUNCTION.finditer(script.sql))
        for head, following in zip_longest(heads, heads[1:]):
            body = script.sql[head.end() : following and following.start()]
            if f"'{event_type}'" in body:
                found.add(Place(f"{head[1].lower()} {head[2]}", script.file))
    return tuple(sorted(found))
