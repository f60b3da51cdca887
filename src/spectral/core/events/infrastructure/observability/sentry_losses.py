"""Reports that Sentry was given and lost by itself: its queue was full, a limit was reached, the network was away.

Its transport is told of each by `record_lost_event`, to say so to its server with the next report that gets through.
That may be none for days, so they are counted here too. What the program itself has thrown away (`before_send`, a
sample rate) comes without the report, and is not counted: it was meant. Nor is a report that the server refuses with
429, of which the transport is not told; those that are held back because of it are.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

_FOR_WANT_OF_ROOM: Final = frozenset({"queue_overflow", "ratelimit_backoff"})
_HOOK: Final = "record_lost_event"
_known: Final[WeakSet[LostReports]] = WeakSet()


class LostReports:
    """Counts them, for the transports it follows.

    logger: as whose reports they are known; the program's own are not counted.
    """

    def __init__(self, logger: str) -> None:
        self._logger = logger
        self.forget()
        _known.add(self)

    def forget(self) -> None:
        """What the parent has lost, in the child of a fork."""
        self.dropped = 0
        self.failed = 0

    def follow(self, transport: object) -> None:
        """Count what this one loses from now on; once, however often it is asked to."""
        tell: Any = getattr(transport, _HOOK, None)
        if tell is None:
            return

        def record_lost_event(*arguments: Any, **options: Any) -> None:  # noqa: ANN401  whatever the SDK passes
            with suppress(Exception):  # it is Sentry's thread, and Sentry's to count
                self._count(*arguments, **options)
            tell(*arguments, **options)

        # At once, for several outlets may ask. One that has no room for it, or has been given another, keeps its own.
        with suppress(TypeError, AttributeError):
            vars(transport).setdefault(_HOOK, record_lost_event)

    def _count(
        self,
        reason: str,
        data_category: str | None = None,  # noqa: ARG002  as the SDK calls it
        item: Any = None,  # noqa: ANN401  as above
        **_: object,
    ) -> None:
        event = None if item is None else item.get_event()
        if event is None or event.get("logger") != self._logger:
            return
        if reason in _FOR_WANT_OF_ROOM:
            self.dropped += 1
        else:
            self.failed += 1


def _after_fork() -> None:
    for losses in list(_known):
        losses.forget()


os.register_at_fork(after_in_child=_after_fork)
