"""Workers sign in and out, so that an operator sees who is at work, and who should be."""

from __future__ import annotations

import os
import socket
from importlib.metadata import version

from spectral.core.events import Consumer
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, Bench, Scan, until


def handling(consumer: Consumer, event_type: str = COMPLETED) -> Consumer:
    @consumer.on(event_type)
    async def handle(scan: Scan) -> None:
        assert scan.number

    return consumer


async def test_a_worker_is_on_record_with_what_it_works_for(bench: Bench, platform: Consumer) -> None:
    worlds = handling(Consumer("worlds"), STARTED)
    async with bench.running(
        handling(platform), worlds, name="first", accept_generations=frozenset({2}), classes=("hot",)
    ):
        await until(lambda: bench.value("select count(*) = 1 from core.workers"))
        row = await bench.value("select to_jsonb(worker) - 'signed_in_at' - 'missed_at' from core.workers as worker")
    assert row == {
        "name": "first",
        "generation": 1,
        "generations": [1, 2],
        "contexts": ["platform", "worlds"],
        "channels": ["outbox_gen_1", "outbox_gen_1_hot", "outbox_gen_2", "outbox_gen_2_hot", "outbox_default"],
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "version": version("spectral-events"),
    }


async def test_a_worker_that_ends_signs_out(bench: Bench, platform: Consumer) -> None:
    async with bench.running(handling(platform), name="first"):
        await until(lambda: bench.value("select core.worker_lives('first') and count(*) = 1 from core.workers"))
    await until(lambda: bench.value("select not core.worker_lives('first')"))
    assert await bench.value("select count(*) from core.workers") == 0


async def test_a_worker_that_lost_its_connections_is_signed_in_once_more(bench: Bench, platform: Consumer) -> None:
    async with bench.running(handling(platform), name="first"):
        await until(lambda: bench.value("select count(*) = 1 from core.workers"))
        await bench.execute("delete from core.workers")
        await bench.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'spectral keep%%'"
        )
        await until(lambda: bench.value("select count(*) = 1 from core.workers"))
        await until(lambda: bench.value("select core.worker_lives('first')"))
