"""A peer's environment: a virtual environment of its own under `.cache/peers`, made when it is first needed.

A peer that cannot be installed here is absent, and the report says why; it is never left out silently.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.roster import Contestant

HOME: Final = Path(".cache") / "peers"
_NEWER_PYTHONS: Final = (13, 12, 14)
_ASK_VERSION: Final = "import sys; print(*sys.version_info[:2])"
_LAST_WORDS: Final = 300


class ContestantError(Exception):
    """A contestant cannot take part, or failed; the message is for the report."""


@dataclass(frozen=True, slots=True)
class Environments:
    """Where the environments are."""

    home: Path = HOME

    def python_of(self, contestant: Contestant) -> str:
        """The interpreter that runs a contestant.

        Raises:
            ContestantError: it cannot be installed here.
        """
        if not contestant.packages:
            return sys.executable
        place = self.home / contestant.name
        python, stamp = place / "bin" / "python", place / "packages.txt"
        wanted = "\n".join(contestant.packages)
        if not stamp.exists() or stamp.read_text() != wanted:
            sys.stderr.write(f"installing {contestant.name}\n")
            _install(place, contestant)
            stamp.write_text(wanted)
        return str(python.absolute())


def _install(place: Path, contestant: Contestant) -> None:
    interpreter = _interpreter(contestant.python)
    if interpreter is None:
        wanted = ".".join(map(str, contestant.python))
        raise ContestantError(f"needs Python {wanted} or newer, and none was found here")
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    _run(interpreter, "-m", "venv", str(place))
    _run(str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", *contestant.packages)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  an interpreter, and pip
    if done.returncode != 0:
        raise ContestantError(f"cannot be installed: {done.stderr.strip()[-_LAST_WORDS:]}")


def _interpreter(oldest: tuple[int, int]) -> str | None:
    return next((each for each in _candidates() if _version(each) >= oldest), None)


def _candidates() -> Iterator[str]:
    yield sys.executable
    for minor in _NEWER_PYTHONS:
        if found := shutil.which(f"python3.{minor}"):
            yield found
        yield from map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")))


def _version(interpreter: str) -> tuple[int, ...]:
    done = subprocess.run([interpreter, "-c", _ASK_VERSION], capture_output=True, text=True, check=False)  # noqa: S603  as above
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else (0,)
