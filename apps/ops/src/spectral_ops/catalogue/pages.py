"""The pages of the catalogue as Markdown. What is written by hand stands in README.md, which is never touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral_ops.catalogue.page_event import event_page
from spectral_ops.catalogue.page_index import index_page
from spectral_ops.catalogue.page_protocol import protocol_page

if TYPE_CHECKING:
    from pathlib import Path

    from spectral.core.retention import Registry
    from spectral_ops.catalogue.entry import Catalogue

MARK: Final = "<!-- Written by `spectral catalog build`; change the contract and run it again. -->\n"
"""The first line of every page; a page with it that no contract asks for any more is stale."""


def render_pages(catalogue: Catalogue, *, directory: Path, root: Path, retention: Registry) -> dict[str, str]:
    """Every page by its path below the directory. Links lead to files below `root`; others are only named."""
    pages = {"index.md": index_page(catalogue)}
    for event in catalogue.events:
        name = f"{event.event_type}.md"
        pages[name] = event_page(event, catalogue, page=directory / name, root=root, retention=retention)
    for protocol in catalogue.protocols:
        name = f"protocols/{protocol.title}.md"
        pages[name] = protocol_page(protocol, page=directory / name, root=root)
    return {name: f"{MARK}\n{text.strip()}\n" for name, text in pages.items()}
