"""The audit, newest first: by what was done, by whom, to which event, since when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import Database, RefusedError, connect
from spectral.core.operations import audit
from spectral.core.operations.audit import AuditFilter, list_audit
from tests.migrations.schema import role

Connection = psycopg.Connection[Any]


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


def entry(connection: Connection, action: str = "replay", actor: str = "ada", *event_ids: UUID, **more: object) -> int:
    given = {"reason": None, "at": None, **more}
    row = connection.execute(
        "insert into core.audit (action, actor, reason, affected, event_ids, recorded_at)"
        " values (%s, %s, %s, %s, %s::uuid[], coalesce(%s::timestamptz, clock_timestamp())) returning id",
        [action, actor, given["reason"], len(event_ids), list(event_ids), given["at"]],
    ).fetchone()
    assert row is not None
    return int(row[0])


async def all_pages(operator: Database, wanted: AuditFilter, limit: int = 2) -> list[int]:
    seen: list[int] = []
    cursor = None
    for _ in range(100):
        page = await list_audit(operator, wanted, limit=limit, cursor=cursor)
        seen += [each.id for each in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return seen
    raise AssertionError("the pages do not end")


async def test_entries_are_listed_newest_first_with_who_and_why(operator: Database, connection: Connection) -> None:
    ids = [uuid4() for _ in range(12)]
    written = [entry(connection, reason="fixed"), entry(connection, "discard", "bob"), entry(connection)]
    written.append(entry(connection, "replay", "ada", *ids, reason="many"))
    assert await all_pages(operator, AuditFilter()) == written[::-1]
    newest = (await list_audit(operator, AuditFilter(), limit=1)).items[0]
    assert (newest.actor, newest.session_role, newest.reason, newest.affected) == ("ada", "postgres", "many", 12)
    assert list(newest.event_ids) == ids[:10]


async def test_each_field_of_the_filter_selects(operator: Database, connection: Connection) -> None:
    event_id = uuid4()
    old = entry(connection, at="2026-01-01T00:00Z")
    mine = entry(connection, "discard", "bob", event_id)
    again = entry(connection, "replay", "ada", uuid4(), event_id)
    since = datetime.fromisoformat("2026-01-01T00:00:01+00:00")
    for wanted, expected in [
        (AuditFilter(action="discard"), [mine]),
        (AuditFilter(actor="bob"), [mine]),
        (AuditFilter(event_id=event_id), [again, mine]),
        (AuditFilter(event_id=event_id, actor="ada"), [again]),
        (AuditFilter(event_id=event_id, action="discard"), [mine]),
        (AuditFilter(since=since), [again, mine]),
        (AuditFilter(actor="ada", action="replay"), [again, old]),
        (AuditFilter(actor="nobody"), []),
        (AuditFilter(event_id=uuid4()), []),
    ]:
        for limit in (1, 10):
            assert await all_pages(operator, wanted, limit) == expected, wanted


async def test_few_that_fit_among_many_are_found_page_by_page_and_not_beyond_their_time(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = entry(connection, actor="bob")
    for _ in range(9):
        entry(connection)
    monkeypatch.setattr(audit, "WINDOW", 4)
    first = await list_audit(operator, AuditFilter(actor="bob"), limit=2)
    assert (first.items, first.next_cursor is None) == ((), False)
    assert await all_pages(operator, AuditFilter(actor="bob")) == [wanted]
    # All that it looked at is older than what is asked for, by far: it does not go on.
    later = AuditFilter(since=datetime.now().astimezone() + timedelta(days=2))
    assert (await list_audit(operator, later, limit=2)).next_cursor is None


@pytest.mark.parametrize("cursor", ["", "b12", "axyz", "t0-" + "0" * 32])
async def test_what_is_no_cursor_of_the_audit_is_refused(operator: Database, cursor: str) -> None:
    with pytest.raises(RefusedError, match="no cursor of this list"):
        await list_audit(operator, AuditFilter(), limit=2, cursor=cursor)
