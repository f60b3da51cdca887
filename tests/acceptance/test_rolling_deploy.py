"""docs/how-to/deploy.md, walked block by block with three releases at work: real processes, publishers all the while.

Every handler writes down the SPECTRAL_GENERATION of its own process, and the oracle counts at the end.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, Self

import psycopg
import pytest

from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.testing import EFFECTS_SCHEMA, Ledger, check, settle_down
from tests.acceptance.worker_process import PATIENCE, SPECTRAL, WorkerProcess, eventually

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
PLACED: Final = "orders.order.placed"
MORE: Final = 15
"""Events of a release that are published while something else happens."""

SHOP_EVENTS: Final = """
    import os
    from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, Transaction
    from spectral.core.events.testing import record_effect

    billing = Consumer("billing")

    @billing.on("orders.order.placed")
    async def send_invoice(event: EventEnvelope, tx: Transaction, context: DeliveryContext) -> None:
        mine = int(os.environ["SPECTRAL_GENERATION"])
        await record_effect(tx, context, event.idempotency_key, generation=mine)
"""


class HowTo:
    """The page's commands, one block after the other."""

    def __init__(self, dsn: str, directory: Path) -> None:
        self._dsn = dsn
        self._directory = directory
        self._blocks: Iterator[str] = iter(
            re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        )

    def step(self, about: str) -> None:
        """Run the next block, which is the one about this."""
        block = next(self._blocks)
        assert about in block
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=self._directory,
            env={"PATH": f"{Path(SPECTRAL).parent}:/usr/bin:/bin", "SPECTRAL_DATABASE_URL": self._dsn},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def generation_of(self, release: str) -> int:
        """What the page has written down for the processes of a release."""
        return int((self._directory / f"{release}.env").read_text().strip().removeprefix("SPECTRAL_GENERATION="))

    def is_over(self) -> bool:
        return next(self._blocks, None) is None


class Publisher(threading.Thread):
    """Publishes as one generation until it is stopped; now and then to everybody."""

    def __init__(self, dsn: str, generation: int, ledger: Ledger) -> None:
        super().__init__()
        self.published = 0
        self._dsn = dsn
        self._generation = generation
        self._ledger = ledger
        self._stopped = threading.Event()
        self._news = threading.Condition()

    def run(self) -> None:
        settings = PublishSettings(generation=self._generation, contexts=frozenset({"orders", "billing"}))
        with psycopg.connect(self._dsn) as connection:
            publisher = publisher_for(connection, publishing(settings))
            while not self._stopped.wait(0.02):
                event = EventEnvelope(
                    event_type=PLACED,
                    source="orders",
                    target=None if self.published % 5 == 0 else "billing",
                    payload={"generation": self._generation},
                )
                with self._ledger.attempt_of(event, generation=self._generation), connection.transaction():
                    publisher.publish(event)
                with self._news:
                    self.published += 1
                    self._news.notify_all()

    def more(self) -> None:
        """Wait until it has published some more."""
        with self._news:
            wanted = self.published + MORE
            assert self._news.wait_for(lambda: self.published >= wanted, timeout=PATIENCE)

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Stage:
    """One database, and whoever works on it."""

    def __init__(self, dsn: str, directory: Path, stack: ExitStack) -> None:
        self.ledger = Ledger()
        self._dsn = dsn
        self._directory = directory
        self._stack = stack

    def worker(self, generation: int) -> WorkerProcess:
        variables = {"SPECTRAL_DATABASE_URL": self._dsn, "SPECTRAL_GENERATION": str(generation)}
        started = self._stack.enter_context(WorkerProcess(self._directory, "shop_events:billing", **variables))
        started.wait_for("listening")
        return started

    def publisher(self, generation: int) -> Publisher:
        return self._stack.enter_context(Publisher(self._dsn, generation, self.ledger))

    def value(self, statement: str, *parameters: object) -> Any:  # noqa: ANN401  whatever the column holds
        with psycopg.connect(self._dsn) as connection:
            (value,) = connection.execute(statement.encode(), parameters).fetchone() or (None,)
        return value

    def live(self) -> int:
        return int(self.value("select generation from core.live_generation"))

    def waiting(self, generation: int) -> int:
        return int(
            self.value(
                "select count(*) from core.outbox where generation = %s and status in ('pending', 'in_flight')",
                generation,
            )
        )

    def handled(self) -> set[tuple[int, int]]:
        """Pairs of generations: who published, who handled."""
        with psycopg.connect(self._dsn) as connection:
            found = connection.execute(
                "select distinct (outbox.payload ->> 'generation')::int, effect.generation"
                " from public.spectral_effects as effect join core.outbox on outbox.id = effect.event_id"
            )
            return {(published, handled) for published, handled in found.fetchall()}


