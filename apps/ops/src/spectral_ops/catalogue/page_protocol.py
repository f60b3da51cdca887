"""The page of one protocol: what can be asked, who answers, who puts the two together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral_ops.catalogue.markdown import code, fenced, place_link, prose

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from spectral_ops.catalogue.entry import Place, ProtocolEntry


def protocol_page(entry: ProtocolEntry, *, page: Path, root: Path) -> str:
    """All that is known of the protocol."""
    parts = [
        f"# {entry.title}\n",
        *([f"{prose(entry.text)}\n"] if entry.text else []),
        f"- Owner: {code(entry.owner)}, which answers it",
        f"- Protocol: {place_link(entry.place, page, root)}\n",
        "## Methods\n",
    ]
    for method in entry.methods:
        parts.append(f"### {method.name}\n")
        parts.append(fenced("text", method.signature))
        # Docstrings keep their shape: indented parts such as "Raises:" would otherwise run together.
        parts.append(_described(method.text))
    parts += ["## Implemented by\n", _places(entry.implementers, page, root)]
    parts += ["## Composed by\n", _places(entry.composers, page, root)]
    return "\n".join(parts)


def _described(text: str) -> str:
    """The prose of a docstring as it is; its sections (Args, Raises) as text."""
    told, _, rest = text.partition("\n\n")
    while rest and not rest.splitlines()[0].endswith(":"):
        more, _, rest = rest.partition("\n\n")
        told = f"{told}\n\n{more}"
    return "\n".join([f"{prose(told)}\n" if told else "", fenced("text", rest) if rest else ""]).strip("\n") + "\n"


def _places(places: Iterable[Place], page: Path, root: Path) -> str:
    lines = [f"- {place_link(each, page, root)}" for each in places]
    return "\n".join(lines or ["Nothing in these packages."]) + "\n"
