"""What publishing promises, on every driver: the caller's transaction decides, and a bad event never harms it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from pydantic import ValidationError

from spectral.core.events import (
    DuplicateEventError,
    EventEnvelope,
    NotInTransactionError,
    PayloadError,
    PublishError,
    PublishSettings,
)
from spectral.core.events.bootstrap import publishing as publishing_with
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.failure import ConfigurationError
from tests.conformance.drivers import DRIVERS, Desk, DeskMaker

Connection = psycopg.Connection[Any]


@pytest.fixture(params=DRIVERS)
def maker(request: pytest.FixtureRequest) -> DeskMaker:
    return DRIVERS[request.param]


@pytest.fixture
async def desk(maker: DeskMaker, database: str, publishing: Publishing) -> AsyncIterator[Desk]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table public.orders (id integer primary key)")
    async with maker(database, publishing) as opened:
        yield opened


def event(**given: Any) -> EventEnvelope:  # noqa: ANN401  whatever an envelope takes
    return EventEnvelope(**{"event_type": "worlds.scan.completed", "source": "worlds", "target": "platform", **given})


def published(connection: Connection) -> list[UUID]:
    return [event_id for (event_id,) in connection.execute("select id from core.outbox order by next_attempt_at, id")]


def orders(connection: Connection) -> list[int]:
    return [number for (number,) in connection.execute("select id from public.orders order by id")]


async def test_commit_delivers_the_row_and_wakes_a_raw_listener(desk: Desk, connection: Connection) -> None:
    connection.execute("listen outbox_gen_1")
    envelope = event()
    await desk.begin()
    await desk.execute("insert into public.orders values (1)")
    await desk.publish(envelope)
    assert published(connection) == []
    await desk.commit()
    assert published(connection) == [envelope.event_id]
    assert orders(connection) == [1]
    woken = list(connection.notifies(timeout=10, stop_after=1))
    assert [(notify.channel, notify.payload) for notify in woken] == [("outbox_gen_1", str(envelope.event_id))]


async def test_rollback_leaves_nothing(desk: Desk, connection: Connection) -> None:
    await desk.begin()
    await desk.publish(event())
    await desk.publish_many([event(), event()])
    await desk.rollback()
    assert published(connection) == []


async def test_rollback_to_a_savepoint_takes_only_what_followed_it(desk: Desk, connection: Connection) -> None:
    kept = event()
    await desk.begin()
    await desk.publish(kept)
    await desk.savepoint()
    await desk.publish(event())
    await desk.rollback_to_savepoint()
    await desk.commit()
    assert published(connection) == [kept.event_id]


async def test_an_idle_connection_is_refused(desk: Desk, connection: Connection) -> None:
    with pytest.raises(NotInTransactionError, match="require_transaction"):
        await desk.publish(event())
    with pytest.raises(NotInTransactionError):
        await desk.publish_many([event()])
    assert published(connection) == []


async def test_an_idle_connection_is_used_if_that_is_allowed(
    maker: DeskMaker, database: str, connection: Connection
) -> None:
    allowing = publishing_with(PublishSettings(generation=1, require_transaction=False))
    envelope = event()
    async with maker(database, allowing) as desk:
        await desk.publish(envelope)
        if published(connection) == []:  # a driver that began by itself has the caller commit, like any statement
            await desk.commit()
    assert published(connection) == [envelope.event_id]


async def test_every_column_holds_what_the_envelope_says(desk: Desk, connection: Connection) -> None:
    envelope = event(
        event_version=3,
        occurred_at=datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC),
        workspace_id=uuid4(),
        payload={"text": 'ünï "quoted" \\ \n', "n": 12345678901234567890, "f": 0.1, "deep": [{"x": None}, True, []]},
        idempotency_key='key with spaces, commas {} and "quotes" \'',
        trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )
    second = envelope.model_copy(update={"event_id": uuid4(), "target": None, "workspace_id": None})
    await desk.begin()
    await desk.publish(envelope)
    await desk.publish_many([second])
    plain = event(target=None)
    third = envelope.model_copy(update={"event_id": uuid4()})
    await desk.publish_many([plain, third])  # they have nothing in common
    await desk.commit()
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        rows = {row["id"]: row for row in cursor.execute("select * from core.outbox")}
    for sent in (envelope, second, plain, third):
        row = rows[sent.event_id]
        for field in sent.model_dump(exclude={"event_id"}):
            assert row[field] == getattr(sent, field), field
        assert (row["generation"], row["channel"], row["content_class"]) == (1, "outbox_gen_1", "event")
        assert (row["status"], row["attempts"], row["failure_history"]) == ("pending", 0, [])


async def test_the_key_defaults_to_the_event_id(desk: Desk, connection: Connection) -> None:
    await desk.begin()
    await desk.publish(event())
    await desk.commit()
    assert connection.execute("select count(*) from core.outbox where idempotency_key = id::text").fetchone() == (1,)


async def test_classes_choose_channel_and_filing(desk: Desk, connection: Connection) -> None:
    await desk.begin()
    await desk.publish(event(), processing_class="cold", content_class="agent_task")
    await desk.publish_many([event()], processing_class="cold", content_class="agent_task")
    await desk.commit()
    stamps = connection.execute("select distinct channel, generation, content_class from core.outbox").fetchall()
    assert stamps == [("outbox_gen_1_cold", 1, "agent_task")]


@pytest.mark.parametrize("hours", [-23.99, -15, 5.5, 16, 20])
async def test_a_moment_is_the_same_moment_whatever_its_offset(
    desk: Desk, connection: Connection, hours: float
) -> None:
    offset = timezone(timedelta(hours=hours) + timedelta(microseconds=1))
    moment = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=offset)
    await desk.begin()
    await desk.publish(event(occurred_at=moment))
    await desk.publish_many([event(occurred_at=moment), event(occurred_at=moment)])
    await desk.commit()
    rows = connection.execute("select occurred_at from core.outbox").fetchall()
    assert rows == [(moment.astimezone(UTC),)] * 3


async def test_a_delayed_event_is_due_later_by_the_databases_clock(desk: Desk, connection: Connection) -> None:
    await desk.begin()
    await desk.publish(event(), delay=timedelta(hours=1))
    await desk.publish_many([event()], delay=timedelta(hours=1))
    await desk.commit()
    late = connection.execute(
        "select count(*) from core.outbox where next_attempt_at between created_at + interval '59 minutes'"
        " and created_at + interval '61 minutes'"
    ).fetchone()
    assert late == (2,)


async def test_publishing_an_id_again_is_refused_and_the_transaction_goes_on(
    desk: Desk, connection: Connection
) -> None:
    envelope = event()
    await desk.begin()
    await desk.publish(envelope)
    await desk.commit()
    await desk.begin()
    with pytest.raises(DuplicateEventError, match=str(envelope.event_id)):
        await desk.publish(envelope)
    await desk.execute("insert into public.orders values (1)")
    await desk.commit()
    assert published(connection) == [envelope.event_id]
    assert orders(connection) == [1]


async def test_publishing_an_id_again_can_be_ignored(desk: Desk, connection: Connection) -> None:
    known, new = event(), event()
    await desk.begin()
    await desk.publish(known)
    await desk.publish(known, on_conflict="ignore")
    assert await desk.publish_many([known, new, new], on_conflict="ignore") == 1
    await desk.commit()
    assert published(connection) == [known.event_id, new.event_id]


async def test_a_bulk_that_meets_a_known_id_publishes_nothing(desk: Desk, connection: Connection) -> None:
    known = event()
    await desk.begin()
    await desk.publish(known)
    await desk.commit()
    await desk.begin()
    with pytest.raises(DuplicateEventError):
        await desk.publish_many([event(), known, event()])
    await desk.rollback()
    assert published(connection) == [known.event_id]


async def test_a_bulk_of_thousands_arrives_whole_and_in_order(desk: Desk, connection: Connection) -> None:
    envelopes = [event(payload={"n": number}) for number in range(6_000)]
    await desk.begin()
    assert await desk.publish_many(envelopes) == 6_000
    await desk.commit()
    assert published(connection) == [envelope.event_id for envelope in envelopes]


async def test_an_empty_bulk_does_nothing_and_asks_for_nothing(desk: Desk, connection: Connection) -> None:
    assert await desk.publish_many([]) == 0
    assert published(connection) == []


@pytest.mark.parametrize(
    "payload",
    [
        {"x": "nul \x00"},
        {"x": "\ud800"},
        {"x": float("nan")},
        {"x": "y" * 262_144},
        {"x": uuid4()},
        {"x": 10**5000},
    ],
    ids=["nul", "surrogate", "nan", "too large", "no json", "too long a number"],
)
async def test_a_payload_that_cannot_travel_is_refused_before_sql_and_the_transaction_goes_on(
    desk: Desk, connection: Connection, payload: dict[str, Any]
) -> None:
    await desk.begin()
    await desk.execute("insert into public.orders values (1)")
    with pytest.raises(PayloadError):
        await desk.publish(event(payload=payload))
    with pytest.raises(PayloadError):
        await desk.publish_many([event(), event(payload=payload)])
    await desk.commit()
    assert published(connection) == []
    assert orders(connection) == [1]


async def test_bad_options_are_refused_before_sql_and_the_transaction_goes_on(
    desk: Desk, connection: Connection
) -> None:
    await desk.begin()
    for refused in (
        {"processing_class": "x" * 40},
        {"delay": timedelta(seconds=-1)},
        {"content_class": "nonsense"},
        {"on_conflict": "replace"},
    ):
        with pytest.raises(PublishError):
            await desk.publish(event(), **refused)  # wrong on purpose; typed callers are told by mypy
    with pytest.raises(PublishError, match="declared"):
        await desk.publish(event(source="elsewhere"))
    await desk.execute("insert into public.orders values (1)")
    await desk.commit()
    assert published(connection) == []
    assert orders(connection) == [1]


async def test_the_largest_payload_that_passes_here_passes_the_tables_own_checks(
    desk: Desk, connection: Connection
) -> None:
    deep: dict[str, Any] = {}
    for _ in range(63):
        deep = {"k": deep}
    largest = {"x": "y" * (262_144 - len('{"x": ""}'))}
    control = {"x": "\x01" * ((262_144 - len('{"x": ""}')) // 6)}
    floats = {"x": [1e22] * ((262_144 - len('{"x": []}')) // 25)}
    await desk.begin()
    await desk.publish_many([event(payload=payload) for payload in (deep, largest, control, floats)])
    await desk.commit()
    assert len(published(connection)) == 4


async def test_the_current_span_is_carried_unless_the_envelope_brings_one(desk: Desk, connection: Connection) -> None:
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    plain, traced, spanned = event(), event(trace_context=own), event()
    await desk.begin()
    await desk.publish(plain)
    with TracerProvider().get_tracer("test").start_as_current_span("business") as span:
        await desk.publish(traced)
        await desk.publish(spanned)
        context = span.get_span_context()
    await desk.commit()
    carried = dict(connection.execute("select id, trace_context from core.outbox").fetchall())
    expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    assert carried == {plain.event_id: None, traced.event_id: own, spanned.event_id: expected}


async def test_a_database_without_the_schema_says_what_to_run(
    maker: DeskMaker, empty_database: str, publishing: Publishing
) -> None:
    async with maker(empty_database, publishing) as desk:
        await desk.begin()
        with pytest.raises(ConfigurationError, match="spectral migrate up"):
            await desk.publish(event())
        await desk.rollback()


async def test_a_failed_transaction_is_refused_by_name(desk: Desk, connection: Connection) -> None:
    await desk.begin()
    with pytest.raises(Exception, match="division by zero"):
        await desk.execute("select 1 / 0")
    with pytest.raises(NotInTransactionError, match="rolled back first") as refusal:
        await desk.publish(event(payload={"secret": "canary-4111"}))
    assert "canary" not in str(refusal.value)
    await desk.rollback()
    assert published(connection) == []


async def test_a_changed_copy_of_an_envelope_is_checked_like_a_new_one(desk: Desk, connection: Connection) -> None:
    first = event()
    second = first.model_copy(update={"event_id": uuid4()})
    await desk.begin()
    await desk.publish_many([first, second])
    await desk.commit()
    keys = connection.execute("select count(distinct idempotency_key) from core.outbox").fetchone()
    assert keys == (2,)
    for wrong in ({"event_type": "Bad"}, {"event_version": 0}, {"nonsense": 1}):
        with pytest.raises(ValidationError):
            first.model_copy(update=wrong)
