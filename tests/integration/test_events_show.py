"""One event, whole: nothing about it is missing, and nothing about it is too large to be shown."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import Database, NotFoundError, connect
from spectral.core.operations.documents import as_document
from spectral.core.operations.events import get_event
from spectral.core.operations.events_detail import MAX_CYCLES_SHOWN, MAX_PAYLOAD_SHOWN
from tests.migrations.schema import outbox_row, role, update
from tests.migrations.sql import claim, fail, publish, settle

Connection = psycopg.Connection[Any]
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


def subscribe(connection: Connection, *handlers: str, generation: int = 1, context: str = "platform") -> None:
    connection.execute(
        "select core.outbox_subscribe(%s, %s, %s, %s, %s, true)",
        [
            generation,
            [context] * len(handlers),
            ["worlds.scan.completed"] * len(handlers),
            list(handlers),
            [6] * len(handlers),
        ],
    )


def handled(connection: Connection, handler: str, key: str, event_id: UUID) -> None:
    connection.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id) values (%s, %s, %s)",
        [handler, key, event_id],
    )


async def test_the_whole_course_of_an_event_that_failed_was_replayed_and_was_delivered(
    operator: Database, connection: Connection
) -> None:
    subscribe(connection, "platform.index", "platform.store")
    event_id = fail(connection, "ValueError: platform.index: no")
    connection.execute("select core.outbox_replay_many(%s, 1, 'ada', 'fixed in 1.4.2')", [[event_id]])
    (held,) = claim(connection, worker="worker-2")
    handled(connection, "platform.store", str(event_id), event_id)
    settle(connection, [held], "delivered")

    found = await get_event(operator, event_id)

    assert (found.status, found.attempts, found.error, found.replays) == ("delivered", 1, None, 1)
    assert [(each.what, each.by) for each in found.timeline] == [
        ("published", "worlds"),
        ("failed", None),
        ("replayed (cycle 1)", "ada"),
        ("claimed", "worker-2"),
        ("delivered", None),
    ]
    assert found.timeline[2].detail == "fixed in 1.4.2"
    (cycle,) = found.cycles
    assert (cycle.attempts, cycle.last_error, cycle.replayed_by) == (1, "ValueError: platform.index: no", "ada")
    assert [(each.handler_name, each.subscribed, each.handled_at is None) for each in found.handlers or ()] == [
        ("platform.index", True, True),
        ("platform.store", True, False),
    ]
    assert [(each.action, each.reason, *each.event_ids) for each in found.audit or ()] == [
        ("replay", "fixed in 1.4.2", event_id)
    ]


async def test_the_envelope_the_routing_and_the_error_are_shown(operator: Database, connection: Connection) -> None:
    workspace = uuid4()
    event_id = outbox_row(
        connection,
        "failed",
        payload={"number": 1, "nested": {"deep": [None, "ü"]}},
        workspace_id=workspace,
        idempotency_key="order-7",
        trace_context=TRACE,
        last_error="TimeoutError: platform.index: too slow",
        created_at="2025-12-31T00:00Z",
    )
    found = await get_event(operator, event_id)
    assert found.payload == {"number": 1, "nested": {"deep": [None, "ü"]}}
    assert (found.payload_text, found.payload_truncated) == (None, False)
    assert (found.workspace_id, found.idempotency_key, found.context) == (workspace, "order-7", "platform")
    assert (found.trace_context, found.trace_id) == (TRACE, "4bf92f3577b34da6a3ce929d0e0e4736")
    assert (found.generation, found.generation_status, found.channel) == (1, "live", "outbox_gen_1")
    assert found.error is not None
    assert (found.error.error_class, found.error.handler_name, found.error.message) == (
        "TimeoutError",
        "platform.index",
        "too slow",
    )
    document = json.loads(json.dumps(as_document(found)))
    assert document["error"]["handler_name"] == "platform.index"
    assert document["timeline"][-1]["what"] == "failed"


async def test_a_large_payload_is_cut_by_the_server_and_said_to_be(operator: Database, connection: Connection) -> None:
    event_id = outbox_row(connection, payload={"text": "ü" * 100_000})
    found = await get_event(operator, event_id)
    assert (found.payload, found.payload_truncated) == (None, True)
    assert found.payload_bytes == 200_012
    assert found.payload_text is not None
    assert len(found.payload_text) == MAX_PAYLOAD_SHOWN
    assert found.payload_text.startswith('{"text": "üü')


async def test_a_payload_as_long_as_may_be_shown_is_shown_whole(operator: Database, connection: Connection) -> None:
    fitting = {"text": "x" * (MAX_PAYLOAD_SHOWN - 12)}
    found = await get_event(operator, outbox_row(connection, payload=fitting))
    assert (found.payload, found.payload_bytes) == (fitting, MAX_PAYLOAD_SHOWN)


async def test_a_payload_that_no_program_can_read_is_shown_as_text(operator: Database, connection: Connection) -> None:
    event_id = publish(connection)
    connection.execute("alter table core.outbox disable trigger user")
    connection.execute(
        "update core.outbox set payload = jsonb_build_object('n', repeat('9', 5001)::numeric) where id = %s", [event_id]
    )
    found = await get_event(operator, event_id)
    assert (found.payload, found.payload_truncated) == (None, False)
    assert found.payload_text == '{"n": ' + "9" * 5001 + "}"


async def test_of_a_thousand_cycles_the_last_ones_are_shown(operator: Database, connection: Connection) -> None:
    entry = (
        "jsonb_build_object('cycle', n, 'attempts', 6, 'last_error', 'E: no', 'first_failed_at', now(),"
        " 'failed_at', now(), 'replayed_at', now(), 'replayed_by', 'ada', 'of a later version', true)"
    )
    event_id = outbox_row(connection, "failed")
    connection.execute("alter table core.outbox disable trigger user")
    connection.execute(
        f"update core.outbox set failure_history = (select jsonb_agg({entry} order by n)"  # noqa: S608  a constant
        " from generate_series(1, 1000) as n) where id = %s",
        [event_id],
    )
    found = await get_event(operator, event_id)
    assert found.replays == 1000
    assert [each.cycle for each in found.cycles] == list(range(1001 - MAX_CYCLES_SHOWN, 1001))


async def test_a_broadcast_shows_its_shares_and_each_share_its_broadcast(
    operator: Database, connection: Connection
) -> None:
    subscribe(connection, "platform.index")
    subscribe(connection, "billing.invoice", context="billing")
    parent = publish(connection, target=None)
    connection.execute("select core.outbox_fan_out('{1}', '{outbox_gen_1}')")
    found = await get_event(operator, parent)
    assert (found.context, found.status, found.parent) == (None, "delivered", None)
    assert [(each.context, each.status) for each in found.children] == [("billing", "pending"), ("platform", "pending")]
    assert [each.handler_name for each in found.handlers or ()] == ["billing.invoice", "platform.index"]
    assert found.timeline[-1].what == "split for its contexts"

    share = await get_event(operator, found.children[0].id)
    assert share.parent is not None
    assert (share.parent.id, share.parent.context, share.children) == (parent, None, ())
    assert [each.handler_name for each in share.handlers or ()] == ["billing.invoice"]


async def test_a_handler_of_another_generation_is_shown_if_it_took_effect(
    operator: Database, connection: Connection
) -> None:
    subscribe(connection, "platform.index")
    subscribe(connection, "platform.renamed", "platform.added", generation=2)
    event_id, twin = publish(connection), uuid4()
    handled(connection, "platform.renamed", str(event_id), twin)
    found = await get_event(operator, event_id)
    assert [(each.handler_name, each.subscribed, each.handled_as) for each in found.handlers or ()] == [
        ("platform.index", True, None),
        ("platform.renamed", False, twin),
    ]


async def test_a_discarded_event_says_so_and_by_whom(operator: Database, connection: Connection) -> None:
    event_id = fail(connection)
    connection.execute("select core.outbox_discard(%s, 'ada', 'a test order')", [[event_id]])
    found = await get_event(operator, event_id)
    assert found.status == "discarded"
    last = found.timeline[-1]
    assert (last.what, last.by, last.detail) == ("discarded", "ada", "a test order")
    update(connection, event_id, deleted_at=None)
    found = await get_event(operator, event_id)
    assert (found.status, found.timeline[-1].what) == ("failed", "brought back")


async def test_a_failure_that_was_made_good_is_shown_with_its_time_and_its_execution(
    operator: Database, connection: Connection
) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection, worker="worker-1"), "retry", "ConnectionError: platform.index: away")
    settle(connection, claim(connection, worker="worker-2"), "delivered")
    found = await get_event(operator, event_id)
    assert (found.status, found.attempts, found.error_execution) == ("delivered", 2, 1)
    assert [(each.what, each.by, each.detail) for each in found.timeline] == [
        ("published", "worlds", None),
        ("first failure", None, "execution 1: ConnectionError: platform.index: away"),
        ("claimed", "worker-2", "execution 2"),
        ("delivered", None, None),
    ]
    assert found.timeline[1].at == found.first_failed_at
    assert as_document(found)["error_execution"] == 1


async def test_a_worker_that_was_killed_is_a_part_of_the_course(operator: Database, connection: Connection) -> None:
    event_id = publish(connection)
    claim(connection, worker="worker-1")
    connection.execute("select core.outbox_reap('0 seconds', '0 seconds')")
    (held,) = claim(connection, worker="worker-2")
    lost = (await get_event(operator, event_id)).timeline[1]
    assert (lost.what, lost.detail) == (
        "first failure",
        "execution 1: WorkerLostError: worker worker-1 let its lease run out",
    )
    settle(connection, [held], "dead_letter", "ValueError: platform.index: no")
    found = await get_event(operator, event_id)
    assert (found.timeline[-1].what, found.timeline[-1].by, found.error_execution) == ("failed", "worker-2", 2)


async def test_what_is_published_in_sql_is_published_before_it_is_due(
    operator: Database, connection: Connection
) -> None:
    event_id = outbox_row(connection, created_at="2026-01-31T12:00:00.000001Z", next_attempt_at="2026-01-31T12:00Z")
    assert [each.what for each in (await get_event(operator, event_id)).timeline] == ["published", "due"]


async def test_what_waits_for_a_context_that_does_not_know_its_type_says_so(
    operator: Database, connection: Connection
) -> None:
    connection.execute(
        "select core.outbox_subscribe(1, '{platform}', '{worlds.other.happened}', '{platform.index}', '{6}', true)"
    )
    event_id, broadcast = publish(connection), publish(connection, target=None)
    assert (await get_event(operator, event_id)).unsubscribed
    assert not (await get_event(operator, broadcast)).unsubscribed, "what nobody hears is over, and no dead letter"
    subscribe(connection, "platform.index", generation=2)
    assert (await get_event(operator, event_id)).unsubscribed, "only another generation knows it"
    subscribe(connection, "platform.index")
    assert not (await get_event(operator, event_id)).unsubscribed


@pytest.mark.parametrize("group", ["spectral_publisher", "spectral_readonly"])
async def test_a_login_that_may_not_know_who_is_subscribed_is_shown_the_event_nevertheless(
    database: str, connection: Connection, group: str
) -> None:
    event_id = publish(connection)
    with role(database, groups=(group,)) as own:
        async with connect(own, "test") as opened:
            shown = await get_event(opened, event_id)
    assert shown.status == "pending"
    assert shown.unsubscribed is (group == "spectral_readonly")


@pytest.mark.parametrize("alive", [True, False])
async def test_a_listener_takes_what_nobody_is_subscribed_to(
    operator: Database, connection: Connection, *, alive: bool
) -> None:
    connection.execute(
        "select core.worker_sign_in('ear', '{1}', '{platform}', '{outbox_gen_1}', 'box', 4711, '0.1')",
    )
    if alive:
        connection.execute("select pg_advisory_lock_shared(core.worker_lock_key('ear'))")
    assert (await get_event(operator, publish(connection))).unsubscribed is not alive


async def test_an_event_that_does_not_exist_is_told_with_what_to_do(operator: Database) -> None:
    unknown = uuid4()
    with pytest.raises(NotFoundError, match=f"there is no event {unknown}") as caught:
        await get_event(operator, unknown)
    assert caught.value.remedy == "spectral events list"
