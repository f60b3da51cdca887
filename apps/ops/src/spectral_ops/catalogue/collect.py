"""Brings together what is known of the events: the contracts, the consumers' handlers, the sources of both."""

from __future__ import annotations

import inspect
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.contracts.schema import consumer_schema
from spectral_ops.catalogue.entry import Catalogue, EventEntry, Place, Reader
from spectral_ops.catalogue.fields import fields_of
from spectral_ops.catalogue.protocols import protocols_of
from spectral_ops.catalogue.scripts import functions_publishing, scripts_of
from spectral_ops.catalogue.sources import producers_of, sources_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spectral.core.contracts.contract import Contracts, EventContract
    from spectral.core.events.consumer import Consumer, Handler
    from spectral_ops.catalogue.scripts import Script
    from spectral_ops.catalogue.sources import Source


def collect(
    contracts: Contracts, *, consumers: Iterable[Consumer], packages: Sequence[str], apps: Sequence[str]
) -> Catalogue:
    """The catalogue of these contracts.

    Args:
        contracts: what the packages promise.
        consumers: whoever handles their events.
        packages: the contexts; their protocols are listed, and their sources searched for producers.
        apps: packages whose sources are searched too, for what composes the contexts.

    Raises:
        ConfigurationError: a package is not there.
    """
    sources = sources_of((*packages, *apps))
    scripts = scripts_of(packages)
    everyone = tuple(consumers)
    return Catalogue(
        events=tuple(_event(contract, (sources, scripts), everyone) for contract in contracts.values()),
        protocols=protocols_of(packages, sources),
    )


def _event(
    contract: EventContract, code: tuple[Sequence[Source], Sequence[Script]], consumers: Iterable[Consumer]
) -> EventEntry:
    sources, scripts = code
    constant = f"{contract.module.rpartition('.')[2].upper()}_TYPE"
    readers = (
        _reader(handler, consumer.context)
        for consumer in consumers
        for handler in consumer.handlers_of(contract.event_type)
    )
    return EventEntry(
        contract=contract,
        text=_text_of(contract.module),
        place=Place(contract.module, _file_of(contract.payload)),
        producers=(
            *producers_of(sources, contract.module, contract.payload.__name__, constant),
            *functions_publishing(scripts, contract.event_type),
        ),
        readers=tuple(sorted(readers, key=lambda reader: reader.handler)),
    )


def _reader(handler: Handler, context: str) -> Reader:
    function = _bare(handler.function)
    model = handler.signature.model
    return Reader(
        handler=handler.name,
        context=context,
        place=Place(f"{function.__module__}.{function.__qualname__.replace('<locals>.', '')}", _file_of(function)),
        model=None if model is None else model.__name__,
        reads=() if model is None else tuple(field.path for field in fields_of(consumer_schema(model))),
    )


def _bare(function: Callable[..., object]) -> Callable[..., object]:
    """The function behind arguments that were bound beforehand."""
    while isinstance(function, partial):
        function = function.func
    return function


def _text_of(module: str) -> str:
    """The docstring of a contract's module after its first paragraph, which is the summary."""
    return inspect.cleandoc(getattr(sys.modules.get(module), "__doc__", None) or "").partition("\n\n")[2]


def _file_of(thing: Callable[..., object]) -> Path | None:
    """The file of the module that defines it."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return None if file is None else Path(file)
