"""Markdown as GitHub draws it: tables, code, links to the files of the project."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from spectral_ops.catalogue.entry import Place

_ESCAPES: Final = {"<": "&lt;", "[": "\\["}
_OUTSIDE_CODE: Final = re.compile(r"`[^`]+`|[<\[]")  # a piece of code is taken whole, and left as it is


def code(text: str) -> str:
    """The text as code; a backtick inside needs a longer fence."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def prose(text: str) -> str:
    """What an author wrote in a docstring or a description: nothing in it opens a tag or a link, code stays code."""
    return _OUTSIDE_CODE.sub(lambda found: found[0] if found[0][0] == "`" else _ESCAPES[found[0]], text)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped, inside code too."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def fenced(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def place_link(place: Place, page: Path, root: Path) -> str:
    """The name of a piece of code, linked to its file where that is part of the project.

    To the file, not the line: a page must not change because a line was added elsewhere.
    """
    if place.file is None:
        return code(place.name)
    file = place.file.resolve()
    if not file.is_relative_to(root) or not page.is_relative_to(root) or _is_installed(file.relative_to(root)):
        return code(place.name)
    return f"[{code(place.name)}]({os.path.relpath(file, page.parent).replace(os.sep, '/')})"


def _is_installed(file: Path) -> bool:
    return "site-packages" in file.parts
