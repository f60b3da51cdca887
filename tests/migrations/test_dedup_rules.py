"""The rules of the dedup log hold, whoever writes it, by whatever path, and whatever has become of the table."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, LiteralString
from uuid import uuid4

import psycopg
import pytest

from spectral.core.database import Database, connect
from spectral.core.migrations import up
from spectral.core.partitions.grants import copy_grants
from tests.migrations.schema import Connection, value
from tests.migrations.sql import publish, row
from tests.migrations.test_functions_claim_from import claim

MIGRATIONS: Final = Path(__file__).parents[2] / "supabase" / "migrations"
MOVED_BY: Final = "20261116120000"
NAMES_BY: Final = "20261117060000"
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


@pytest.mark.parametrize("changed_by", [MOVED_BY, NAMES_BY])
@pytest.mark.parametrize(
    ("before", "after"), [((), ()), ((prepare,), (switch,)), ((prepare, switch), ())], ids=["plain", "twin", "hashed"]
)
def test_the_rules_hold_on_every_kind_of_dedup_log(
    empty_database: str, tmp_path: Path, before: tuple[Step, ...], after: tuple[Step, ...], changed_by: str
) -> None:
    for file in MIGRATIONS.glob("*.sql"):
        if file.name < changed_by:
            shutil.copy(file, tmp_path)
    up(empty_database, directories=[tmp_path])
    take(empty_database, before)
    for file in MIGRATIONS.glob(f"{changed_by}_*.sql"):
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


# names, which those that write the log check by themselves

MADE_BEFORE: Final = {"partitions_dedup_copy", "partitions_dedup_mirror"}
"""They copy records that are in the log already."""

WRITING: Final[dict[str, LiteralString]] = {
    "outbox_begin": "select core.outbox_begin(array[%(id)s], array[%(token)s], array[%(name)s])",
    "outbox_begin_one": "select core.outbox_begin_one(%(id)s, %(token)s, %(name)s)",
    "outbox_deliver": "select core.outbox_deliver(array[%(id)s], array[%(token)s], array[%(id)s], array[%(name)s])",
    "outbox_deliver_alike": "select core.outbox_deliver_alike(%(token)s, array[%(id)s], array[%(name)s])",
    "outbox_deliver_together": "select core.outbox_deliver_together(array[%(id)s], array[%(token)s], array[%(name)s])",
}


def test_every_function_that_writes_the_log_is_looked_at_here(session: Connection) -> None:
    found = session.execute(
        "select proname from pg_proc where pronamespace = 'core'::regnamespace and prosrc ~ 'into core\\.event_handled'"
    ).fetchall()
    assert {name for (name,) in found} == WRITING.keys() | MADE_BEFORE


@pytest.mark.parametrize("name", ["unscoped", "platform.Project", "platform." + "h" * 192, "platform.project\n", ""])
@pytest.mark.parametrize("writing", WRITING)
def test_a_name_that_breaks_the_rule_is_refused_by_whatever_would_write_it(
    session: Connection, writing: str, name: str
) -> None:
    event_id = publish(session)
    (held,) = claim(session).held
    with pytest.raises(psycopg.errors.CheckViolation) as refused, session.transaction():
        session.execute(WRITING[writing], {"id": held.id, "token": held.token, "name": name})
    said = refused.value.diag
    assert (said.schema_name, said.table_name) == ("core", "event_handled")
    assert said.constraint_name == "event_handled_handler_name_check"
    assert row(session, event_id)["status"] == "in_flight"
    assert value(session, "select count(*) from core.event_handled") == 0


@pytest.mark.parametrize("writing", WRITING)
def test_a_good_name_among_many_is_written_and_one_bad_one_refuses_all(session: Connection, writing: str) -> None:
    publish(session)
    (held,) = claim(session).held
    good = {"id": held.id, "token": held.token, "name": "platform.project"}
    if writing == "outbox_deliver_together":  # the first of its keys is written when they begin
        session.execute(WRITING["outbox_begin_one"], good)
    session.execute(WRITING[writing], good)
    assert value(session, "select handler_name from core.event_handled") == "platform.project"
    with pytest.raises(psycopg.errors.CheckViolation):
        session.execute("select core.require_handler_names('{platform.project,platform.project,unscoped}')")
