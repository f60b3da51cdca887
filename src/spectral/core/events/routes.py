"""Which handlers a delivery goes to, and which lines of rows a worker claims: one line for each context and way to run.

Handlers that take the transaction run one after the other in lanes, the others many at once. Rows of the two are
claimed apart, so that a backlog of one never takes the room of the other. A type with both kinds goes to the lanes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral.core.events.consumer import Handler, Subscription
from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from spectral.core.events.consumer import Consumer
    from spectral.core.events.lease import Delivery


class Limit:
    """How many of a handler may run at once: lanes wait for a place, whoever runs plain handlers asks."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.on_free: list[Callable[[], None]] = []

    @property
    def is_free(self) -> bool:
        """Whether there is a place for somebody who does not wait."""
        return self._free > 0

    def take_now(self) -> None:
        """Take a place that is free."""
        self._free -= 1

    async def __aenter__(self) -> None:
        """Wait for a place."""
        if self._free > 0:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the place and is cancelled all the same
                self.give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Somebody has ended: whoever waits is next."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
        for told in self.on_free:
            told()


@dataclass(frozen=True, slots=True)
class Line:
    """Rows that are claimed together; no types means every type.

    handler_names, handler_types: whose keys are to be looked for, and of which type; a handler of several types is
        there once for each. No types: of every type.
    room: how many of them a worker holds at most, where their handlers say how many may run at once. Without it they
    share the room of their kind.
    """

    context: str
    event_types: tuple[str, ...] | None
    handler_names: tuple[str, ...]
    transactional: bool
    room: int | None = None
    handler_types: tuple[str, ...] = ()


class Routes:
    """From deliveries to handlers; fixed when the worker starts."""

    def __init__(self, lines: Sequence[Line], handlers: dict[tuple[str, str | None], tuple[Handler, ...]]) -> None:
        self.lines = tuple(lines)
        self._handlers = handlers

    @classmethod
    def of(cls, consumers: Sequence[Consumer]) -> Routes:
        """The routes of these consumers, which are frozen by it.

        Raises:
            ConfigurationError: there is nothing to handle, or a context or handler name appears twice.
        """
        twice = [name for name, times in Counter(each.context for each in consumers).items() if times > 1]
        if twice:
            raise ConfigurationError(
                f"two consumers of context {twice[0]!r}: a context's handlers belong to one Consumer, for whoever "
                "claims a row settles it"
            )
        names = Counter(handler.name for consumer in consumers for handler in consumer.handlers)
        if not names:
            raise ConfigurationError("there are no handlers: register one with @consumer.on('<event type>')")
        taken = [name for name, times in names.items() if times > 1]
        if taken:
            raise ConfigurationError(f"two handlers are called {taken[0]!r}: names are unique in the whole system")
        handlers: dict[tuple[str, str | None], tuple[Handler, ...]] = {
            (consumer.context, event_type): consumer.handlers_of(event_type)
            for consumer in (each.freeze() for each in consumers)
            for event_type in consumer.event_types
        }
        return cls([line for consumer in consumers for line in _lines(consumer)], handlers)

    @classmethod
    def catch_all(cls, context: str, handler: Handler) -> Routes:
        """Every event of a context to one handler."""
        return cls([Line(context, None, (handler.name,), handler.transactional)], {(context, None): (handler,)})

    @property
    def contexts(self) -> tuple[str, ...]:
        """The contexts whose rows are claimed."""
        return tuple(dict.fromkeys(line.context for line in self.lines))

    def handlers_for(self, delivery: Delivery) -> tuple[Handler, ...]:
        """The handlers that have not taken effect yet, as far as the claim could see."""
        known = self._handlers.get((delivery.target, delivery.event_type))
        if known is None:
            known = self._handlers.get((delivery.target, None), ())
        if not delivery.handled:
            return known
        return tuple(handler for handler in known if handler.name not in delivery.handled)

    def max_attempts(self, delivery: Delivery) -> int:
        """Executions the most patient of its handlers allows."""
        return max((handler.retry.max_attempts for handler in self.handlers_for(delivery)), default=1)

    def longest_timeout(self) -> timedelta:
        """How long the slowest handler may take."""
        return max(handler.timeout for handlers in self._handlers.values() for handler in handlers)

    def limits(self) -> dict[str, Limit]:
        """For each handler that says how many of it may run at once."""
        return {
            handler.name: Limit(handler.concurrency)
            for handlers in self._handlers.values()
            for handler in handlers
            if handler.concurrency is not None
        }

    def subscriptions(self) -> list[Subscription]:
        """What the database has to know; a handler of every type subscribes to none."""
        return [
            Subscription(context, event_type, handler.name, handler.retry.max_attempts)
            for (context, event_type), handlers in self._handlers.items()
            if event_type is not None
            for handler in handlers
        ]


def _lines(consumer: Consumer) -> list[Line]:
    """One for each way to run; types whose handlers have limits of their own apart, so that nobody hoards them."""
    lines: dict[tuple[bool, frozenset[Handler]], list[str]] = {}
    for event_type in consumer.event_types:
        handlers = consumer.handlers_of(event_type)
        limited = frozenset(handler for handler in handlers if handler.concurrency is not None)
        lines.setdefault((any(handler.transactional for handler in handlers), limited), []).append(event_type)
    made: list[Line] = []
    for (transactional, limited), types in sorted(lines.items(), key=lambda each: not each[0][0]):
        names, of_types = zip(
            *((each.name, kind) for kind in types for each in consumer.handlers_of(kind)), strict=True
        )
        room = min((handler.concurrency or 1 for handler in limited), default=None)
        made.append(Line(consumer.context, tuple(types), names, transactional, room, of_types))
    return made
