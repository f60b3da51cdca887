"""`run_handler`: one handler on one envelope, with everything it asks for."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest
from pydantic import BaseModel, ValidationError

from spectral.core.events import (
    ConfigurationError,
    Consumer,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    Transaction,
    UnknownContextError,
)
from spectral.core.events.failure import TransactionMisusedError
from spectral.core.events.testing import published, run_handler

SQL = psycopg.AsyncConnection[Any]


class Scan(BaseModel):
    number: int


def scan(**payload: object) -> EventEnvelope:
    return EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform", payload=payload)


async def note(scan: Scan, tx: Transaction) -> None:
    await tx.execute("insert into notes values (%s)", [scan.number])
    if scan.number < 0:
        raise ValueError(scan.number)


async def numbers(connection: SQL) -> list[int]:
    return [number for (number,) in await (await connection.execute("select number from notes")).fetchall()]


@pytest.fixture
async def notes(async_connection: SQL) -> SQL:
    await async_connection.execute("create table notes (number integer)")
    await async_connection.commit()
    return async_connection


async def test_a_handler_is_given_what_it_asks_for() -> None:
    seen: list[object] = []

    async def look(scan: Scan, envelope: EventEnvelope, delivery: DeliveryContext) -> None:
        seen.extend((scan.number, envelope, delivery.handler_name, delivery.attempt, delivery.generation))

    event = scan(number=1, more="than it looks at")
    await run_handler(look, event, attempt=3, generation=2)
    assert seen == [1, event, "platform.look", 3, 2]


async def test_a_registered_handler_is_found_by_name_and_by_function_with_its_options() -> None:
    platform = Consumer("platform")
    seen: list[tuple[str, int]] = []

    @platform.on("worlds.scan.completed", name="platform.projector", retry=RetryPolicy(max_retries=1))
    async def project(delivery: DeliveryContext) -> None:
        seen.append((delivery.handler_name, delivery.max_attempts))

    await run_handler("platform.projector", scan(), consumer=platform)
    await run_handler(project, scan(), consumer=platform)
    assert seen == [("platform.projector", 2)] * 2


async def test_a_name_nobody_has_is_refused() -> None:
    platform = Consumer("platform")
    platform.on("worlds.scan.completed")(note)
    with pytest.raises(ConfigurationError, match=r"'platform' has no handler 'platform\.x'; it has platform\.note"):
        await run_handler("platform.x", scan(), consumer=platform)


async def test_an_event_that_no_worker_would_give_it_is_refused() -> None:
    platform = Consumer("platform")
    platform.on("worlds.scan.started")(note)
    with pytest.raises(ConfigurationError, match=r"note is not registered for worlds\.scan\.completed"):
        await run_handler(note, scan(), consumer=platform)


async def test_writes_belong_to_the_transaction_of_the_test(notes: SQL) -> None:
    async with notes.transaction(force_rollback=True):
        await run_handler(note, scan(number=1), tx=notes)
        assert await numbers(notes) == [1]
    assert await numbers(notes) == []


async def test_without_a_transaction_of_the_test_they_are_committed(notes: SQL, database: str) -> None:
    await run_handler(note, scan(number=1), tx=notes)
    async with await psycopg.AsyncConnection.connect(database) as other:
        assert await numbers(other) == [1]


async def test_a_handler_that_fails_leaves_nothing_and_its_error_comes_out(notes: SQL) -> None:
    async with notes.transaction():
        with pytest.raises(ValueError, match="-1"):
            await run_handler(note, scan(number=-1), tx=notes)
        assert await numbers(notes) == []


async def test_a_payload_that_does_not_fit_is_the_workers_error(notes: SQL) -> None:
    with pytest.raises(ValidationError):
        await run_handler(note, scan(number="many"), tx=notes)


async def test_a_handler_that_swallows_an_sql_error_has_failed(notes: SQL) -> None:
    async def careless(tx: Transaction) -> None:
        await tx.execute("insert into notes values (1)")
        try:
            await tx.execute("select 1 / 0")
        except psycopg.Error:
            return

    with pytest.raises(TransactionMisusedError, match=r"platform\.careless returned although an SQL statement"):
        await run_handler(careless, scan(), tx=notes)
    assert await numbers(notes) == []


async def test_a_handler_that_asks_for_the_transaction_needs_a_connection() -> None:
    with pytest.raises(ConfigurationError, match="asks for the Transaction: give run_handler a connection"):
        await run_handler(note, scan(number=1))


async def test_what_it_publishes_is_in_its_transaction(async_connection: SQL) -> None:
    billing = Consumer("billing")

    @billing.on("worlds.scan.completed")
    async def invoice(tx: Transaction) -> None:
        await tx.publish(EventEnvelope(event_type="billing.invoice.sent", source="billing"))

    await run_handler(invoice, scan(), consumer=billing, tx=async_connection, generation=2)
    assert [each.event_type for each in await published(async_connection)] == ["billing.invoice.sent"]
    rows = await (await async_connection.execute("select generation, channel from core.outbox")).fetchall()
    assert rows == [(2, "outbox_gen_2")]


async def test_it_publishes_to_the_contexts_it_is_told_of(async_connection: SQL) -> None:
    async def tell(tx: Transaction) -> None:
        await tx.publish(EventEnvelope(event_type="platform.scan.noted", source="platform", target="audit"))

    with pytest.raises(UnknownContextError, match=r"run_handler\(..., contexts=...\)"):
        await run_handler(tell, scan(), tx=async_connection)
    await run_handler(tell, scan(), tx=async_connection, contexts=["audit"])
    assert [each.target for each in await published(async_connection)] == ["audit"]


async def test_what_a_handler_leaves_behind_cannot_write_any_more(notes: SQL) -> None:
    left: list[Transaction] = []

    async def leave(tx: Transaction) -> None:
        left.append(tx)

    await run_handler(leave, scan(), tx=notes)
    with pytest.raises(TransactionMisusedError):
        await left[0].execute("insert into notes values (1)")


async def test_statements_put_together_by_the_driver_s_tools_are_refused_with_advice(notes: SQL) -> None:
    async def compose(tx: Transaction) -> None:
        statement = psycopg.sql.SQL("insert into {} values (1)").format(psycopg.sql.Identifier("notes"))
        await tx.execute(cast("Any", statement))

    with pytest.raises(TypeError, match=r"as text, not Composed; for psycopg.sql use tx.connection.execute"):
        await run_handler(compose, scan(), tx=notes)
