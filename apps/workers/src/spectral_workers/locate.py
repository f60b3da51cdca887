"""Finds consumers by name: `module:attribute`, as ASGI servers name applications."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spectral.core.events.consumer import Consumer
from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

_NAME: Final = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*)")
_SHOWN: Final = 5


def locate_consumers(names: Iterable[str]) -> tuple[Consumer, ...]:
    """The consumers that these names stand for, each once; modules are found from the current directory too.

    Raises:
        ConfigurationError: a name leads to no consumer; the message says what to write instead.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found = dict.fromkeys(consumer for name in names for consumer in _consumers(name))
    return tuple(found)


def _consumers(name: str) -> tuple[Consumer, ...]:
    parts = _NAME.fullmatch(name)
    if parts is None:
        raise ConfigurationError(
            f"{name[:80]!r} names no consumer: write module, colon and variable, such as 'shop.events:billing'"
        )
    module = _module(parts["module"], name)
    value: object = module
    for step in parts["attribute"].split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            raise ConfigurationError(
                f"{parts['module']} has no {parts['attribute']!r}; {_instead(module, parts['module'])}"
            ) from None
    given = tuple(value) if isinstance(value, list | tuple) else (value,)
    consumers = tuple(each for each in given if isinstance(each, Consumer))
    if not given or len(consumers) < len(given):
        kind = type(value).__name__ if given else f"empty {type(value).__name__}"
        raise ConfigurationError(
            f"{name} is not a Consumer, nor a list of them, but a value of type {kind}; "
            f"{_instead(module, parts['module'])}"
        )
    return consumers


def _module(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error  # something that it imports is missing
        raise ConfigurationError(
            f"there is no module {error.name!r} (from {name!r}); check the spelling, and start the worker in the "
            "directory that the module's name begins in, or install its package"
        ) from None
    except ConfigurationError:
        raise  # a consumer or handler that makes no sense; the message says which
    except Exception as error:
        raise _broken(module, error) from error


def _broken(module: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{module} cannot be imported: {describe(error)}; correct it, SPECTRAL_DEBUG=1 shows where"
    )


def _instead(module: ModuleType, module_name: str) -> str:
    """What to write instead."""
    names = [name for name, value in vars(module).items() if isinstance(value, Consumer)][:_SHOWN]
    if not names:
        return f"define one there: consumer = Consumer('<context>'), and name it {module_name}:consumer"
    return "it has " + ", ".join(f"{module_name}:{name}" for name in names) + "; name one of these"
