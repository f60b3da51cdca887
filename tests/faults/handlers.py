"""The handlers of the fault tests. What they do to their process and to their transaction stands in the payload."""

from __future__ import annotations

import asyncio
import ctypes
import os
from datetime import timedelta
from typing import Any, Final, Literal

import psycopg
from pydantic import BaseModel

from spectral.core.events import (
    Consumer,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    TerminalHandlerError,
    Transaction,
)
from spectral.core.events.testing import record_effect
from tests.faults.plan import Plan

TRANSACTIONAL: Final = "worlds.scan.completed"
PLAIN: Final = "worlds.scan.started"
MIXED: Final = "worlds.scan.reviewed"
"""Has a handler of each kind."""


class Task(BaseModel):
    """What a handler is to do after it took effect: nothing, or one of these; for the first `times` attempts only."""

    do: Literal["", "exit", "segfault", "fail", "refuse", "commit", "sleep"] = ""
    times: int = 1_000
    seconds: float = 0.0


class External:
    """Where plain handlers leave their effects: a connection of their own, in autocommit mode."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    async def record(self, context: DeliveryContext, envelope: EventEnvelope, generation: int) -> None:
        """Leave an effect; a connection that was lost is opened anew the next time."""
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await psycopg.AsyncConnection.connect(
                    self._dsn, autocommit=True, application_name="effects"
                )
            key = envelope.idempotency_key
            await record_effect(self._connection, context, key, generation=generation, external=True)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


def consumers(plan: Plan, external: External) -> list[Consumer]:
    """A consumer for each of the plan's contexts, with the same handlers."""
    return [_consumer(context, plan, external) for context in plan.contexts]


def _consumer(context: str, plan: Plan, external: External) -> Consumer:
    retry = RetryPolicy(max_retries=plan.max_retries, base=timedelta(seconds=0.1), cap=timedelta(seconds=1))
    consumer = Consumer(context, retry=retry, timeout=timedelta(seconds=plan.timeout))

    @consumer.on(TRANSACTIONAL, MIXED)
    async def project(task: Task, envelope: EventEnvelope, tx: Transaction, ctx: DeliveryContext) -> None:
        await record_effect(tx, ctx, envelope.idempotency_key, generation=plan.generation)
        if task.do == "commit" and ctx.attempt <= task.times:
            await tx.connection.commit()
        await _do(task, ctx)

    @consumer.on(PLAIN, MIXED)
    async def announce(task: Task, envelope: EventEnvelope, ctx: DeliveryContext) -> None:
        await external.record(ctx, envelope, plan.generation)
        await _do(task, ctx)

    return consumer


async def _do(task: Task, context: DeliveryContext) -> None:
    if context.attempt > task.times:
        return
    match task.do:
        case "exit":
            os._exit(13)
        case "segfault":
            ctypes.string_at(0)
        case "fail":
            raise ConnectionError("the other side is away")
        case "refuse":
            raise TerminalHandlerError("never")
        case "sleep":
            await asyncio.sleep(task.seconds)
        case _:
            pass
