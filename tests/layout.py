"""The partitioned layout, for tests that are to hold on both."""

from __future__ import annotations

import asyncio

import psycopg

from spectral.core.database import connect
from spectral.core.partitions import MONTHS_AHEAD, EnableOptions, enable

PAST = 3
"""Months before the current one that have a partition, as in a system that has been partitioned for a while."""


PLAIN_ONLY = {
    "tests/acceptance/test_cli_partitions.py": "begins with one table",
    "tests/migrations/test_schema_plans.py": "reads the names of one table's indexes out of plans",
    "tests/integration/delivery/test_gates.py": "sets and reads the storage of one table",
    "test_the_privileges_are_those_of_the_golden_file": "lists every table",
    "test_constraints_are_named_by_table_and_kind": "a partition has those of its table",
    "test_triggers_and_policies_are_named_by_their_table": "a partition has those of its table",
    "test_a_parent_has_one_child_for_each_context": "names the constraint of one table",
    "test_a_key_is_handled_once_by_each_handler": "names the constraint of one table",
    "test_so_many_records_of_each_step_at_a_time": "counts a limit that is each leaf's",
    "test_so_many_rows_of_each_step_at_a_time": "counts a limit that is each leaf's",
    "test_an_event_that_is_published_while_its_record_is_being_deleted_keeps_it": "counts a limit that is each leaf's",
    "test_what_is_put_away_is_not_chased_to_the_end_of_a_table_that_grows_by_it": "sets the storage of one table",
    "test_one_call_reads_no_more_than_its_range": "counts the blocks of one table",
    "test_a_project_keeps_things_for_as_long_as_it_says": "a month that is ending is dropped as a whole, later",
    "test_what_is_read_depends_neither_on_history_nor_on_other_lanes": "counts the blocks of one table's index",
}
"""Tests of how one table lies on the disk, by file or by name, and why they say nothing of several."""


def is_plain_only(node_id: str) -> bool:
    """Whether a test is of the plain layout alone."""
    path, _, name = node_id.partition("::")
    return path in PLAIN_ONLY or name.partition("[")[0] in PLAIN_ONLY


def partition(dsn: str) -> None:
    """Convert an empty database, and lay it out as it is some months later: the table from before has been dropped."""

    async def convert() -> None:
        async with connect(dsn, "tests") as database:
            await enable(database, by="tests", options=EnableOptions(dedup=True))

    asyncio.run(convert())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set role spectral_owner")
        for (name,) in connection.execute(
            "select name from core.outbox_partitions() where kind <> 'default'"
        ).fetchall():
            connection.execute(psycopg.sql.SQL("drop table core.{}").format(psycopg.sql.Identifier(name)))
        connection.execute(
            "select core.outbox_partition_attach('core.outbox', 'outbox_' || core.partition_month_name(month), month,"
            " core.partition_month(month, 1), 'core.outbox')"
            " from generate_series(%s::integer, %s::integer) as later,"
            " core.partition_month(clock_timestamp(), later) as month",
            [-PAST, MONTHS_AHEAD],
        )
        connection.execute("reset role")
        # what tests read in the audit is what they have done
        connection.execute("alter table core.audit disable trigger all")
        connection.execute("truncate core.audit restart identity")
        connection.execute("alter table core.audit enable trigger all")