@pytest.fixture
def stage(database: str, tmp_path: Path) -> Iterator[Stage]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(EFFECTS_SCHEMA.encode())
    with ExitStack() as stack:
        yield Stage(database, tmp_path, stack)


@pytest.mark.timeout(240)  # some twenty processes are started, one after the other
def test_three_releases_are_deployed_rolled_back_and_drained_and_no_event_meets_the_wrong_one(
    stage: Stage, database: str, tmp_path: Path
) -> None:
    how_to = HowTo(database, tmp_path)
    how_to.step("v1.env")
    (tmp_path / "shop_events.py").write_text(dedent(SHOP_EVENTS))
    v1 = how_to.generation_of("v1")
    old_workers, old_publishers = stage.worker(v1), stage.publisher(v1)

    # v2 is rolled out beside v1; each has publishers, before and after it goes live
    how_to.step("allocate shop_events:billing --label v2")
    v2 = how_to.generation_of("v2")
    new_workers, new_publishers = stage.worker(v2), stage.publisher(v2)
    how_to.step("v2.env) spectral worker")
    how_to.step("promote")
    assert stage.live() == v2
    old_publishers.more()
    new_publishers.more()

    # v2's workers are stopped, its publishers are not told at once, and v1 is live again
    new_workers.stop()
    assert new_workers.end() == 0
    new_publishers.more()
    how_to.step("rollback")
    assert stage.live() == v1
    new_publishers.more()
    new_publishers.stop()
    assert stage.waiting(v2) >= MORE
    how_to.step("hand-over")
    how_to.step("retire")
    assert stage.waiting(v2) == 0

    # v3 comes; v1 loses its workers before its publishers, and v3 drains what is left in both ways
    how_to.step("allocate shop_events:billing --label v3")
    v3 = how_to.generation_of("v3")
    last_workers, last_publishers = stage.worker(v3), stage.publisher(v3)
    assert stage.live() == v3
    old_workers.stop()
    assert old_workers.end() == 0
    old_publishers.more()
    how_to.step("--accept-generations")
    eventually(lambda: stage.waiting(v1) >= 1, "v1 has no worker any more, but a publisher")
    old_publishers.stop()
    how_to.step("hand-over 1")
    how_to.step("retire 1")
    assert how_to.is_over()
    last_publishers.more()
    last_publishers.stop()

    assert asyncio.run(settle_down(database, timedelta(seconds=PATIENCE)))
    last_workers.stop()
    assert last_workers.end() == 0
    verdict = asyncio.run(check(database, stage.ledger, accept={v3: {v1}}))
    assert verdict.clean, verdict.found
    assert (verdict.wrong_generation, verdict.dead_lettered) == (0, 0)
    assert (
        verdict.handled
        == verdict.published
        == sum(each.published for each in (old_publishers, new_publishers, last_publishers))
    )
    # which is not for want of looking: without leave, what v3 drained for v1 is seen
    assert asyncio.run(check(database, stage.ledger)).wrong_generation > 0
    # each release its own, but for what was handed over or drained on purpose
    assert stage.handled() == {(v1, v1), (v2, v2), (v3, v3), (v2, v1), (v1, v3)}
    assert stage.value("select count(*) from core.deployments where status = 'retired' and label is not null") == 1
    assert stage.value("select array_agg(action order by id) from core.audit where action <> 'hand_over'") == [
        "allocate",
        "promote",
        "rollback",
        "retire",
        "allocate",
        "promote",
        "retire",
    ]
