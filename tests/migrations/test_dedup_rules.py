"""The rules of the dedup log move from constraints to a function, whatever has become of the table by then."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg
import pytest

from spectral.core.database import Database, connect
from spectral.core.migrations import up
from spectral.core.partitions.grants import copy_grants

MIGRATIONS: Final = Path(__file__).parents[2] / "supabase" / "migrations"
MOVED_BY: Final = "20261116120000"
INSERT: Final = "insert into core.event_handled (handler_name, idempotency_key, event_id) values (%s, 'k', %s)"
Step = Callable[[Database], Awaitable[object]]


async def prepare(database: Database) -> None:
    await database.value("select core.partitions_dedup_prepare('test', 'test')")
    await copy_grants(database, "core.event_handled", "core.event_handled_hashed")


async def switch(database: Database) -> None:
    await database.value("select core.partitions_dedup_switch('test', 'test')")


def take(dsn: str, steps: tuple[Step, ...]) -> None:
    async def one_after_the_other() -> None:
        async with connect(dsn, "tests") as database:
            for step in steps:
                await step(database)

    asyncio.run(one_after_the_other())


@pytest.mark.parametrize(
    ("before", "after"), [((), ()), ((prepare,), (switch,)), ((prepare, switch), ())], ids=["plain", "twin", "hashed"]
)
def test_the_rules_hold_on_every_kind_of_dedup_log(
    empty_database: str, tmp_path: Path, before: tuple[Step, ...], after: tuple[Step, ...]
) -> None:
    for file in MIGRATIONS.glob("*.sql"):
        if file.name < MOVED_BY:
            shutil.copy(file, tmp_path)
    up(empty_database, directories=[tmp_path])
    take(empty_database, before)
    for file in MIGRATIONS.glob(f"{MOVED_BY}_*.sql"):
        shutil.copy(file, tmp_path)
    up(empty_database, directories=[tmp_path])
    take(empty_database, after)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(INSERT, ["platform.project", uuid4()])
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            connection.execute(INSERT, ["unscoped", uuid4()])
        assert refused.value.diag.constraint_name == "event_handled_handler_name_check"
        checks = connection.execute(
            "select conname from pg_constraint join pg_class on pg_class.oid = conrelid"
            " where contype = 'c' and relname like 'event_handled%'"
        ).fetchall()
        assert checks == []
