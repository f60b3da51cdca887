"""What was published, as a test asks: before and after the commit, on async and sync connections."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from spectral.core.events import Consumer, EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.testing import assert_published, drain, published

SYNC = psycopg.Connection[Any]
ASYNC = psycopg.AsyncConnection[Any]


def scan(verb: str = "completed", target: str | None = "platform", **payload: object) -> EventEnvelope:
    return EventEnvelope(event_type=f"worlds.scan.{verb}", source="worlds", target=target, payload=payload)


FIRST, SECOND, BROADCAST = scan(number=1, tags={"a": 1, "b": [1, 2]}), scan("started", number=2), scan(target=None)


@pytest.fixture
def three(connection: SYNC, publishing: Publishing) -> SYNC:
    for envelope in (FIRST, SECOND, BROADCAST):
        with connection.transaction():
            publisher_for(connection, publishing).publish(envelope)
    return connection


def test_answers_the_envelopes_oldest_first(three: SYNC) -> None:
    assert published(three) == [FIRST, SECOND, BROADCAST]


async def test_answers_the_same_on_an_async_connection(three: SYNC, async_connection: ASYNC) -> None:
    assert await published(async_connection) == published(three)
    assert await assert_published(async_connection, event_type="worlds.scan.started") == [SECOND]
    with pytest.raises(AssertionError, match="published 0 times, not 1"):
        await assert_published(async_connection, event_type="worlds.scan.lost")


def test_can_be_asked_by_type_and_target(three: SYNC) -> None:
    assert published(three, event_type="worlds.scan.completed") == [FIRST, BROADCAST]
    assert published(three, target="platform") == [FIRST, SECOND]
    assert published(three, target=None) == [BROADCAST]
    assert published(three, event_type="worlds.scan.started", target="worlds") == []


def test_sees_the_open_transaction_of_its_own_connection_alone(
    connection: SYNC, database: str, publishing: Publishing
) -> None:
    with connection.transaction(force_rollback=True), psycopg.connect(database) as other:
        publisher_for(connection, publishing).publish(FIRST)
        assert published(connection) == [FIRST]
        assert published(other) == []
    assert published(connection) == []


@pytest.mark.usefixtures("three")
def test_takes_connections_that_answer_dictionaries(database: str) -> None:
    with psycopg.connect(database, row_factory=dict_row) as other:
        assert published(other) == [FIRST, SECOND, BROADCAST]


async def test_a_broadcast_stays_one_event_when_it_is_split(three: SYNC, database: str) -> None:
    consumers = Consumer("platform"), Consumer("worlds")

    async def note(envelope: EventEnvelope) -> None:
        assert envelope.event_id == BROADCAST.event_id

    for consumer in consumers:
        consumer.on("worlds.scan.completed", name=f"{consumer.context}.note")(note)
    await drain(*consumers, dsn=database)
    assert published(three, target=None) == [BROADCAST]
    assert len(published(three)) == 3


def test_the_assertion_answers_what_fits(three: SYNC) -> None:
    assert assert_published(three, event_type="worlds.scan.completed", target="platform") == [FIRST]
    assert assert_published(three, event_type="worlds.scan.completed", times=2) == [FIRST, BROADCAST]
    assert assert_published(three, event_type="worlds.scan.lost", times=0) == []


@pytest.mark.parametrize(
    ("members", "times"),
    [
        ({"number": 1}, 1),
        ({"number": 2}, 0),
        ({"tags": {"a": 1}}, 1),
        ({"tags": {"a": 1, "c": 1}}, 0),
        ({"tags": {"b": [1, 2]}}, 1),
        ({"tags": {"b": [1]}}, 0),
        ({"tags": {"a": {"b": 1}}}, 0),
        ({"other": None}, 0),
        ({}, 2),
    ],
)
def test_the_payload_must_contain_what_is_named(three: SYNC, members: dict[str, object], times: int) -> None:
    assert_published(three, event_type="worlds.scan.completed", payload_contains=members, times=times)


def test_a_failure_shows_what_was_published_instead(three: SYNC) -> None:
    with pytest.raises(AssertionError) as failure:
        assert_published(three, event_type="worlds.scan.completed", target="platform", payload_contains={"number": 7})
    assert str(failure.value) == (
        'worlds.scan.completed for platform with {"number": 7}: published 0 times, not 1. Published was:\n'
        '  worlds.scan.completed for platform: {"tags": {"a": 1, "b": [1, 2]}, "number": 1}\n'
        "  worlds.scan.completed for everybody: {}\n"
        "  worlds.scan.started (1)"
    )


def test_a_failure_says_so_when_nothing_was_published(connection: SYNC) -> None:
    with pytest.raises(AssertionError, match="Published was:\n  nothing at all"):
        assert_published(connection, event_type="worlds.scan.completed", target=None)


def test_a_failure_does_not_show_hundreds(connection: SYNC, publishing: Publishing) -> None:
    with connection.transaction():
        publisher_for(connection, publishing).publish_many(scan(number=number) for number in range(300))
    with pytest.raises(AssertionError) as failure:
        assert_published(connection, event_type="worlds.scan.completed")
    assert len(str(failure.value).splitlines()) == 12
    assert str(failure.value).endswith("and 290 more")
