"""Waiting for what gives no signal, and what it means if it does not come."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from spectral.core.events import SpectralError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer = TypeVar("Answer")

_POLL: Final = 0.05
_PATIENCE: Final = 120.0
"""Seconds; what takes longer will not come on a busy machine either."""


class DemoFailedError(SpectralError):
    """The tour could not go on."""


async def until(look: Callable[[], Awaitable[Answer | None]], what: str) -> Answer:
    """Look until the answer is something, and give it.

    Raises:
        DemoFailedError: it was nothing for two minutes.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + _PATIENCE
    while not (answer := await look()):
        if clock() > deadline:
            raise DemoFailedError(f"waited {_PATIENCE:.0f} s in vain until {what}; see the logs")
        await asyncio.sleep(_POLL)
    return answer
