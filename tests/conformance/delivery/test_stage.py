"""The stages are what they say, and a worker that takes another way is found out."""

from __future__ import annotations

import pytest

from spectral.core.events import Consumer
from tests.conformance.delivery.stage import Stage
from tests.integration.delivery.platform_worker import COMPLETED, Bench, Scan, until


@pytest.fixture
def quiet(platform: Consumer) -> Consumer:
    """A consumer that does nothing."""

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    return platform


async def test_the_outbox_lies_as_the_stage_says(stage: Stage, quiet: Consumer, layout: str) -> None:
    kinds = await stage.value("select array_agg(distinct relkind) from pg_class where oid = 'core.outbox'::regclass")
    assert kinds == ["p" if layout == "months" else "r"]
    async with stage.running(quiet):
        await stage.publish(1)
        await until(lambda: stage.all_are("delivered"))
    own = await stage.value("select tableoid::regclass::text from core.outbox")
    assert (own == "core.outbox") is (layout == "one")


async def test_a_worker_that_takes_another_way_is_found_out(stage: Stage, quiet: Consumer) -> None:
    async with stage.running(quiet) as listener:
        await stage.publish(1)
        await until(lambda: stage.all_are("delivered"))
        await stage.check_the_way()
        name = listener.health().worker
    await stage.execute("insert into public.claims (worker, by_reference) values (%s, %s)", name, stage.broker is None)
    with pytest.raises(AssertionError, match="searched for"):
        await stage.check_the_way()
    await stage.execute("delete from public.claims where by_reference = %s", stage.broker is None)


async def test_a_worker_without_a_broker_leaves_its_mark(stage: Stage, quiet: Consumer) -> None:
    async with stage.running(quiet):
        await stage.publish(1)
        await until(lambda: stage.all_are("delivered"))
    await stage.publish(2)
    await Bench.drain(Bench(stage.dsn, stage.connection), quiet)
    assert await stage.value("select count(*) from public.claims where not by_reference") >= 1
