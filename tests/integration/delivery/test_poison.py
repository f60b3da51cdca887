"""Errors and payloads made to hurt whoever looks at them: one row's end, never the worker's, never its neighbours'."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from spectral.core.events import Consumer, EventEnvelope, Transaction
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    NEVER_AGAIN,
    Bench,
    Scan,
    until,
    write_effect,
)


class Measured(BaseModel):
    """A view of a payload with a float in it."""

    number: int = 0
    weight: float = 0


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class SpikyError(Exception):
    """Whose every unknown attribute raises something else than AttributeError."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"do not ask for {name}")


class NotTextError(Exception):
    def __str__(self) -> Any:  # noqa: ANN401  that is the fault
        return 7  # noqa: PLE0307  as above


def nested_without_end() -> BaseException:
    error: Exception = OSError("inmost")
    for _ in range(3_000):
        error = ExceptionGroup("more", [error])
    return error


def circular() -> BaseException:
    one, other = OSError("one"), OSError("other")
    one.__cause__, other.__cause__ = other, one
    return one


ERRORS: dict[str, Callable[[], BaseException]] = {
    "huge": lambda: OSError("x" * 10_000_000),
    "huge in other scripts": lambda: OSError("\U0001f4a9" * 100_000),
    "NUL and newlines": lambda: OSError("a\x00b\r\nc\u2028d"),
    "lone surrogates": lambda: OSError("a\ud800b"),
    "cannot be printed": UnspeakableError,
    "prints a number": NotTextError,
    "spiky": SpikyError,
    "a name of two lines": lambda: type("Two\nLines", (Exception,), {})("x"),
    "a name of another script": lambda: type("Fehlerüäö\U0001f4a9", (Exception,), {})("x"),
    "nested without end": nested_without_end,
    "circular": circular,
    "empty": lambda: Exception(),
}


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("kind", ERRORS)
async def test_no_error_is_too_strange_to_settle_its_row(bench: Bench, kind: str, *, transactional: bool) -> None:
    platform = Consumer("platform", retry=NEVER_AGAIN)

    def fail() -> None:
        error = ERRORS[kind]()
        raise error

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            if scan.number == 2:
                fail()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            if scan.number == 2:
                fail()

    ids = await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    rows = [await bench.row(each) for each in ids]
    assert [row["status"] for row in rows] == ["delivered", "failed", "delivered"]
    error = rows[1]["last_error"]
    assert len(error.encode()) <= 4_096
    assert error.isprintable()


@pytest.mark.parametrize("transactional", [True, False])
async def test_a_handler_that_cancels_itself_on_its_last_line_has_failed_and_is_charged(
    bench: Bench, platform: Consumer, *, transactional: bool
) -> None:
    """As some libraries for timeouts do when they are a moment late."""

    def cancel_myself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            await write_effect(tx, "project", scan.number)
            if scan.number == 2:
                cancel_myself()
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            if scan.number == 2:
                cancel_myself()

    ids = await bench.publish(1, 2, 3)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
        (new,) = await bench.publish(4)
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", new))
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]


def deep(levels: int) -> str:
    return '{"number": 2, "deep": ' + "[" * levels + "]" * levels + "}"


PAYLOADS = {
    "an integer of 5,001 digits": '{"number": 1' + "0" * 5_000 + "}",
    "deeper than any parser goes": deep(12_000),
    "a float beyond floats": '{"number": 2, "weight": 1e400}',
    "no number": '{"number": "two"}',
    "nothing": "{}",
}


@pytest.fixture
async def unchecked(bench: Bench) -> Bench:
    """A database that lets every payload in."""
    await bench.execute("alter table core.outbox disable trigger outbox_complete")
    await bench.execute("set max_stack_depth = '7MB'")
    return bench


async def raw(bench: Bench, payload: str) -> UUID:
    return await bench.insert(payload=payload, idempotency_key=payload[:30])


@pytest.mark.parametrize("kind", ["an integer of 5,001 digits", "deeper than any parser goes", "no number", "nothing"])
@pytest.mark.parametrize("transactional", [True, False])
async def test_a_payload_that_does_not_fit_the_model_sends_its_row_alone_to_the_dlq(
    unchecked: Bench, platform: Consumer, kind: str, *, transactional: bool
) -> None:
    seen: Counter[int] = Counter()

    if transactional:

        @platform.on(COMPLETED)
        async def project(scan: Scan, tx: Transaction) -> None:
            seen[scan.number] += 1
            await write_effect(tx, "project", scan.number)
    else:

        @platform.on(COMPLETED)
        async def mail(scan: Scan) -> None:
            seen[scan.number] += 1

    before = await raw(unchecked, '{"number": 1}')
    bad = await raw(unchecked, PAYLOADS[kind])
    after = await raw(unchecked, '{"number": 3}')
    await unchecked.drain(platform, lanes=1)
    assert [await unchecked.status(each) for each in (before, bad, after)] == ["delivered", "failed", "delivered"]
    assert seen == {1: 1, 3: 1}
    row = await unchecked.row(bad)
    assert (row["attempts"], len(row["last_error"]) < 300) == (1, True)


@pytest.mark.parametrize("kind", ["an integer of 5,001 digits", "deeper than any parser goes"])
async def test_a_payload_that_cannot_be_read_sends_its_row_alone_to_the_dlq(
    unchecked: Bench, platform: Consumer, kind: str
) -> None:
    seen: list[EventEnvelope] = []

    @platform.on(COMPLETED)
    async def mail(envelope: EventEnvelope) -> None:
        seen.append(envelope)

    bad = await raw(unchecked, PAYLOADS[kind])
    good = await raw(unchecked, '{"number": 3}')
    await unchecked.drain(platform)
    assert [await unchecked.status(each) for each in (bad, good)] == ["failed", "delivered"]
    assert [each.payload for each in seen] == [{"number": 3}]
    assert (await unchecked.row(bad))["last_error"].startswith("UndecodablePayloadError: platform.mail: ")


async def test_a_number_beyond_floats_is_not_handed_over_as_infinity(unchecked: Bench, platform: Consumer) -> None:
    seen: list[float] = []

    @platform.on(COMPLETED)
    async def mail(measured: Measured) -> None:
        seen.append(measured.weight)

    bad = await raw(unchecked, PAYLOADS["a float beyond floats"])
    good = await raw(unchecked, '{"number": 3, "weight": 1.5}')
    await unchecked.drain(platform)
    assert [await unchecked.status(each) for each in (bad, good)] == ["failed", "delivered"]
    assert seen == [1.5]


@pytest.mark.parametrize("moment", ["-infinity", "0044-03-15 BC"])
async def test_a_row_with_a_time_that_no_program_can_read_does_not_stop_the_others(
    bench: Bench, platform: Consumer, moment: str
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await bench.insert(payload='{"number": 1}', idempotency_key="1")
    await bench.insert(payload='{"number": 2}', idempotency_key="2", created_at=moment)
    await bench.insert(payload='{"number": 3}', idempotency_key="3")
    async with bench.running(platform):
        await until(lambda: bench.value("select count(*) >= 2 from core.outbox where status = 'delivered'"), within=10)
    assert {("project", 1), ("project", 3)} <= set(await bench.effects())


async def test_a_payload_is_never_in_the_error_of_its_row(bench: Bench) -> None:
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise AssertionError(scan)

    canary = "canary-8472"
    event_id = await bench.insert(payload=json.dumps({"number": canary, canary: 1}), idempotency_key="x")
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert row["status"] == "failed"
    assert canary not in row["last_error"]
