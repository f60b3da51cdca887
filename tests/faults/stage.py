"""Where a fault test plays: a database with the schema and a table of effects, publishers that keep a ledger, a crew of
worker processes, and the oracle, which has the last word."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg

from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.testing import EFFECTS_SCHEMA, Ledger, Verdict, check, settle_down
from tests.faults.crew import Crew, WorkerProcess
from tests.faults.handlers import TRANSACTIONAL
from tests.faults.plan import SHORT_TIMES, Plan

SETTLED_WITHIN = timedelta(seconds=60)


class Stage:
    """One play."""

    def __init__(self, dsn: str, crew: Crew) -> None:
        self.dsn = dsn
        self.ledger = Ledger()
        self._crew = crew
        self._numbers = itertools.count(1)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(EFFECTS_SCHEMA.encode())

    def start(self, name: str = "worker", *, times: dict[str, float] | None = None, **changes: Any) -> WorkerProcess:  # noqa: ANN401  fields of Plan
        """Start a worker with short times; its name is made unique, for its life is known by it."""
        plan = Plan(dsn=self.dsn, effects_dsn=self.dsn, name=f"{name}-{next(self._numbers)}")
        return self._crew.start(replace(plan, times={**SHORT_TIMES, **(times or {})}, **changes))

    def publish(
        self,
        count: int = 1,
        event_type: str = TRANSACTIONAL,
        *,
        generation: int = 1,
        key: str | None = None,
        target: str | None = "platform",
        payload: Mapping[str, object] | None = None,
    ) -> list[EventEnvelope]:
        """Publish events in one transaction that commits."""
        envelopes = [envelope_of(event_type, payload, key=key, target=target) for _ in range(count)]
        with psycopg.connect(self.dsn) as connection, self.publishing(connection, envelopes, generation=generation):
            pass
        return envelopes

    @contextmanager
    def publishing(
        self, connection: psycopg.Connection[Any], envelopes: list[EventEnvelope], *, generation: int = 1
    ) -> Iterator[None]:
        """Publish, do what the block does, and commit; whoever looks into the ledger knows how far it came."""
        attempts = [self.ledger.attempt_of(envelope, generation=generation) for envelope in envelopes]
        shared = publishing(PublishSettings(generation=generation))
        rolled_back = True
        try:
            with connection.transaction():
                publisher_for(connection, shared).publish_many(envelopes)
                yield
                rolled_back = False  # from here on a lost connection may have committed
        except BaseException:
            for attempt in attempts:
                (attempt.failed if rolled_back else attempt.unknown)()
            raise
        for attempt in attempts:
            attempt.ok()

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Ask the database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def one(self, query: str, *parameters: object) -> Any:  # noqa: ANN401  whatever the column holds
        """Ask the database for one value."""
        ((value,),) = self.rows(query, *parameters)
        return value

    def statuses(self) -> dict[str, int]:
        """How many rows there are in each state."""
        return dict(self.rows("select status, count(*) from core.outbox group by 1"))

    def settle(self, within: timedelta = SETTLED_WITHIN) -> Verdict:
        """Wait until everything has come to its end, and ask the oracle."""
        asyncio.run(settle_down(self.dsn, within))
        return asyncio.run(check(self.dsn, self.ledger))

    def assert_clean(self, delivered: int, dead_lettered: int = 0, within: timedelta = SETTLED_WITHIN) -> Verdict:
        """Nothing happened that must not, and this is what did."""
        verdict = self.settle(within)
        verdict.assert_clean(at_least=1)
        assert (verdict.delivered, verdict.dead_lettered) == (delivered, dead_lettered), self._failures()
        return verdict

    def _failures(self) -> list[tuple[Any, ...]]:
        return self.rows(
            "select id, event_type, attempts, last_error from core.outbox where status = 'failed' limit 10"
        )


def envelope_of(
    event_type: str,
    payload: Mapping[str, object] | None = None,
    *,
    key: str | None = None,
    target: str | None = "platform",
) -> EventEnvelope:
    """An event for the handlers of the fault tests."""
    more = {} if key is None else {"idempotency_key": key}
    return EventEnvelope(event_type=event_type, source="worlds", target=target, payload=dict(payload or {}), **more)
