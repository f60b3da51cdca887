"""Option groups that validate themselves. The environment is an argument; only the top of a program reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.events.channels import MAX_GENERATION
from spectral.core.events.envelope import CONTEXT_PATTERN, DEFAULT_CONTEXTS
from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

GENERATION_VARIABLE: Final = "SPECTRAL_GENERATION"
CONTEXTS_VARIABLE: Final = "SPECTRAL_CONTEXTS"
_MAX_GENERATION_DIGITS: Final = 40  # some leading zeros are a habit, thousands of digits are an accident


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """What a publisher stamps on every row, and what it lets through.

    `require_transaction=False` lets `publish` run on an idle or autocommit connection: the event is then a
    transaction of its own, tied to nothing, and `publish_many` one transaction for every 5,000.
    """

    generation: int
    contexts: frozenset[str] = DEFAULT_CONTEXTS
    require_transaction: bool = True

    def __post_init__(self) -> None:
        if type(self.generation) is not int or not 0 <= self.generation <= MAX_GENERATION:
            raise ConfigurationError(
                f"generation must be a whole number between 0 and {MAX_GENERATION}, not {self.generation!r}"
            )
        contexts: object = self.contexts
        if isinstance(contexts, str):  # its letters would pass for a set of names
            raise ConfigurationError(f"contexts must be a set of names, not the text {contexts[:40]!r}")
        wrong = sorted(context for context in self.contexts if re.fullmatch(CONTEXT_PATTERN, context) is None)
        if wrong or not self.contexts:
            raise ConfigurationError(
                f"contexts must be lower-case names such as 'orders', not {wrong}; "
                f"set {CONTEXTS_VARIABLE}=orders,billing"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> PublishSettings:
        """Read `SPECTRAL_GENERATION` (required) and `SPECTRAL_CONTEXTS` (comma-separated names).

        Raises:
            ConfigurationError: one is missing or makes no sense; the message says what to set.
        """
        return cls(
            generation=parse_generation(environ.get(GENERATION_VARIABLE)),
            contexts=parse_contexts(environ.get(CONTEXTS_VARIABLE)),
        )


def parse_contexts(text: str | None) -> frozenset[str]:
    """The declared contexts from their variable, comma-separated; the default ones if there is none."""
    return frozenset(name.strip() for name in (text or "").split(",") if name.strip()) or DEFAULT_CONTEXTS


def parse_generation(text: str | None) -> int:
    """The deployment generation from its variable.

    Raises:
        ConfigurationError: it is missing, or not a whole number from 0.
    """
    if text is None or not text.strip():
        raise ConfigurationError(
            f"{GENERATION_VARIABLE} is not set: set it to the generation of this deployment, "
            f"a whole number that grows with every release, such as {GENERATION_VARIABLE}=1"
        )
    cleaned = text.strip()
    # isascii: int() would take other scripts' digits, and underscores
    digits = cleaned.isascii() and cleaned.isdigit() and len(cleaned) <= _MAX_GENERATION_DIGITS
    if not digits or int(cleaned) > MAX_GENERATION:
        raise ConfigurationError(
            f"{GENERATION_VARIABLE}={cleaned[:40]!r} is not a generation: "
            f"set it to a whole number between 0 and {MAX_GENERATION}, such as {GENERATION_VARIABLE}=1"
        )
    return int(cleaned)
