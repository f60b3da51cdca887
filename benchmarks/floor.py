"""The floor: what the server does when pgbench, which costs next to nothing, sends the same SQL.

In a database with our own schema there is a copy of the outbox and of the dedup log with all their columns, checks and
indexes and without any trigger. The scripts claim (committed without waiting for the disk), insert the dedup keys and
settle, as the protocol does. pgbench's own rate is taken, which leaves out connecting.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks.environments import ContestantError
from spectral.core.embedded import Binaries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BATCH: Final = 100
SETUP: Final = """
create schema floor;
create table floor.outbox (like core.outbox including all);
create table floor.event_handled (like core.event_handled including all);
"""
_TPS: Final = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_CLAIM: Final = """
{before}with due as materialized (
    select id from floor.outbox
    where status = 'pending' and deleted_at is null and generation = 1 and channel = 'outbox_gen_1'
      and target = 'platform' and next_attempt_at <= clock_timestamp()
    order by next_attempt_at, id limit {batch} for update skip locked
), claimed as (
    update floor.outbox
    set status = 'in_flight', attempts = attempts + 1, claim_token = '00000000-0000-0000-0000-000000000001',
        claimed_by = 'floor', claimed_at = clock_timestamp()
    where id = any (array(select id from due)) returning id, payload
)
select {quoted}(coalesce(array_agg(id), '{{}}')::text) as ids,
    {quoted}(coalesce(array_agg((payload ->> 'number')::bigint), '{{}}')::text) as numbers{also} from claimed \\gset
"""
_NOT_DURABLE: Final = "set_config('synchronous_commit', 'off', true)"
_DEDUP: Final = """insert into floor.event_handled (handler_name, idempotency_key, event_id, content_class)
select 'platform.floor', idempotency_key, id, content_class from floor.outbox where {which} on conflict do nothing"""
_SETTLE: Final = """update floor.outbox set status = 'delivered', delivered_at = clock_timestamp(), claim_token = null
where id = any (:ids::uuid[])"""
_LOCK: Final = "select count(*) from (select from floor.outbox where id = any (:ids::uuid[]) for update) as locked"
_ONE: Final = """insert into bench_effects (number, seen) values ((:numbers::bigint[])[{number}], 1)
on conflict (number) do update set seen = bench_effects.seen + 1;"""
_INSERT: Final = (
    "insert into {table} (event_type, source, target, payload, idempotency_key, generation, channel)"
    " values ('worlds.{kind}.sent', 'worlds', 'platform', '{{\"number\": 1}}', core.uuid7()::text, 1, 'outbox_gen_1');"
)
FILL: Final = """
insert into floor.outbox (id, event_type, source, target, payload, idempotency_key, generation, channel)
select id, 'worlds.noop.sent', 'worlds', 'platform', jsonb_build_object('number', n), id::text, 1, 'outbox_gen_1'
from (select core.uuid7() as id, n from generate_series(1, %s) as n) as made
"""


PIPELINED: Final = ", in a pipeline"
"""How the line of a script is named whose statements do not wait for each other's answers."""


@dataclass(frozen=True, slots=True)
class Script:
    """What pgbench is to do again and again, and how."""

    text: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PgBench:
    """The program, of the server's own version."""

    program: Path

    @classmethod
    def from_wheel(cls) -> PgBench:
        """The one beside the embedded server.

        Raises:
            ContestantError: there is none.
        """
        program = Binaries.from_wheel().directory / "pgbench"
        if not program.is_file():
            raise ContestantError("the embedded server came without pgbench")
        return cls(program)

    def run(self, dsn: str, script: str, *, clients: int, limit: Sequence[str]) -> float:
        """Transactions per second of a script.

        Raises:
            ContestantError: pgbench failed.
        """
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            done = subprocess.run(  # noqa: S603  the server's own program
                [self.program, "-n", "-c", str(clients), "-j", "1", *limit, "-f", file.name, dsn],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
        found = _TPS.search(done.stdout)
        if done.returncode != 0 or found is None:
            raise ContestantError(f"pgbench failed: {done.stderr.strip()[-600:]}")
        return float(found[1])


def set_up(dsn: str) -> None:
    """The copies."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())


def refill(dsn: str, count: int) -> None:
    """Due events, and nothing else."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate floor.outbox, floor.event_handled, bench_effects")
        connection.execute(FILL, [count])


def drain_script(batch: int = BATCH) -> Script:
    """Claim a batch, then its dedup keys and its settlement in one transaction: three statements, two round trips."""
    dedup = _DEDUP.format(which="id = any (:ids::uuid[])")
    return Script(f"{_joined_claim(batch)}\n{dedup} \\;\n{_SETTLE};\n")


def upsert_script(batch: int) -> Script:
    """Claim a group; lock it, upsert each, then dedup and settle them together: one round trip for each, and three."""
    each = [_ONE.format(number=number) for number in range(1, batch + 1)]
    dedup = _DEDUP.format(which="id = any (:ids::uuid[])")
    opening, closing = f"begin \\;\n{_LOCK};", f"{dedup} \\;\n{_SETTLE} \\;\ncommit;"
    return Script("\n".join([_joined_claim(batch), opening, *each, closing, ""]))


def pipelined_upsert_script(batch: int) -> Script:
    """The same in two round trips: the claim, and the rest prepared, in a pipeline.

    In a pipeline no statements can be joined, nor values be written into them.
    """
    claim = _CLAIM.format(batch=batch, before="", quoted="", also=f", {_NOT_DURABLE} as mode")
    each = [_ONE.format(number=number) for number in range(1, batch + 1)]
    dedup = _DEDUP.format(which="id = any (:ids::uuid[])")
    group = ["begin;", f"{_LOCK};", *each, f"{dedup};", f"{_SETTLE};", "commit;"]
    return Script("\n".join([claim, "\\startpipeline", *group, "\\endpipeline", ""]), ("-M", "prepared"))


def _joined_claim(batch: int) -> str:
    return _CLAIM.format(batch=batch, before=f"select {_NOT_DURABLE} \\;\n", quoted="quote_literal", also="")


def insert_script(table: str, kind: str) -> str:
    """One insert, a transaction of its own."""
    return _INSERT.format(table=table, kind=kind)


def bulk_script(count: int) -> str:
    """The rows of a bulk publish, made inside the server."""
    return FILL.replace("%s", str(count)).strip() + ";\n"
