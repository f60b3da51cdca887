"""Which handlers a delivery goes to, and which rows are claimed together."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from spectral.core.events import ConfigurationError, Consumer, RetryPolicy, Transaction
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.routes import Line, Routes

COMPLETED = "worlds.scan.completed"
STARTED = "worlds.scan.started"
FAILED = "worlds.scan.failed"


async def project(tx: Transaction) -> None: ...
async def index(tx: Transaction) -> None: ...
async def mail() -> None: ...


def delivery(event_type: str = COMPLETED, target: str = "platform", **given: Any) -> Delivery:  # noqa: ANN401  fields
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "lease": Lease(uuid4(), uuid4()),
        "event_id": uuid4(),
        "event_type": event_type,
        "event_version": 1,
        "occurred_at": now,
        "source": "worlds",
        "target": target,
        "workspace_id": None,
        "payload": "{}",
        "idempotency_key": "key",
        "trace_context": None,
        "attempts": 1,
        "suspect": False,
        "handled": frozenset(),
    }
    names = {field: value for field, value in fields.items() if field in Delivery._fields}
    optional = {"content_class": "event", "channel": "outbox_gen_1", "generation": 1, "created_at": now, "due_at": now}
    names |= {field: value for field, value in optional.items() if field in Delivery._fields}
    return Delivery(**{**names, **given})


@pytest.fixture
def platform() -> Consumer:
    consumer = Consumer("platform")
    consumer.on(COMPLETED, STARTED)(project)
    consumer.on(COMPLETED, FAILED)(mail)
    return consumer


def names(routes: Routes, given: Delivery) -> list[str]:
    return [handler.name for handler in routes.handlers_for(given)]


def test_a_delivery_goes_to_the_handlers_of_its_context_and_type(platform: Consumer) -> None:
    worlds = Consumer("worlds")
    worlds.on(COMPLETED)(index)
    routes = Routes.of([platform, worlds])
    assert names(routes, delivery()) == ["platform.project", "platform.mail"]
    assert names(routes, delivery(STARTED)) == ["platform.project"]
    assert names(routes, delivery(target="worlds")) == ["worlds.index"]
    assert names(routes, delivery(STARTED, target="worlds")) == []


def test_a_handler_that_holds_the_key_is_left_out(platform: Consumer) -> None:
    routes = Routes.of([platform])
    assert names(routes, delivery(handled=frozenset({"platform.project"}))) == ["platform.mail"]
    assert names(routes, delivery(handled=frozenset({"platform.project", "platform.mail"}))) == []


def test_rows_of_a_type_with_a_transactional_handler_are_claimed_for_the_lanes_the_others_apart(
    platform: Consumer,
) -> None:
    assert Routes.of([platform]).lines == (
        Line(
            "platform",
            (COMPLETED, STARTED),
            ("platform.project", "platform.mail", "platform.project"),
            transactional=True,
            handler_types=(COMPLETED, COMPLETED, STARTED),
        ),
        Line("platform", (FAILED,), ("platform.mail",), transactional=False, handler_types=(FAILED,)),
    )


def test_a_handler_of_everything_takes_every_type() -> None:
    consumer = Consumer("platform")
    routes = Routes.catch_all("platform", consumer.handler(mail))
    assert routes.lines == (Line("platform", None, ("platform.mail",), transactional=False),)
    assert names(routes, delivery("agent.task.dispatched")) == ["platform.mail"]
    assert names(routes, delivery(target="worlds")) == []
    assert routes.subscriptions() == []


def test_every_handler_is_subscribed_to_each_of_its_types_with_its_attempts() -> None:
    consumer = Consumer("platform", retry=RetryPolicy(max_retries=2))
    consumer.on(COMPLETED, STARTED)(project)
    consumer.on(COMPLETED, retry=RetryPolicy(max_retries=0))(mail)
    assert sorted(Routes.of([consumer]).subscriptions()) == [
        ("platform", COMPLETED, "platform.mail", 1),
        ("platform", COMPLETED, "platform.project", 3),
        ("platform", STARTED, "platform.project", 3),
    ]


def test_a_row_has_as_many_attempts_as_the_most_patient_handler_that_is_left() -> None:
    consumer = Consumer("platform")
    consumer.on(COMPLETED, retry=RetryPolicy(max_retries=9))(project)
    consumer.on(COMPLETED, retry=RetryPolicy(max_retries=1))(mail)
    routes = Routes.of([consumer])
    assert routes.max_attempts(delivery()) == 10
    assert routes.max_attempts(delivery(handled=frozenset({"platform.project"}))) == 2


def test_the_longest_timeout_is_the_slowest_handlers() -> None:
    consumer = Consumer("platform", timeout=timedelta(seconds=5))
    consumer.on(COMPLETED)(project)
    consumer.on(STARTED, timeout=timedelta(seconds=7))(mail)
    assert Routes.of([consumer]).longest_timeout() == timedelta(seconds=7)


async def test_only_handlers_that_ask_for_it_are_limited() -> None:
    consumer = Consumer("platform")
    consumer.on(COMPLETED, STARTED, concurrency=2)(project)
    consumer.on(STARTED)(mail)
    limits = Routes.of([consumer]).limits()
    assert list(limits) == ["platform.project"]
    (limit,) = limits.values()
    async with asyncio.timeout(1), limit, limit:
        assert not limit.is_free
    assert limit.is_free


def test_two_consumers_of_one_context_are_refused(platform: Consumer) -> None:
    other = Consumer("platform")
    other.on(COMPLETED, name="platform.other")(index)
    with pytest.raises(ConfigurationError, match="two consumers of context 'platform'"):
        Routes.of([platform, other])


def test_the_same_consumer_twice_is_refused(platform: Consumer) -> None:
    with pytest.raises(ConfigurationError, match="two consumers of context 'platform'"):
        Routes.of([platform, platform])


def test_one_name_in_two_contexts_is_refused(platform: Consumer) -> None:
    worlds = Consumer("worlds")
    worlds.on(COMPLETED, name="platform.mail")(index)
    with pytest.raises(ConfigurationError, match=r"two handlers are called 'platform\.mail'"):
        Routes.of([platform, worlds])


@pytest.mark.parametrize("consumers", [[], [Consumer("platform")], [Consumer("platform"), Consumer("worlds")]])
def test_nothing_to_handle_is_refused(consumers: list[Consumer]) -> None:
    with pytest.raises(ConfigurationError, match=r"there are no handlers: register one with @consumer\.on"):
        Routes.of(consumers)


def test_a_refusal_does_not_freeze_the_consumers(platform: Consumer) -> None:
    with pytest.raises(ConfigurationError):
        Routes.of([platform, platform])
    platform.on(STARTED)(index)
