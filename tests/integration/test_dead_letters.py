"""The DLQ to look at: filters, pages, groups, counts; and what is in it that nobody expected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import Database, DatabaseTooSlowError, RefusedError, connect
from spectral.core.events.failure import ConfigurationError
from spectral.core.operations import dead_letters, dead_letters_walk, fingerprints
from spectral.core.operations.dead_letters import (
    DeadLetterFilter,
    count_dead_letters,
    find_dead_letters,
    group_dead_letters,
    list_dead_letters,
    states_of,
)
from tests.migrations.schema import outbox_row, role
from tests.migrations.sql import fail, publish

Connection = psycopg.Connection[Any]

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
EVERYTHING = DeadLetterFilter()


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    """The connection of somebody who has nothing but the operator's role."""
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


def letter(
    connection: Connection, error: str = "ValueError: platform.index: no", at: float = 0, **columns: object
) -> UUID:
    """A failed row whose failure was so many seconds after noon."""
    failed = NOON + timedelta(seconds=at)
    return outbox_row(
        connection, "failed", **{"last_error": error, "first_failed_at": failed, "claimed_at": failed, **columns}
    )


@contextmanager
def limits(**changes: int) -> Iterator[None]:
    """Other limits, so that few rows reach them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changes.items():
            for module in (dead_letters, dead_letters_walk, fingerprints):
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield


async def all_pages(operator: Database, wanted: DeadLetterFilter, limit: int = 2) -> list[UUID]:
    """Every id of the list, page by page."""
    seen: list[UUID] = []
    cursor = None
    for _ in range(100):
        page = await list_dead_letters(operator, wanted, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        seen += [each.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return seen
    raise AssertionError("the pages do not end")


# lists


async def test_a_letter_is_shown_with_its_error_taken_apart_and_without_its_payload(
    operator: Database, connection: Connection
) -> None:
    workspace = uuid4()
    event_id = letter(connection, workspace_id=workspace, payload={"canary": True}, event_version=3)
    (found,) = (await list_dead_letters(operator, EVERYTHING, limit=10)).items
    assert (found.id, found.event_version, found.workspace_id, found.attempts) == (event_id, 3, workspace, 6)
    assert (found.error_class, found.handler_name) == ("ValueError", "platform.index")
    assert (found.first_failed_at, found.failed_at, found.replays) == (NOON, NOON, 0)
    assert "canary" not in repr(found)


async def test_what_is_not_in_the_dlq_is_not_listed(operator: Database, connection: Connection) -> None:
    for status in ("pending", "in_flight", "delivered"):
        outbox_row(connection, status)
    letter(connection, deleted_at=datetime.now(UTC))
    assert await all_pages(operator, EVERYTHING) == []
    assert (await group_dead_letters(operator, EVERYTHING, limit=10)).items == ()


@pytest.mark.parametrize("error_class", [None, "ValueError"], ids=["by time", "by fingerprint"])
async def test_pages_follow_each_other_newest_first_also_among_failures_of_one_moment(
    operator: Database, connection: Connection, error_class: str | None
) -> None:
    written = [letter(connection, f"ValueError: platform.h{n % 3}: no", at=n // 4) for n in range(13)]
    seen = await all_pages(operator, DeadLetterFilter(error_class=error_class))
    assert sorted(seen) == sorted(written)
    times = {event_id: n // 4 for n, event_id in enumerate(written)}
    assert [times[event_id] for event_id in seen] == sorted(times.values(), reverse=True)


async def test_each_field_of_the_filter_selects(operator: Database, connection: Connection) -> None:
    workspace = uuid4()
    common = {"at": 5.0}
    other = letter(
        connection, "KeyError: platform.store: no", event_type="orders.order.placed", target="core", **common
    )
    here = letter(connection, "ValueError: platform.index: no", workspace_id=workspace, at=1, generation=2,
                  channel="outbox_gen_2")  # fmt: skip
    bare = letter(connection, "no class at all", at=9)
    for wanted, expected in [
        (DeadLetterFilter(event_type="orders.order.placed"), {other}),
        (DeadLetterFilter(context="core"), {other}),
        (DeadLetterFilter(context=""), set()),
        (DeadLetterFilter(error_class="ValueError"), {here}),
        (DeadLetterFilter(error_class="no class at all"), {bare}),
        (DeadLetterFilter(handler_name="platform.store"), {other}),
        (DeadLetterFilter(handler_name=""), {bare}),
        (DeadLetterFilter(workspace_id=workspace), {here}),
        (DeadLetterFilter(workspace_id=workspace, error_class="KeyError"), set()),
        (DeadLetterFilter(generation=2), {here}),
        (DeadLetterFilter(generation=1, context="core"), {other}),
        (DeadLetterFilter(failed_before=NOON + timedelta(seconds=5)), {here}),
        (DeadLetterFilter(failed_after=NOON + timedelta(seconds=5)), {other, bare}),
        (DeadLetterFilter(event_type="orders.order.placed", error_class="ValueError"), set()),
    ]:
        assert set(await all_pages(operator, wanted)) == expected, wanted
        assert (await count_dead_letters(operator, wanted)).count == len(expected), wanted
        groups = (await group_dead_letters(operator, wanted, limit=10)).items
        assert sum(each.count for each in groups) == len(expected), wanted


async def test_what_was_still_being_retried_at_that_moment_had_not_failed_before_it(
    operator: Database, connection: Connection
) -> None:
    # Its first failure was before, its last one after.
    letter(connection, at=1, claimed_at=NOON + timedelta(seconds=20))
    early = letter(connection, at=2)
    assert await all_pages(operator, DeadLetterFilter(failed_before=NOON + timedelta(seconds=10))) == [early]


async def test_a_filter_that_few_of_many_fit_looks_at_so_many_rows_and_says_where_it_stopped(
    operator: Database, connection: Connection
) -> None:
    workspace = uuid4()
    wanted = letter(connection, workspace_id=workspace)
    for n in range(1, 12):
        letter(connection, at=n)
    with limits(WINDOW=4):
        page = await list_dead_letters(operator, DeadLetterFilter(workspace_id=workspace), limit=2)
        assert page.items == ()
        assert page.next_cursor is not None
        assert await all_pages(operator, DeadLetterFilter(workspace_id=workspace)) == [wanted]
        both = DeadLetterFilter(workspace_id=workspace, error_class="ValueError")
        assert await all_pages(operator, both) == [wanted]


async def test_a_message_without_a_class_makes_as_many_fingerprints_as_rows_and_the_list_still_ends(
    operator: Database, connection: Connection
) -> None:
    written = {letter(connection, f"message number {n}", at=n) for n in range(12)}
    with limits(MAX_STEPS=5, MAX_MERGED=3):
        assert set(await all_pages(operator, DeadLetterFilter(context="platform"))) == written
        groups = await group_dead_letters(operator, EVERYTHING, limit=10)
        assert (len(groups.items), groups.complete) == (5, False)
        assert (await count_dead_letters(operator, DeadLetterFilter(context="platform"))).count == 12


async def test_a_cursor_goes_on_the_way_it_came_from(operator: Database, connection: Connection) -> None:
    written = [letter(connection, f"E{n % 4}: no", at=n) for n in range(8)]
    wanted = DeadLetterFilter(context="platform")
    first = await list_dead_letters(operator, wanted, limit=4)
    with limits(MAX_MERGED=1):  # there are more fingerprints now than are merged
        second = await list_dead_letters(operator, wanted, limit=4, cursor=first.next_cursor)
    assert [each.id for each in (*first.items, *second.items)] == written[::-1]


async def test_a_cursor_does_not_outlive_its_filter_or_its_fingerprints(
    operator: Database, connection: Connection
) -> None:
    for n in range(8):
        letter(connection, f"E{n % 4}: no", at=n)
    wanted = DeadLetterFilter(context="platform")
    cursor = (await list_dead_letters(operator, wanted, limit=4)).next_cursor
    with pytest.raises(RefusedError, match="another filter"):
        await list_dead_letters(operator, EVERYTHING, limit=4, cursor=cursor)
    with limits(MAX_STEPS=3), pytest.raises(RefusedError, match="changed too much"):
        await list_dead_letters(operator, wanted, limit=4, cursor=cursor)


@pytest.mark.parametrize("cursor", ["nonsense", "q0-" + "0" * 32])
async def test_a_cursor_of_another_list_is_refused(operator: Database, cursor: str) -> None:
    with pytest.raises(RefusedError, match="no cursor of this list"):
        await list_dead_letters(operator, EVERYTHING, limit=2, cursor=cursor)


async def test_letters_are_found_by_their_ids(operator: Database, connection: Connection) -> None:
    ids = [letter(connection), letter(connection, "KeyError: no")]
    gone, pending, unknown = letter(connection, deleted_at=datetime.now(UTC)), outbox_row(connection), uuid4()
    found = await find_dead_letters(operator, [*ids, gone, pending, unknown])
    assert [each.id for each in found] == sorted(ids)
    states = await states_of(operator, [ids[0], gone, pending, unknown])
    assert list(states.values()) == ["failed", "discarded", "pending", "unknown"]


# groups and counts


async def test_groups_are_fingerprints_the_most_frequent_first(operator: Database, connection: Connection) -> None:
    *_, sample = [letter(connection, "ValueError: platform.index: no", at=n) for n in range(3)]
    letter(connection, "ValueError: platform.store: no", at=9)
    letter(connection, "WorkerLostError: gone", at=10)
    found = await group_dead_letters(operator, EVERYTHING, limit=10)
    assert [(each.error_class, each.handler_name, each.count, each.capped) for each in found.items] == [
        ("ValueError", "platform.index", 3, False),
        ("WorkerLostError", None, 1, False),
        ("ValueError", "platform.store", 1, False),
    ]
    first = found.items[0]
    assert (first.context, first.sample_id, found.complete) == ("platform", sample, True)
    assert (first.first_failed_at, first.last_failed_at) == (NOON, NOON + timedelta(seconds=2))
    assert not (await group_dead_letters(operator, EVERYTHING, limit=2)).complete


async def test_a_group_failed_last_when_the_last_of_it_failed_for_good(
    operator: Database, connection: Connection
) -> None:
    ids = [letter(connection, "ValueError: platform.index: no", at=n) for n in range(2)]
    connection.execute("update core.outbox set claimed_at = %s where id = %s", [NOON + timedelta(hours=1), ids[0]])
    (found,) = (await group_dead_letters(operator, EVERYTHING, limit=10)).items
    assert (found.first_failed_at, found.last_failed_at) == (NOON, NOON + timedelta(hours=1))


async def test_counts_end_at_a_cap_and_say_so(operator: Database, connection: Connection) -> None:
    for n in range(5):
        letter(connection, at=n)
    with limits(GROUP_CAP=3):
        (group,) = (await group_dead_letters(operator, EVERYTHING, limit=10)).items
    assert (group.count, group.capped, group.first_failed_at) == (3, True, NOON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dead_letters, "COUNT_CAPS", dict.fromkeys(dead_letters.COUNT_CAPS, 3))
        for wanted in (EVERYTHING, DeadLetterFilter(error_class="ValueError")):
            counted = await count_dead_letters(operator, wanted)
            assert (counted.count, counted.capped) == (3, True)


async def test_a_count_that_takes_too_long_is_not_waited_for(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter(connection)

    async def slow(database: Database, _: DeadLetterFilter) -> None:
        await database.connection.execute("set local statement_timeout = '50ms'")
        await database.tuples("select pg_sleep(30)")

    monkeypatch.setattr(dead_letters, "_count", slow)
    counted = await count_dead_letters(operator, EVERYTHING)
    assert (counted.count, counted.capped) == (0, True)


async def test_a_list_gives_up_after_two_seconds_and_says_whom_to_ask(
    operator: Database, connection: Connection
) -> None:
    fail(connection)
    with psycopg.connect(connection.info.dsn) as blocker:
        blocker.execute("lock table core.outbox in access exclusive mode")
        with pytest.raises(DatabaseTooSlowError) as caught:
            await list_dead_letters(operator, EVERYTHING, limit=10)
    assert caught.value.remedy == "spectral doctor"
    assert len((await list_dead_letters(operator, EVERYTHING, limit=10)).items) == 1


async def test_whoever_may_read_one_workspace_sees_its_letters_alone(database: str, connection: Connection) -> None:
    mine, theirs = uuid4(), uuid4()
    seen = letter(connection, workspace_id=mine)
    letter(connection, workspace_id=theirs)
    with role(database, groups=("spectral_readonly",)) as dsn:
        async with connect(dsn, "test") as reader:
            await reader.connection.execute("select set_config('spectral.workspace_id', %s, false)", [str(mine)])
            page = await list_dead_letters(reader, DeadLetterFilter(error_class="ValueError"), limit=10)
    assert [each.id for each in page.items] == [seen]


async def test_a_database_without_the_schema_is_told_to_be_migrated(empty_database: str) -> None:
    async with connect(empty_database, "test") as bare:
        with pytest.raises(ConfigurationError, match="spectral migrate up"):
            await list_dead_letters(bare, EVERYTHING, limit=10)


async def test_a_real_failure_is_what_is_listed(operator: Database, connection: Connection) -> None:
    event_id = fail(connection, "TimeoutError: platform.index: slow")
    publish(connection)
    (found,) = (await list_dead_letters(operator, DeadLetterFilter(handler_name="platform.index"), limit=5)).items
    assert (found.id, found.error_class, found.claimed_by) == (event_id, "TimeoutError", "worker-1")
