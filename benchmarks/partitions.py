"""What it costs to partition a large outbox under load, and what it brings.

python -m benchmarks.partitions [--rows N]

conversion   publishers and a worker go on; the longest publish tells how long the longest lock was felt
claim        ten rows claimed and released, before and after, in turn with publishing
a month      dropped as a partition, and the same number of rows deleted as the sweep does it
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Self

import psycopg

from spectral.core.database import connect
from spectral.core.embedded import EmbeddedPostgres, ServerOptions
from spectral.core.migrations import up
from spectral.core.partitions import Progress, enable

Connection = psycopg.Connection[Any]

_PUBLISH = "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform', p_generation => 1)"
_CLAIM = """
    select id, claim_token from core.outbox_claim_from(
        'bench', 'platform', '{1}', '{outbox_gen_1}', null, 10, null, 100, '{}'
    )
"""
_FILL = """
    insert into core.outbox (
        event_type, source, target, generation, channel, idempotency_key, payload, created_at, occurred_at,
        next_attempt_at, status, attempts, claimed_by, claimed_at, delivered_at
    )
    select
        'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', core.uuid7()::text,
        jsonb_build_object('number', i, 'text', repeat('x', 100)), moment, moment, moment, 'delivered', 1, 'bench',
        moment, moment
    from generate_series(1, %s) as i, lateral (select now() - i * interval '1 second' as moment) as at
"""


@dataclass
class Load:
    """Publishers, each on a connection of its own, and how long each publish took."""

    dsn: str
    threads: int = 2
    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._running = [threading.Thread(target=self._publish) for _ in range(self.threads)]
        self._running.append(threading.Thread(target=self._work))
        for each in self._running:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for each in self._running:
            each.join()

    def _publish(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self.stopping.is_set():
                began = time.perf_counter()
                try:
                    connection.execute(_PUBLISH)
                except psycopg.Error as error:
                    self.failures.append(str(error))
                self.seconds.append(time.perf_counter() - began)
                self.stopping.wait(0.005)

    def _work(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self.stopping.is_set():
                (_, token), *rows = connection.execute(_CLAIM).fetchall()
                ids = sorted(row[0] for row in rows)
                connection.execute("select core.outbox_deliver(%s, %s, '{}', '{}')", [ids, [token] * len(ids)])
                self.stopping.wait(0.01)


def say(text: str) -> None:
    """One line of the report."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def claim_milliseconds(connection: Connection, times: int = 200) -> tuple[float, float]:
    """The median of claiming ten rows and giving them back, and of publishing one."""
    for _ in range(20):
        connection.execute(_PUBLISH)
    claims, publishes = [], []
    for _ in range(times):
        began = time.perf_counter()
        rows = connection.execute(_CLAIM).fetchall()
        claims.append(time.perf_counter() - began)
        token, ids = rows[0][1], [row[0] for row in rows[1:]]
        connection.execute("select core.outbox_release(%s, %s)", [ids, [token] * len(ids)])
        began = time.perf_counter()
        connection.execute(_PUBLISH)
        publishes.append(time.perf_counter() - began)
    return statistics.median(claims) * 1000, statistics.median(publishes) * 1000


def convert(dsn: str) -> None:
    """Enable, and say how long each step took."""
    steps: list[tuple[str, float]] = []

    def tell(progress: Progress) -> None:
        steps.append((f"{progress.step} (try {progress.attempt})", time.perf_counter()))

    async def run() -> None:
        async with connect(dsn, "benchmark") as database:
            await enable(database, by="benchmark", on_progress=tell)

    asyncio.run(run())
    steps.append(("end", time.perf_counter()))
    for (name, began), (_, ended) in itertools.pairwise(steps):
        say(f"  {name:<20} {ended - began:8.2f} s")


def a_month(connection: Connection, rows: int) -> None:
    """Delete about a million rows, if there are so many, by the sweep's own steps, and drop a month of as many."""
    connection.execute("set session_replication_role = replica")
    before: Any = connection.execute("select name from core.outbox_partitions() where kind = 'before'").fetchone()
    connection.execute(
        psycopg.sql.SQL("update core.{} set deleted_at = now() - interval '8 days' where ctid < %s").format(
            psycopg.sql.Identifier(before[0])
        ),
        [f"({min(rows, 1_000_000) // 20},0)"],
    )
    connection.execute("set session_replication_role = origin")
    connection.execute("vacuum analyze core.outbox")
    connection.execute("select core.sweep_begin('bench')")
    began, deleted, more = time.perf_counter(), 0, True
    blocks: Any = connection.execute(
        "select blocks from core.sweep_leaves('outbox', null) where kind = 'before'"
    ).fetchone()
    for block in range(0, blocks[0], 2000):
        more = True
        while more:
            row: Any = connection.execute(
                "select deleted, more from core.sweep_outbox_leaf('bench', %s, %s, %s, '1000 days', '7 days')",
                [before[0], block, block + 2000],
            ).fetchone()
            deleted, more = deleted + row[0], row[1]
    say(f"  {deleted:,} rows deleted row by row: {time.perf_counter() - began:.2f} s, and a vacuum is still to come")
    connection.execute("set role spectral_owner")
    connection.execute(
        "select core.outbox_partition_attach('core.outbox', 'outbox_bench', core.partition_month(now(), 9),"
        " core.partition_month(now(), 10), 'core.outbox')"
    )
    connection.execute("reset role")
    connection.execute("set session_replication_role = replica")
    connection.execute(_FILL.replace("now() - i * interval '1 second'", "core.partition_month(now(), 9)"), [deleted])
    connection.execute("set session_replication_role = origin")
    began = time.perf_counter()
    connection.execute("drop table core.outbox_bench")
    say(f"  {deleted:,} rows dropped as a partition:  {time.perf_counter() - began:.3f} s")


def main() -> None:
    """Fill, convert under load, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    rows: int = parser.parse_args().rows
    options = ServerOptions(
        settings={"shared_buffers": "512MB", "max_wal_size": "4GB", "maintenance_work_mem": "256MB"}
    )
    with EmbeddedPostgres(options=options) as server:
        dsn = server.create_database()
        up(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "insert into core.deployments (generation, status, promoted_at) values (1, 'live', now())"
            )
            connection.execute("set session_replication_role = replica")
            began = time.perf_counter()
            connection.execute(_FILL, [rows])
            connection.execute("set session_replication_role = origin")
            connection.execute("vacuum analyze core.outbox")
            say(f"{rows:,} rows written in {time.perf_counter() - began:.0f} s")
            plain = claim_milliseconds(connection)
            say("conversion under load:")
            with Load(dsn) as load:
                load.stopping.wait(2)
                calm = len(load.seconds)
                convert(dsn)
                load.stopping.wait(2)
            say(
                f"  {len(load.seconds):,} publishes, {len(load.failures)} failed; the longest took"
                f" {max(load.seconds[calm:]) * 1000:.0f} ms, in the two seconds before it"
                f" {max(load.seconds[:calm]) * 1000:.0f} ms"
            )
            by_months = claim_milliseconds(connection)
            say(f"claim of ten:   plain {plain[0]:.2f} ms, partitioned {by_months[0]:.2f} ms")
            say(f"publish of one: plain {plain[1]:.2f} ms, partitioned {by_months[1]:.2f} ms")
            say("a month:")
            a_month(connection, rows)


if __name__ == "__main__":
    main()
