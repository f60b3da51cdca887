"""A consumer takes what makes sense, and refuses the rest with a message that names the function."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from spectral.core.events import DEFAULT_RETRY_POLICY, ConfigurationError, Consumer, EventEnvelope, RetryPolicy
from spectral.core.events.protocols import Transaction
from spectral.core.events.routes import Routes

COMPLETED = "worlds.scan.completed"
STARTED = "worlds.scan.started"


class Scan(BaseModel):
    """A view of a payload."""

    number: int


async def project(scan: Scan) -> None:
    """A handler."""


async def index(scan: Scan, tx: Transaction) -> None:
    """Another one."""


HERE = r"tests\.unit\.test_consumer\.project"


@pytest.fixture
def platform() -> Consumer:
    """No handlers yet."""
    return Consumer("platform")


# what it takes


def test_a_handler_is_named_after_its_context_and_function(platform: Consumer) -> None:
    assert platform.on(COMPLETED)(project) is project
    (handler,) = platform.handlers
    assert (handler.name, handler.transactional, handler.retry, handler.timeout, handler.concurrency) == (
        "platform.project",
        False,
        DEFAULT_RETRY_POLICY,
        timedelta(seconds=240),
        None,
    )


def test_a_handler_says_of_itself_what_it_wants(platform: Consumer) -> None:
    policy = RetryPolicy(max_retries=1)
    platform.on(COMPLETED, STARTED, name="platform.old", retry=policy, timeout=timedelta(seconds=3), concurrency=2)(
        index
    )
    (handler,) = platform.handlers_of(COMPLETED)
    assert platform.handlers_of(STARTED) == (handler,)
    assert (handler.name, handler.transactional, handler.retry, handler.timeout, handler.concurrency) == (
        "platform.old",
        True,
        policy,
        timedelta(seconds=3),
        2,
    )


def test_what_a_handler_does_not_say_the_consumer_says() -> None:
    policy = RetryPolicy(max_retries=0)
    consumer = Consumer("platform", retry=policy, timeout=timedelta(seconds=1))
    consumer.on(COMPLETED)(project)
    (handler,) = consumer.handlers
    assert (handler.retry, handler.timeout) == (policy, timedelta(seconds=1))


def test_handlers_of_a_type_keep_the_order_in_which_they_were_registered(platform: Consumer) -> None:
    platform.on(COMPLETED)(project)
    platform.on(STARTED, COMPLETED)(index)
    assert [handler.name for handler in platform.handlers_of(COMPLETED)] == ["platform.project", "platform.index"]
    assert platform.handlers_of("worlds.scan.failed") == ()
    assert platform.event_types == (COMPLETED, STARTED)


def test_a_function_may_handle_two_types_under_two_names(platform: Consumer) -> None:
    platform.on(COMPLETED)(project)
    platform.on(STARTED, name="platform.project_started")(project)
    assert [handler.name for handler in platform.handlers] == ["platform.project", "platform.project_started"]


def test_a_method_of_an_object_is_a_handler(platform: Consumer) -> None:
    class Projector:
        async def project(self, envelope: EventEnvelope) -> None:
            """A handler."""

    platform.on(COMPLETED)(Projector().project)
    assert [handler.name for handler in platform.handlers] == ["platform.project"]


def test_it_shows_what_it_is(platform: Consumer) -> None:
    platform.on(COMPLETED)(project)
    assert repr(platform) == "Consumer('platform', 1 handlers)"


# what it refuses


@pytest.mark.parametrize("context", ["", "Platform", "1st", "a-b", "a.b", "a" * 64, "plat form", "platform\n", "é"])
def test_a_context_that_is_no_name_is_refused(context: str) -> None:
    with pytest.raises(ConfigurationError, match="is no context"):
        Consumer(context)


@pytest.mark.parametrize(
    "event_type",
    ["", "scan", "scan.completed", "Worlds.scan.completed", "worlds.scan.completed.v0", "worlds.scan.completed\n", "*"],
)
def test_a_type_that_is_no_event_type_is_refused_and_named(platform: Consumer, event_type: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: .* not \["):
        platform.on(event_type)(project)
    assert platform.handlers == ()


def test_an_event_type_longer_than_the_table_takes_is_refused(platform: Consumer) -> None:
    with pytest.raises(ConfigurationError, match=HERE):
        platform.on(f"worlds.scan.{'c' * 200}")(project)


def test_a_handler_of_no_type_is_refused(platform: Consumer) -> None:
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: name the event types"):
        platform.on()(project)


def test_a_decorator_without_its_parentheses_is_refused_at_once(platform: Consumer) -> None:
    """`@platform.on` would otherwise swallow the function, and nothing would ever be handled."""
    with pytest.raises(ConfigurationError, match=HERE):
        platform.on(project)  # type: ignore[arg-type]


def test_a_type_that_is_named_twice_is_refused(platform: Consumer) -> None:
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: .*each once"):
        platform.on(COMPLETED, COMPLETED)(project)


def test_a_name_that_is_taken_is_refused_with_who_has_it(platform: Consumer) -> None:
    platform.on(COMPLETED, name="platform.it")(index)
    with pytest.raises(
        ConfigurationError,
        match=rf"handler {HERE}: the name 'platform.it' is taken by tests\.unit\.test_consumer\.index",
    ):
        platform.on(STARTED, name="platform.it")(project)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "project",
        "Platform.project",
        "platform.",
        ".project",
        "platform.Project",
        "platform.pro ject",
        "a." + "b" * 200,
    ],
)
def test_a_name_that_is_not_qualified_is_refused(platform: Consumer, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: its name .* must be qualified"):
        platform.on(COMPLETED, name=name)(project)


def test_a_function_whose_name_cannot_be_a_handlers_is_told_to_give_one(platform: Consumer) -> None:
    async def Project(scan: Scan) -> None:  # noqa: N802  that is the fault
        """A handler."""

    with pytest.raises(ConfigurationError, match="give it one with name="):
        platform.on(COMPLETED)(Project)


@pytest.mark.parametrize("timeout", [timedelta(0), timedelta(seconds=-1), 30, "30", None])
def test_a_timeout_that_is_none_is_refused(platform: Consumer, timeout: Any) -> None:  # noqa: ANN401  that is the fault
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: .*timeout"):
        platform.on(COMPLETED, timeout=timeout)(project)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "2"])
def test_a_concurrency_below_one_is_refused(platform: Consumer, concurrency: Any) -> None:  # noqa: ANN401  as above
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: .*concurrency"):
        platform.on(COMPLETED, concurrency=concurrency)(project)


@pytest.mark.parametrize("retry", [3, None, {"max_retries": 3}, RetryPolicy])
def test_a_policy_that_is_none_is_refused(platform: Consumer, retry: Any) -> None:  # noqa: ANN401  as above
    with pytest.raises(ConfigurationError, match=rf"handler {HERE}: .*retry"):
        platform.on(COMPLETED, retry=retry)(project)


def test_an_unknown_option_is_refused_with_those_that_are_known(platform: Consumer) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"handler {HERE}: unknown options \['retries'\]; known are \['concurrency'"
    ):
        platform.on(COMPLETED, retries=3)(project)  # type: ignore[call-arg]


def test_a_refused_handler_leaves_nothing_behind(platform: Consumer) -> None:
    with pytest.raises(ConfigurationError):
        platform.on(COMPLETED, timeout=timedelta(0))(project)
    assert (platform.handlers, platform.event_types) == ((), ())


def test_a_handler_that_comes_after_the_worker_is_refused(platform: Consumer) -> None:
    platform.on(COMPLETED)(index)
    Routes.of([platform])
    with pytest.raises(ConfigurationError, match=rf"handler {HERE} comes too late"):
        platform.on(STARTED)(project)
