"""Which files changed: the modification times and sizes of every `*.py` below the app's directory, compared.

Asking again and again costs a few milliseconds for a thousand files and needs no package and no limit of the kernel's.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT: Final = "pyvenv.cfg"  # a directory with this file is a virtual environment, whatever it is called
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})

Seen = dict[Path, tuple[int, int]]


class Watch:
    """What changed below these places since it was last asked."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._places = tuple(places)
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """The files that are new, gone or different, in order."""
        before, self._seen = self._seen, self._look()
        return sorted(path for path in before.keys() | self._seen.keys() if before.get(path) != self._seen.get(path))

    def _look(self) -> Seen:
        seen: Seen = {}
        for path in (path for place in self._places for path in _sources(place)):
            with suppress(OSError):  # gone since it was listed
                status = path.stat()
                seen[path] = status.st_mtime_ns, status.st_size
        return seen


def places_of(apps: Iterable[str]) -> tuple[Path, ...]:
    """The directories to watch for these apps (`module:attribute`): where the modules' names begin.

    Nothing is imported. Of an installed package it is the package itself, not everything that is installed.

    Raises:
        ConfigurationError: there is no such module.
    """
    here = str(Path.cwd())
    if here not in sys.path:  # as the worker does
        sys.path.insert(0, here)
    return tuple(dict.fromkeys(map(_place, apps)))


def _place(app: str) -> Path:
    name = app.partition(":")[0].partition(".")[0]
    found = find_spec(name) if name else None  # of a name without dots, so nothing is imported
    # A package without __init__.py has no origin, only places to search.
    origin = next(iter(found.submodule_search_locations or ()), found.origin) if found else None
    if not origin:
        raise ConfigurationError(
            f"there is no module {name!r} (from {app!r}); check the spelling, and start in the directory that the "
            "module's name begins in, or install its package"
        )
    return Path(origin) if Path(origin).parent.name in _INSTALLED else Path(origin).parent


def _sources(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for directory, inner, files in os.walk(place):
        inner[:] = [each for each in inner if not _is_skipped(Path(directory, each))]
        yield from (Path(directory, each) for each in files if each.endswith(".py"))


def _is_skipped(directory: Path) -> bool:
    return directory.name.startswith(".") or directory.name in _SKIPPED or (directory / _ENVIRONMENT).exists()
