"""A handler's parameters, filled by annotation: what each is given is decided once, when the module is imported."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from pydantic import BaseModel

from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.protocols import DeliveryContext, Transaction

if TYPE_CHECKING:
    from collections.abc import Callable


class Source(Enum):
    """Where an argument comes from."""

    PAYLOAD = auto()
    ENVELOPE = auto()
    TRANSACTION = auto()
    CONTEXT = auto()


@dataclass(frozen=True, slots=True)
class Signature:
    """The keyword arguments of a handler and where they come from; `model` is the consumer's view of the payload."""

    arguments: tuple[tuple[str, Source], ...]
    model: type[BaseModel] | None

    @property
    def transactional(self) -> bool:
        """Whether the handler asks for the transaction."""
        return any(source is Source.TRANSACTION for _, source in self.arguments)

    @property
    def wants_context(self) -> bool:
        """Whether the handler asks how the event comes to it."""
        return any(source is Source.CONTEXT for _, source in self.arguments)


_KINDS: Final = {EventEnvelope: Source.ENVELOPE, Transaction: Source.TRANSACTION, DeliveryContext: Source.CONTEXT}
_WANTED: Final = "a pydantic model of the payload, EventEnvelope, Transaction or DeliveryContext"


def read_signature(function: Callable[..., object]) -> Signature:
    """What the function's parameters ask for.

    Raises:
        ConfigurationError: it is no async function, or has a parameter that nothing can be given to.
    """
    where = name_of(function)
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"handler {where} must be an async function; for blocking code write "
            "`async def` and `await asyncio.to_thread(...)` inside"
        )
    hints = _hints(function, where)
    arguments: list[tuple[str, Source]] = []
    model: type[BaseModel] | None = None
    for parameter in inspect.signature(function).parameters.values():
        source = _source_of(parameter, hints, where)
        if source is None:
            continue
        if source in [known for _, known in arguments]:
            raise ConfigurationError(
                f"handler {where} asks twice for the same thing ({source.name.lower()}); one parameter is enough"
            )
        arguments.append((parameter.name, source))
        if source is Source.PAYLOAD:
            model = hints[parameter.name]
    return Signature(tuple(arguments), model)


def name_of(function: Callable[..., object]) -> str:
    """The function as a message names it."""
    bare = _bare(function)
    return f"{getattr(bare, '__module__', '?')}.{getattr(bare, '__qualname__', bare)}"


def _bare(function: Callable[..., object]) -> Callable[..., object]:
    """The function behind arguments that were bound beforehand."""
    while isinstance(function, partial):
        function = function.func
    return function


def _hints(function: Callable[..., object], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(_bare(function))
    except NameError as unknown:
        raise ConfigurationError(
            f"handler {where}: the annotation {unknown.name!r} is not known at run time; import it at the top of the "
            "module, not under TYPE_CHECKING or inside a function"
        ) from None
    except Exception as broken:  # noqa: BLE001  an annotation is code, and may fail in any way
        raise ConfigurationError(
            f"handler {where}: an annotation cannot be read ({type(broken).__name__}: {broken}); correct it"
        ) from None


def _source_of(parameter: inspect.Parameter, hints: dict[str, Any], where: str) -> Source | None:
    """Where the argument comes from; none for one that has a default and asks for nothing we know."""
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise ConfigurationError(f"handler {where}: parameter {parameter} cannot be filled by name; write a plain one")
    hint: object = hints.get(parameter.name)
    for kind, source in _KINDS.items():
        if hint is kind:
            return source
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        if hint.model_config.get("extra") == "forbid":
            raise ConfigurationError(
                f"handler {where}: {hint.__name__} forbids unknown fields, so it would fail as soon as the producer "
                'adds one; remove extra="forbid"'
            )
        return Source.PAYLOAD
    if parameter.default is not inspect.Parameter.empty:
        return None
    raise ConfigurationError(
        f"handler {where}: parameter {parameter.name!r} is annotated with {_shown(hint)}; "
        f"a handler can ask for {_WANTED}"
    )


def _shown(hint: object) -> str:
    return "nothing" if hint is None else getattr(hint, "__name__", str(hint))
