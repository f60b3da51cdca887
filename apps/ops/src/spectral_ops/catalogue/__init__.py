"""The event catalogue: contracts, consumers and protocols as pages for people and documents for other tools.

    collect         contracts, consumers and sources into one value, the `Catalogue`
    render_pages    that value as Markdown, a page per event and per protocol and an index
    compare         those pages with the ones in a directory; write makes them equal
    asyncapi_document, schemas_document, cloudevents_document   that value for other tools

Read in this order: `entry`, `sources`, `scripts`, `collect`, `fields`, `pages`, `directory`, then the exports. The same
contracts give the same bytes, so that a test can compare the committed pages with them.
"""

from spectral_ops.catalogue.asyncapi import Release, asyncapi_document
from spectral_ops.catalogue.cloudevents import as_cloudevent, cloudevents_document
from spectral_ops.catalogue.collect import collect
from spectral_ops.catalogue.directory import Difference, State, compare, write
from spectral_ops.catalogue.entry import Catalogue, EventEntry, ProtocolEntry
from spectral_ops.catalogue.pages import render_pages
from spectral_ops.catalogue.schemas import schema_id, schemas_document

__all__ = [
    "Catalogue",
    "Difference",
    "EventEntry",
    "ProtocolEntry",
    "Release",
    "State",
    "as_cloudevent",
    "asyncapi_document",
    "cloudevents_document",
    "collect",
    "compare",
    "render_pages",
    "schema_id",
    "schemas_document",
    "write",
]
