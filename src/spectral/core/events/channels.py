"""Channel names: how a row's generation and processing class become the channel its workers listen on.

A class is a processing characteristic (hot, cold, llm), never a context. The lengths are chosen so that every
channel fits the 63 bytes Postgres allows: prefix 11, generation up to 19 digits, underscore 1, class 32.
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT_CHANNEL: Final = "outbox_default"
"""The column's default: where rows land that were inserted without a channel."""

PROCESSING_CLASS_PATTERN: Final = r"^[a-z][a-z0-9_]{0,31}$"
MAX_GENERATION: Final = 2**63 - 1

_CLASS: Final = re.compile(PROCESSING_CLASS_PATTERN)


def channel_for(generation: int, processing_class: str | None = None) -> str:
    """The channel of a generation, or of one processing class within it.

    Raises:
        ValueError: the generation is out of range, or the class is not a lower-case name of at most 32 characters.
    """
    if not 0 <= generation <= MAX_GENERATION:
        raise ValueError(f"generation must be between 0 and {MAX_GENERATION}, not {generation}")
    if processing_class is None:
        return f"outbox_gen_{generation}"
    if not _is_class(processing_class):
        raise ValueError(
            f"processing class {str(processing_class)[:40]!r} must be a lower-case name of 1 to 32 characters, "
            "such as 'hot' or 'cold'"
        )
    return f"outbox_gen_{generation}_{processing_class}"


def _is_class(name: object) -> bool:
    return isinstance(name, str) and _CLASS.fullmatch(name) is not None
