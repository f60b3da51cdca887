"""A tail shows what is published and what becomes of it, once each, also when commits come late or the wire is cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from spectral.core.database import Database, DatabaseUnavailableError, connect
from spectral.core.events.envelope import new_event_id
from spectral.core.operations import tail as service
from spectral.core.operations.events import EventFilter, EventStatus
from spectral.core.operations.tail import Change, Missed, TailMemory, look, recent, tail
from tests.migrations.schema import outbox_row, role, update
from tests.migrations.sql import claim, fail, publish, settle, subscribe

Connection = psycopg.Connection[Any]
EVERYTHING = EventFilter()


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


@pytest.fixture
async def memory(operator: Database) -> TailMemory:
    """What a tail remembers that has just begun."""
    begun = TailMemory()
    assert await look(operator, EVERYTHING, begun) == []
    return begun


async def told(
    operator: Database, memory: TailMemory, wanted: EventFilter = EVERYTHING
) -> list[tuple[str, UUID | None]]:
    """What one look tells."""
    return [
        (each.what, each.event.id) if isinstance(each, Change) else ("missed", None)
        for each in await look(operator, wanted, memory)
    ]


async def test_an_event_is_shown_when_it_is_published_and_at_every_step_after_that(
    operator: Database, connection: Connection, memory: TailMemory
) -> None:
    event_id = publish(connection)
    assert await told(operator, memory) == [("published", event_id)]
    assert await told(operator, memory) == []
    held = claim(connection)
    assert await told(operator, memory) == [("claimed", event_id)]
    settle(connection, held, "retry", "TimeoutError: slow")
    assert await told(operator, memory) == [("to be retried", event_id)]
    settle(connection, claim(connection), "dead_letter", "ValueError: no")
    assert await told(operator, memory) == [("failed", event_id)]
    connection.execute("select core.outbox_discard(%s, 'ada', 'oh')", [[event_id]])
    assert await told(operator, memory) == [("discarded", event_id)]
    assert memory.watched == {}


async def test_a_replay_is_shown_of_whatever_the_tail_has_seen_fail(
    operator: Database, connection: Connection, memory: TailMemory
) -> None:
    event_id = fail(connection)
    assert await told(operator, memory) == [("failed", event_id)]
    connection.execute("select core.outbox_replay(%s, 2, 'ada')", [event_id])
    assert await told(operator, memory) == [("replayed", event_id)]


async def test_what_was_there_before_is_not_shown(operator: Database, connection: Connection) -> None:
    publish(connection)
    memory = TailMemory()
    assert await told(operator, memory) == []
    assert await told(operator, memory) == []


async def test_what_commits_late_is_shown_though_later_ones_were_seen(
    operator: Database, connection: Connection, memory: TailMemory
) -> None:
    with psycopg.connect(connection.info.dsn) as slow:
        late = publish(slow)
        early = publish(connection)
        assert await told(operator, memory) == [("published", early)]
        slow.commit()
    assert late < early
    assert await told(operator, memory) == [("published", late)]


async def test_the_shares_of_a_broadcast_are_shown_when_it_is_split_however_old_it_is(
    operator: Database, connection: Connection, memory: TailMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(connection, "platform")
    parent = publish(connection, target=None)
    assert await told(operator, memory) == [("published", parent)]
    # By now it is too old to be among the newest, and so are the ids of its shares.
    monkeypatch.setattr(service, "LOOK_BACK", timedelta(seconds=-60))
    connection.execute("select core.outbox_fan_out('{1}', '{outbox_gen_1}')")
    (split, share) = await told(operator, memory)
    assert split == ("delivered", parent)
    assert share[0] == "published"
    held = claim(connection)
    assert await told(operator, memory) == [("claimed", held[0].id)]


async def test_a_filter_shows_its_own_and_a_status_what_comes_into_it(
    operator: Database, connection: Connection, memory: TailMemory
) -> None:
    publish(connection, target="core")
    mine = publish(connection)
    wanted = EventFilter(context="platform", status=EventStatus.FAILED)
    assert await told(operator, memory, wanted) == []
    settle(connection, claim(connection), "dead_letter", "ValueError: no")
    assert await told(operator, memory, wanted) == [("failed", mine)]


async def test_more_than_one_look_takes_in_is_said_to_be_missed(
    operator: Database, connection: Connection, memory: TailMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_SEEN", 3)
    published = [publish(connection) for _ in range(6)]
    changes = await look(operator, EVERYTHING, memory)
    assert isinstance(changes[0], Missed)
    assert [each.event.id for each in changes[1:] if isinstance(each, Change)] == published[-3:]
    # Those it has not seen are not seen later either, and it does not complain again.
    publish(connection)
    assert [isinstance(each, Missed) for each in await look(operator, EVERYTHING, memory)] == [False]


async def test_what_the_sweep_has_deleted_is_watched_no_more(
    operator: Database, connection: Connection, memory: TailMemory
) -> None:
    event_id = fail(connection)
    await look(operator, EVERYTHING, memory)
    connection.execute("delete from core.outbox where id = %s", [event_id])
    assert await told(operator, memory) == []
    assert memory.watched == {}


async def test_a_lost_connection_is_told_and_another_one_goes_on_where_it_was(
    database: str, connection: Connection
) -> None:
    memory = TailMemory()
    every = timedelta(milliseconds=10)

    async def until_cut(opened: Database, found: list[tuple[str, UUID]]) -> None:
        """Follow, and be cut off after the first change."""
        async for each in tail(opened, EVERYTHING, every=every, memory=memory):
            assert isinstance(each, Change)
            found.append((each.what, each.event.id))
            connection.execute("select pg_terminate_backend(%s, 5000)", [opened.connection.info.backend_pid])

    async def following() -> list[tuple[str, UUID]]:
        found: list[tuple[str, UUID]] = []
        async with connect(database, "tail") as opened:
            with pytest.raises(DatabaseUnavailableError):
                await until_cut(opened, found)
        return found

    async with connect(database, "tail") as opened:
        await look(opened, EVERYTHING, memory)
    first = publish(connection)
    assert await following() == [("published", first)]
    second = publish(connection)  # while nobody is connected
    assert await following() == [("published", second)]


async def test_a_tail_can_begin_with_the_last_ones_that_are_there(operator: Database, connection: Connection) -> None:
    memory, published = TailMemory(), [publish(connection) for _ in range(4)]
    outbox_row(connection, "delivered", id=UUID(int=2**128 - 1))  # no time in its id
    assert [(each.what, each.event.id) for each in await recent(operator, EVERYTHING, memory, limit=3)] == [
        ("published", event_id) for event_id in published[-3:]
    ]
    assert len(await recent(operator, EVERYTHING, TailMemory(), limit=10)) == 5
    # What has been shown is not shown again, but what becomes of it is.
    (held,) = claim(connection, limit=1)
    assert held.id == published[0]
    settle(connection, [held], "dead_letter", "ValueError: no")
    assert await told(operator, memory) == [("failed", published[0])]


async def test_an_event_made_by_a_clock_that_is_a_little_ahead_is_shown(
    operator: Database, connection: Connection, memory: TailMemory
) -> None:
    ahead = UUID(int=new_event_id().int + (10 * 60 * 1000 << 80))
    outbox_row(connection, id=ahead)
    assert await told(operator, memory) == [("published", ahead)]
    update(connection, ahead, next_attempt_at="now")
    assert await told(operator, memory) == []
