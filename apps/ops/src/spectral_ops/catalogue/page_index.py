"""The index: a drawing of who tells whom what, and a line for each page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral_ops.catalogue.markdown import code, fenced, prose, table

if TYPE_CHECKING:
    from spectral_ops.catalogue.entry import Catalogue, EventEntry

_UNHEARD: Final = "unheard"


def index_page(catalogue: Catalogue) -> str:
    """The drawing and the tables."""
    parts = [
        "# Events and protocols\n",
        "An arrow is an event, or several, from the context that publishes to one that handles.\n",
        fenced("mermaid", _graph(catalogue)),
        "## Events\n",
        table(
            ("Event", "Version", "Owner", "Handled by", "What it says"),
            [_event_row(entry) for entry in catalogue.events],
        ),
        "## Protocols\n",
        _protocols(catalogue),
    ]
    return "\n".join(parts)


def _graph(catalogue: Catalogue) -> str:
    """Nodes are numbered: a context may have any name, the drawing's own words included."""
    nodes = {context: f"c{number}" for number, context in enumerate(catalogue.contexts)}
    lines = ["flowchart LR", *(f'    {node}(["{context}"])' for context, node in nodes.items())]
    arrows: dict[tuple[str, str], list[str]] = {}
    for entry in catalogue.events:
        targets = sorted({nodes[reader.context] for reader in entry.readers}) or [_UNHEARD]
        for target in targets:
            arrows.setdefault((nodes[entry.contract.owner], target), []).append(entry.event_type)
    if any(target == _UNHEARD for _, target in arrows):
        lines.append(f'    {_UNHEARD}["nobody here"]')
    # One arrow for all events between two contexts: drawn one by one they would lie on top of each other.
    for (source, target), types in sorted(arrows.items()):
        line = "-.->" if target == _UNHEARD else "-->"
        lines.append(f'    {source} {line}|"{"<br/>".join(types)}"| {target}')
    return "\n".join(lines)


def _event_row(entry: EventEntry) -> tuple[str, ...]:
    contract = entry.contract
    gone = "" if contract.deprecation is None else f" (deprecated, until {contract.deprecation.deadline.isoformat()})"
    return (
        f"[{code(entry.event_type)}]({entry.event_type}.md){gone}",
        str(contract.version),
        code(contract.owner),
        ", ".join(code(reader.handler) for reader in entry.readers) or "nobody here",
        prose(contract.summary),
    )


def _protocols(catalogue: Catalogue) -> str:
    if not catalogue.protocols:
        return "These contexts own none.\n"
    rows = [
        (f"[{code(entry.title)}](protocols/{entry.title}.md)", code(entry.owner), prose(entry.text.partition("\n")[0]))
        for entry in catalogue.protocols
    ]
    return table(("Protocol", "Owner", "What it is for"), rows)
