"""Events as they are: what a list shows of each state, in which order, and where it goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import Database, RefusedError, connect
from spectral.core.events.envelope import new_event_id
from spectral.core.operations import events_pending, events_walk
from spectral.core.operations.events import EventFilter, EventStatus, list_events
from tests.migrations.schema import STATES, outbox_row, role

Connection = psycopg.Connection[Any]


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


def event(connection: Connection, status: str = "pending", **columns: object) -> UUID:
    """A row with an id that begins with the time, as publishers make them."""
    event_id = new_event_id()
    if status == "discarded":
        outbox_row(connection, "failed", id=event_id, deleted_at=datetime.now(UTC), **columns)
    else:
        outbox_row(connection, status, id=event_id, **columns)
    return event_id


async def all_pages(operator: Database, wanted: EventFilter, limit: int = 2) -> list[UUID]:
    seen: list[UUID] = []
    cursor = None
    for _ in range(100):
        page = await list_events(operator, wanted, limit=limit, cursor=cursor)
        assert len(page.items) <= limit
        seen += [each.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return seen
    raise AssertionError("the pages do not end")


async def test_events_of_every_state_are_listed_newest_first_and_without_payloads(
    operator: Database, connection: Connection
) -> None:
    states = [*STATES, "discarded"]
    written = [event(connection, state, payload={"canary": True}) for state in states]
    page = await list_events(operator, EventFilter(), limit=10)
    assert [(each.id, each.status) for each in page.items] == list(zip(written, states, strict=True))[::-1]
    assert page.next_cursor is None
    assert "canary" not in repr(page)
    assert page.window == "the newest 50,000 events"


@pytest.mark.parametrize("status", list(EventStatus))
async def test_each_state_is_a_list_of_its_own_with_pages(
    operator: Database, connection: Connection, status: EventStatus
) -> None:
    for state in (*STATES, "discarded"):
        for number in range(5):
            event(connection, state, idempotency_key=f"{state}-{number}")
    seen = await all_pages(operator, EventFilter(status=status))
    assert len(seen) == len(set(seen)) == 5
    page = await list_events(operator, EventFilter(status=status), limit=10)
    assert {each.status for each in page.items} == {status.value}


@pytest.mark.parametrize("status", [None, *EventStatus])
async def test_each_field_of_the_filter_selects(
    operator: Database, connection: Connection, status: EventStatus | None
) -> None:
    workspace, state = uuid4(), status.value if status is not None else "delivered"
    mine = event(
        connection,
        state,
        event_type="orders.order.placed",
        target="core",
        workspace_id=workspace,
        generation=2,
        channel="outbox_gen_2",
    )
    event(connection, state)
    for wanted in (
        EventFilter(status=status, event_type="orders.order.placed"),
        EventFilter(status=status, context="core"),
        EventFilter(status=status, workspace_id=workspace),
        EventFilter(status=status, generation=2),
    ):
        assert await all_pages(operator, wanted) == [mine], wanted
    assert await all_pages(operator, EventFilter(status=status, context="core", generation=1)) == []


async def test_what_has_been_due_longest_stands_above_whatever_line_it_waits_in(
    operator: Database, connection: Connection
) -> None:
    now = datetime.now(UTC)
    lines: list[dict[str, Any]] = [
        {"target": "core"},
        {"target": None},
        {"channel": "outbox_default"},
        {"generation": 2, "channel": "outbox_gen_2_cold"},
    ]
    written = [
        event(connection, next_attempt_at=now - timedelta(minutes=minutes), created_at=now - timedelta(hours=1), **line)
        for minutes, line in zip(range(30, 0, -2), lines * 4, strict=False)
    ]
    assert await all_pages(operator, EventFilter(status=EventStatus.PENDING)) == written
    of_type = EventFilter(status=EventStatus.PENDING, event_type="worlds.scan.completed")
    assert await all_pages(operator, of_type) == written
    broadcasts = await all_pages(operator, EventFilter(status=EventStatus.PENDING, context=""))
    assert broadcasts == written[1::4]


async def test_few_that_fit_among_many_are_found_page_by_page(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = uuid4()
    wanted = {state: event(connection, state, workspace_id=workspace) for state in ("pending", "delivered")}
    for _ in range(9):
        event(connection)
        event(connection, "delivered")
    for module in (events_walk, events_pending):
        monkeypatch.setattr(module, "WINDOW", 4)
    for state, event_id in wanted.items():
        chosen = EventFilter(status=EventStatus(state), workspace_id=workspace)
        first = await list_events(operator, chosen, limit=1)
        if state == "delivered":
            assert first.items == ()
            assert first.next_cursor is not None
        assert await all_pages(operator, chosen) == [event_id]


async def test_too_many_lines_to_merge_are_listed_by_id(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [event(connection, target=f"context_{number}") for number in range(4)]
    for module in (events_walk, events_pending):
        monkeypatch.setattr(module, "MAX_LINES", 2)
    assert await all_pages(operator, EventFilter(status=EventStatus.PENDING)) == written[::-1]


async def test_ids_without_a_time_come_after_all_others(operator: Database, connection: Connection) -> None:
    untimed = [UUID(int=(0x90 - n) << 120) for n in range(3)]
    for event_id in untimed:
        outbox_row(connection, id=event_id)
    timed = [event(connection) for _ in range(3)]
    assert await all_pages(operator, EventFilter()) == [*timed[::-1], *untimed]


@pytest.mark.parametrize("status", [None, *EventStatus])
async def test_a_cursor_of_another_list_is_refused(operator: Database, status: EventStatus | None) -> None:
    with pytest.raises(RefusedError, match="no cursor of this list"):
        await list_events(operator, EventFilter(status=status), limit=2, cursor="z0-" + "0" * 32)
