"""The agent tools as plain functions: what they answer, and that a change never does more than its plan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pydantic import ValidationError

from spectral.core.database import Database, DatabaseUnavailableError, NotFoundError, RefusedError, connect
from spectral_ops.mcp import tools
from spectral_ops.mcp.arguments import (
    DiscardDlqEvent,
    GetDlqEventDetail,
    ListAudit,
    ListDlqEvents,
    PlanDiscard,
    PlanReplay,
    ReplayDlqEvent,
    TriageDlq,
)
from spectral_ops.mcp.plans import PlanBook
from spectral_ops.mcp.results_change import Change, Step
from tests.migrations.sql import EVENT_TYPE, claim, fail, publish, row, settle

Connection = psycopg.Connection[Any]
AGENT = "agent:test/1 for ada"


@pytest.fixture
async def desk(database: str) -> AsyncIterator[Database]:
    async with connect(database, "test") as opened:
        yield opened


@pytest.fixture
def plans() -> PlanBook:
    return PlanBook()


async def replay(desk: Database, plans: PlanBook, **asked: Any) -> Change:  # noqa: ANN401  the tool's arguments
    return await tools.replay_dlq_event(desk, plans, ReplayDlqEvent(reason="fixed", **asked), by=AGENT)


def statuses(connection: Connection, *ids: UUID) -> list[str]:
    return [row(connection, each)["status"] for each in ids]


def fail_with_payload(connection: Connection, payload: dict[str, Any]) -> UUID:
    event_id = publish(connection, p_payload=Jsonb(payload))
    settle(connection, claim(connection), "dead_letter", "ValueError: no")
    return event_id


def fail_again(connection: Connection, event_id: UUID) -> None:
    """Somebody else replays it, and it fails once more."""
    connection.execute("select core.outbox_replay(%s, 1, 'somebody')", [event_id])
    settle(connection, claim(connection), "dead_letter", "ValueError: still no")


async def test_failed_events_are_listed_by_page_and_filter(desk: Database, connection: Connection) -> None:
    first = fail(connection, "ValueError: platform.index: no")
    second = fail(connection, "TimeoutError: platform.index: slow")
    page = await tools.list_dlq_events(desk, ListDlqEvents(limit=1))
    assert [each.event_id for each in page.events] == [second]
    assert page.next_cursor is not None
    rest = await tools.list_dlq_events(desk, ListDlqEvents(limit=5, cursor=page.next_cursor))
    assert [each.event_id for each in rest.events] == [first]
    found = await tools.list_dlq_events(desk, ListDlqEvents(error_class="TimeoutError"))
    assert [(each.event_id, each.handler_name) for each in found.events] == [(second, "platform.index")]
    assert "payload" not in found.model_dump_json()


async def test_triage_groups_by_fingerprint(desk: Database, connection: Connection) -> None:
    for error in ("ValueError: a", "ValueError: b", "TimeoutError: c"):
        fail(connection, error)
    found = await tools.triage_dlq(desk, TriageDlq())
    assert [(each.event_type, each.error_class, each.count) for each in found.groups] == [
        (EVENT_TYPE, "ValueError", 2),
        (EVENT_TYPE, "TimeoutError", 1),
    ]
    assert found.summary().startswith("3 failed events in 2 groups.")


async def test_the_detail_shows_the_payload_cut(desk: Database, connection: Connection) -> None:
    event_id = fail_with_payload(connection, {"text": "x" * 10_000})
    found = await tools.get_dlq_event_detail(desk, GetDlqEventDetail(event_id=event_id))
    assert (len(found.payload), found.payload_truncated, found.payload_bytes) == (4_000, True, 10_012)
    whole = await tools.get_dlq_event_detail(desk, GetDlqEventDetail(event_id=event_id, payload_chars=20_000))
    assert (whole.payload, whole.payload_truncated) == ('{"text": "' + "x" * 10_000 + '"}', False)
    assert "x" not in whole.summary().replace(str(event_id), "")


async def test_the_detail_of_a_long_history_is_bounded(desk: Database, connection: Connection) -> None:
    event_id = fail(connection, f"ValueError: {'long ' * 600}")
    for _ in range(12):
        fail_again(connection, event_id)
    found = await tools.get_dlq_event_detail(desk, GetDlqEventDetail(event_id=event_id))
    assert (found.replays, [each.cycle for each in found.cycles]) == (12, list(range(3, 13)))
    assert len(found.model_dump_json()) < 20_000


async def test_an_event_that_is_not_there_is_said_to_be_missing(desk: Database) -> None:
    with pytest.raises(NotFoundError, match="there is no event"):
        await tools.get_dlq_event_detail(desk, GetDlqEventDetail(event_id=uuid4()))


async def test_the_backlog_comes_with_a_verdict_in_words(desk: Database, connection: Connection) -> None:
    fail(connection)
    publish(connection)
    found = await tools.get_backlog(desk)
    assert found.summary().startswith(f"{found.level}: Down: no worker is alive")
    (platform,) = (each for each in found.backlogs if each.context == "platform")
    assert (platform.failed.value, platform.generation) == (1, 1)


async def test_generations_come_with_remarks(desk: Database) -> None:
    found = await tools.list_generations(desk)
    assert {each.generation: each.status for each in found.generations} == {0: "retired", 1: "live", 2: "allocated"}
    assert [each.message for each in found.remarks] == ["generation 1 is live and has no worker"]


async def test_the_doctor_says_what_is_wrong_and_the_fix(database: str) -> None:
    found = await tools.run_doctor(database)
    assert found.checks > 20
    assert all(each.what and each.why and each.fix for each in found.findings)


async def test_one_event_is_planned_and_replayed_by_the_same_tool(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    event_id = fail(connection)
    planned = await replay(desk, plans, event_id=event_id)
    assert (planned.step, planned.count, planned.event_ids, planned.to_generation) == (Step.PLANNED, 1, [event_id], 1)
    assert statuses(connection, event_id) == ["failed"]
    done = await replay(desk, plans, event_id=event_id, token=planned.token)
    assert (done.step, done.count, done.event_ids, done.refused, done.token) == (Step.APPLIED, 1, [event_id], [], None)
    assert statuses(connection, event_id) == ["pending"]


async def test_who_and_why_stand_in_the_audit_and_in_the_history(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    event_id = fail(connection)
    planned = await tools.plan_replay(desk, plans, PlanReplay(event_ids=[event_id], to_generation=2))
    await replay(desk, plans, token=planned.token)
    (entry,) = (await tools.list_audit(desk, ListAudit(event_id=event_id))).entries
    assert (entry.action, entry.actor, entry.reason, entry.affected) == ("replay", AGENT, "fixed", 1)
    assert entry.detail == {"generation": 2}
    assert row(connection, event_id)["failure_history"][0]["replayed_by"] == AGENT


async def test_rows_that_come_after_the_plan_are_not_touched(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    early = [fail(connection), fail(connection)]
    planned = await tools.plan_replay(desk, plans, PlanReplay(event_type=EVENT_TYPE))
    late = fail(connection)
    done = await replay(desk, plans, token=planned.token)
    assert (set(done.event_ids), done.refused) == (set(early), [])
    assert statuses(connection, *early, late) == ["pending", "pending", "failed"]


async def test_rows_that_changed_after_the_plan_are_refused_one_by_one(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    same, replayed, discarded, failed_anew = (fail(connection) for _ in range(4))
    planned = await tools.plan_discard(desk, plans, PlanDiscard(event_type=EVENT_TYPE))
    fail_again(connection, failed_anew)
    connection.execute("select core.outbox_replay(%s, 1, 'somebody')", [replayed])
    connection.execute("select core.outbox_discard(array[%s], 'somebody', 'mine')", [discarded])
    done = await tools.discard_dlq_event(desk, plans, DiscardDlqEvent(token=planned.token, reason="junk"), by=AGENT)
    assert done.event_ids == [same]
    assert {each.event_id: each.refusal for each in done.refused} == {
        replayed: "pending",
        discarded: "discarded",
        failed_anew: "failed anew since it was planned",
    }
    assert row(connection, failed_anew)["deleted_at"] is None
    assert done.summary() == "1 event discarded. 3 events refused, see why."


async def test_a_plan_may_be_carried_out_for_one_of_its_events_only(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    one, other = fail(connection), fail(connection)
    planned = await tools.plan_replay(desk, plans, PlanReplay(event_ids=[one, other]))
    with pytest.raises(RefusedError, match="not part of this plan"):
        await replay(desk, plans, event_id=uuid4(), token=planned.token)
    assert (await replay(desk, plans, event_id=one, token=planned.token)).event_ids == [one]
    assert statuses(connection, one, other) == ["pending", "failed"]
    with pytest.raises(RefusedError, match="used already"):
        await replay(desk, plans, event_id=other, token=planned.token)


async def test_a_plan_to_replay_cannot_discard(desk: Database, connection: Connection, plans: PlanBook) -> None:
    event_id = fail(connection)
    planned = await replay(desk, plans, event_id=event_id)
    with pytest.raises(RefusedError, match="a plan to replay, not to discard"):
        await tools.discard_dlq_event(desk, plans, DiscardDlqEvent(token=planned.token, reason="x"), by=AGENT)
    assert statuses(connection, event_id) == ["failed"]


async def test_ids_that_are_not_failed_are_named_in_the_plan(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    failed, pending, unknown = fail(connection), publish(connection), uuid4()
    planned = await tools.plan_replay(desk, plans, PlanReplay(event_ids=[unknown, failed, pending, failed]))
    assert planned.event_ids == [failed]
    assert [(each.event_id, each.refusal) for each in planned.refused] == [
        (unknown, "unknown"),
        (pending, "pending"),
    ]
    with pytest.raises(NotFoundError, match="none of these events is in the DLQ"):
        await tools.plan_replay(desk, plans, PlanReplay(event_ids=[pending]))


@pytest.mark.parametrize(("generation", "error"), [(0, RefusedError), (99, NotFoundError)])
async def test_nothing_is_planned_into_a_generation_that_cannot_take_it(
    desk: Database, connection: Connection, plans: PlanBook, generation: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"generation {generation}"):
        await replay(desk, plans, event_id=fail(connection), to_generation=generation)


async def test_a_generation_retired_after_the_plan_refuses_it(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    event_id = fail(connection)
    planned = await replay(desk, plans, event_id=event_id, to_generation=2)
    connection.execute("select core.deployment_retire(2)")
    with pytest.raises(RefusedError, match="generation 2 is retired"):
        await replay(desk, plans, token=planned.token)
    assert statuses(connection, event_id) == ["failed"]


async def test_a_connection_lost_in_the_middle_of_a_change_says_where_to_look(
    database: str, desk: Database, connection: Connection, plans: PlanBook
) -> None:
    event_id = fail(connection)
    planned = await replay(desk, plans, event_id=event_id)
    with psycopg.connect(database) as holder:
        holder.execute("select from core.outbox where id = %s for update", [event_id])
        change = asyncio.create_task(replay(desk, plans, token=planned.token))
        pid = desk.connection.info.backend_pid
        # The server knows, and tells nobody.
        while connection.execute("select cardinality(pg_blocking_pids(%s))", [pid]).fetchone() == (0,):  # noqa: ASYNC110
            await asyncio.sleep(0)
        connection.execute("select pg_terminate_backend(%s)", [pid])
        with pytest.raises(DatabaseUnavailableError, match="all of it was done, or nothing") as lost:
            await change
    assert lost.value.remedy == f'list_audit(event_id="{event_id}") says whether it was done'
    assert statuses(connection, event_id) == ["failed"]


async def test_a_plan_is_bounded_and_says_that_there_is_more(
    desk: Database, connection: Connection, plans: PlanBook
) -> None:
    connection.execute(
        "select count(core.outbox_publish(p_event_type => %s, p_source => 'worlds', p_target => 'platform',"
        " p_generation => 1)) from generate_series(1, 1003)",
        [EVENT_TYPE],
    )
    settle(connection, claim(connection, limit=1003), "dead_letter", "ValueError: no")
    few = await tools.plan_discard(desk, plans, PlanDiscard(event_type=EVENT_TYPE))
    assert (few.count, few.more) == (200, True)
    planned = await tools.plan_discard(desk, plans, PlanDiscard(event_type=EVENT_TYPE, limit=1000))
    assert (planned.count, len(set(planned.event_ids)), planned.more) == (1000, 1000, True)
    done = await tools.discard_dlq_event(desk, plans, DiscardDlqEvent(token=planned.token, reason="junk"), by=AGENT)
    assert done.count == 1000
    rest = await tools.plan_discard(desk, plans, PlanDiscard(event_type=EVENT_TYPE))
    assert (rest.count, rest.more) == (3, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"event_ids": []},
        {"event_ids": [str(uuid4())], "event_type": EVENT_TYPE},
        {"event_type": EVENT_TYPE, "handler": "a typing mistake"},
        {"event_ids": [str(uuid4()) for _ in range(1001)]},
        {"event_type": EVENT_TYPE, "limit": 1001},
    ],
    ids=["everything", "no ids", "both", "unknown name", "too many", "too many of a filter"],
)
def test_what_a_plan_is_for_has_to_be_said_in_one_way(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PlanReplay.model_validate(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": "x"},
        {"event_id": str(uuid4())},
        {"event_id": str(uuid4()), "reason": "  "},
        {"token": "x.y", "reason": "x", "to_generation": 1},
    ],
    ids=["nothing to do", "no reason", "an empty reason", "another generation than planned"],
)
def test_a_change_needs_a_reason_and_an_event_or_a_token(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ReplayDlqEvent.model_validate(wrong)
