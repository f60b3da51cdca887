"""Publishers under fire: threads that publish on and on, lose their connection, come back, and keep a ledger."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from tests.faults.handlers import MIXED, PLAIN, TRANSACTIONAL
from tests.faults.stage import Stage, envelope_of

KINDS: Final = (TRANSACTIONAL, PLAIN, MIXED)


class ChangedItsMindError(Exception):
    """A publisher that rolls back."""


@dataclass
class Publisher:
    """Publishes a few events at a time until it is stopped; now and then it rolls back, repeats a key or broadcasts."""

    stage: Stage
    seed: int
    generations: tuple[int, ...] = (1,)
    pause: float = 0.01
    payloads: tuple[dict[str, object], ...] = ({},)
    stopped: threading.Event = field(default_factory=threading.Event)
    committed: int = 0

    def run(self) -> None:
        """Publish on and on."""
        dice = random.Random(self.seed)  # noqa: S311  dice, not secrets
        connection: psycopg.Connection[Any] | None = None
        while not self.stopped.wait(dice.uniform(0, 2 * self.pause)):
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self.stage.dsn, connect_timeout=5)
                self._publish(connection, dice)
            except ChangedItsMindError:
                continue
            except psycopg.Error:
                if connection is not None:
                    connection.close()
        if connection is not None:
            connection.close()

    def _publish(self, connection: psycopg.Connection[Any], dice: random.Random) -> None:
        keys = [f"key {dice.randrange(1_000_000)}"] * 2 if dice.random() < 0.1 else [None] * dice.randint(1, 4)
        target = None if dice.random() < 0.1 else "platform"
        kind, payload = dice.choice(KINDS), dice.choice(self.payloads)
        envelopes = [envelope_of(kind, payload, key=key, target=target) for key in keys]
        with self.stage.publishing(connection, envelopes, generation=dice.choice(self.generations)):
            if dice.random() < 0.1:
                raise ChangedItsMindError
        self.committed += len(envelopes)


@contextmanager
def publishing_on(*publishers: Publisher) -> Iterator[None]:
    """Have them publish while the block runs."""
    threads = [threading.Thread(target=each.run, daemon=True) for each in publishers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for each in publishers:
            each.stopped.set()
        for thread in threads:
            with suppress(RuntimeError):
                thread.join(30)
