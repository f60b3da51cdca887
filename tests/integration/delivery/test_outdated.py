"""A table is changed under the statements that the driver has prepared for it: no event is charged for that."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from spectral.core.events import ConfigurationError, Consumer, Transaction
from spectral.core.events.delivery import trust
from spectral.core.events.probe import Crashed
from tests.integration.delivery.platform_worker import COMPLETED, NEVER_AGAIN, Bench, Scan, until
from tests.integration.delivery.trusted import ALL_ENDED, effects, trusting

_TIMES = 8  # more often than a statement is sent before the driver prepares it
_CHANGE = "alter table public.wide add column b integer"


@pytest.fixture(autouse=True)
async def wide(bench: Bench) -> None:
    """A table that is about to be changed."""
    await bench.execute("create table public.wide (a integer)")
    await bench.execute("grant all on public.wide to public")


async def write_and_read(tx: Transaction, number: int) -> None:
    """Two statements, so that it is never run beside others; one of them asks for every column."""
    await tx.execute("insert into public.effects (handler, number) values ('project', %s)", [number])
    await tx.execute("insert into public.wide (a) values (%s) returning *", [number])


@pytest.mark.parametrize("enough", [1, 1_000], ids=["together", "behind savepoints"])
async def test_a_table_with_other_columns_costs_nobody_an_attempt(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, enough: int
) -> None:
    monkeypatch.setattr(trust, "ENOUGH", enough)
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_and_read(tx, scan.number)

    async with trusting(bench, platform):
        await bench.publish(*range(_TIMES))
        await until(lambda: bench.all_are("delivered"))
        assert set(runs.values()) == {1}
        await bench.execute(_CHANGE)
        await bench.publish(*range(_TIMES, 2 * _TIMES))
        await until(lambda: bench.value(ALL_ENDED))
    assert await bench.all_are("delivered")
    assert 2 in runs.values(), "the statement had been prepared"
    assert sorted(await effects(bench)) == [("project", number) for number in range(2 * _TIMES)]
    assert await bench.value("select max(attempts) from core.outbox") == 1


async def test_a_brief_handler_that_has_lost_its_trust_goes_on_after_a_change(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside others its statement is prepared anew; by itself it is the driver that has prepared it."""
    monkeypatch.setattr(trust, "ENOUGH", _TIMES)
    bad = 500

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.execute("insert into public.wide (a) values (%s) returning *", [scan.number])
        if scan.number == bad:
            raise ValueError

    async with trusting(bench, platform):
        for first in (0, 100):
            await bench.publish(*range(first, first + 2 * _TIMES))
            await until(lambda: bench.all_are("delivered"))
        await bench.execute(_CHANGE)
        (failing,) = await bench.publish(bad)
        await until(lambda: bench.value(ALL_ENDED))
        await bench.publish(*range(200, 200 + 2 * _TIMES))
        await until(lambda: bench.value(ALL_ENDED))
    assert await bench.status(failing) == "failed"
    assert await bench.value("select count(*) from core.outbox where status = 'failed'") == 1
    assert await bench.value("select count(*) from public.wide where a between 200 and 299") == 2 * _TIMES


async def test_one_who_keeps_the_error_to_himself_is_well_again_with_the_next_attempt(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "ENOUGH", 1_000)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        with suppress(psycopg.Error):
            await write_and_read(tx, scan.number)

    async with trusting(bench, platform):
        await bench.publish(*range(_TIMES))
        await until(lambda: bench.all_are("delivered"))
        await bench.execute(_CHANGE)
        (changed,) = await bench.publish(_TIMES)
        await until(lambda: bench.value(ALL_ENDED))
    assert await bench.status(changed) == "delivered"
    assert (await bench.row(changed))["attempts"] == 2
    assert len(await effects(bench)) == _TIMES + 1


async def test_what_the_server_never_supports_is_tried_once_more_and_then_charged(
    bench: Bench, platform: Consumer
) -> None:
    runs = 0

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(_: Scan, tx: Transaction) -> None:
        nonlocal runs
        runs += 1
        await tx.execute("select 1 from public.wide group by a for update")

    async with bench.running(platform, lanes=1):
        (refused,) = await bench.publish(1)
        await until(lambda: bench.value(ALL_ENDED))
    row: dict[str, Any] = await bench.row(refused)
    assert (row["status"], row["attempts"], runs) == ("failed", 1, 2)
    assert "FeatureNotSupported" in row["last_error"]


@pytest.mark.parametrize("lacking", ["outbox_begin_together", "outbox_begin_one"])
async def test_a_worker_that_is_newer_than_its_schema_says_what_to_do(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    monkeypatch.setattr(trust, "ENOUGH", 1)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_and_read(tx, scan.number)

    async def run_into_it() -> None:
        async with trusting(bench, platform):
            await bench.execute(f"drop function core.{lacking}")
            await bench.publish(1)
            await until(lambda: False)

    with pytest.raises(ExceptionGroup) as died:
        await run_into_it()
    (dead,) = died.value.exceptions
    # Bare, it would say that the worker cannot start, and no supervisor would start it again.
    assert isinstance(dead, ExceptionGroup)
    assert dead.subgroup(ConfigurationError) is not None
    assert ["spectral migrate up" in note.error for note in bench.notes.of(Crashed)] == [True]
