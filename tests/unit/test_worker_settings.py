"""A worker's settings refuse what makes no sense, and say which rows are its own."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from spectral.core.events import ConfigurationError, DatabaseSettings, WorkerSettings, WorkerTimes


def settings(**given: Any) -> WorkerSettings:  # noqa: ANN401  whatever a test wants to see refused
    return WorkerSettings(**{"generation": 1, **given})


# times


@pytest.mark.parametrize("name", [field.name for field in fields(WorkerTimes)])
def test_a_negative_time_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        WorkerTimes(**{name: timedelta(microseconds=-1)})


@pytest.mark.parametrize("name", ["poll", "poll_deaf", "heartbeat", "answer", "reconnect", "lease", "reap"])
def test_a_time_that_would_make_the_worker_spin_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        WorkerTimes(**{name: timedelta(0)})


@pytest.mark.parametrize("name", ["stop", "patience", "grace", "unhandled_after", "degraded_after", "start"])
def test_no_patience_at_all_is_a_choice(name: str) -> None:
    assert getattr(WorkerTimes(**{name: timedelta(0)}), name) == timedelta(0)


@pytest.mark.parametrize("value", [5, 5.0, "5 s", None])
def test_a_time_that_is_no_timedelta_is_refused_by_name(value: Any) -> None:  # noqa: ANN401  that is the fault
    with pytest.raises(ConfigurationError, match="poll"):
        WorkerTimes(poll=value)


def test_the_defaults_are_the_protocols() -> None:
    times = WorkerTimes()
    seconds = {field.name: getattr(times, field.name).total_seconds() for field in fields(WorkerTimes)}
    assert (seconds["poll_deaf"], seconds["degraded_after"], seconds["lease"]) == (5, 30, 300)
    assert (seconds["reconnect"], seconds["reconnect_cap"]) == (1, 30)
    assert seconds["heartbeat"] + seconds["answer"] <= 15, "a half-open socket is noticed within fifteen seconds"
    assert seconds["unhandled_after"] == 300
    assert seconds["start"] == 60


# numbers


@pytest.mark.parametrize("name", ["lanes", "batch", "concurrency"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2"])
def test_less_than_one_of_anything_is_refused_by_name(name: str, value: Any) -> None:  # noqa: ANN401  that is the fault
    with pytest.raises(ConfigurationError, match=name):
        settings(**{name: value})


@pytest.mark.parametrize("generation", [-1, 10**15 + 1, 2**63, "1", 1.0, True, None])
def test_a_generation_that_is_none_is_refused(generation: Any) -> None:  # noqa: ANN401  that is the fault
    with pytest.raises(ConfigurationError, match="generation"):
        settings(generation=generation)


@pytest.mark.parametrize("generation", [-1, 10**15 + 1, 2**63, "1"])
def test_an_accepted_generation_that_is_none_is_refused(generation: Any) -> None:  # noqa: ANN401  that is the fault
    with pytest.raises(ConfigurationError, match="generation"):
        settings(accept_generations=frozenset({generation}))


@pytest.mark.parametrize("classes", [("Hot",), ("a" * 33,), ("",), ("hot cold",), ("1st",)])
def test_a_class_that_is_no_name_is_refused(classes: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="processing class"):
        settings(classes=classes)


def test_classes_given_as_one_text_are_refused() -> None:
    """Its letters would pass for classes."""
    with pytest.raises(ConfigurationError, match="classes"):
        settings(classes="hot")


# channels


def test_it_listens_on_the_channels_of_its_generations_and_classes() -> None:
    given = settings(generation=3, accept_generations=frozenset({2, 1, 3}), classes=("hot",))
    assert given.generations() == (3, 1, 2)
    assert given.channels() == (
        "outbox_gen_3",
        "outbox_gen_3_hot",
        "outbox_gen_1",
        "outbox_gen_1_hot",
        "outbox_gen_2",
        "outbox_gen_2_hot",
    )


def test_it_claims_rows_without_a_channel_too_but_nobody_listens_on_theirs() -> None:
    given = settings()
    assert given.channels() == ("outbox_gen_1",)
    assert given.claimed_channels() == ("outbox_gen_1", "outbox_default")


@pytest.mark.parametrize("channel", ["outbox_gen_1", "outbox_gen_1_hot", "outbox_default", "outbox_gen_1_" + "a" * 32])
def test_for_one_channel_it_listens_and_claims_there_alone(channel: str) -> None:
    given = settings(classes=("cold",)).for_channel(channel)
    assert (given.channels(), given.claimed_channels()) == ((channel,), (channel,))


def test_a_channel_of_an_accepted_generation_will_do() -> None:
    assert (
        settings(accept_generations=frozenset({0})).for_channel("outbox_gen_0_hot").only_channel == "outbox_gen_0_hot"
    )


@pytest.mark.parametrize(
    "channel",
    [
        "",
        "outbox_gen_2",
        "outbox_gen_12",
        "outbox_gen_1_",
        "outbox_gen_1_1",
        "outbox_gen_1_Hot",
        "outbox_gen_1_hOT",
        "outbox_gen_1_h\u00f6t",
        "outbox_gen_1\n",
        "outbox_gen_1_hot\n",
        "outbox_gen_1_" + "a" * 33,
        "OUTBOX_GEN_1",
        "x" * 1_000,
    ],
)
def test_a_foreign_channel_is_refused_with_one_that_would_do(channel: str) -> None:
    with pytest.raises(ConfigurationError, match="outbox_gen_1") as refused:
        settings().for_channel(channel)
    assert len(str(refused.value)) < 300


# the environment


def test_everything_is_read_from_the_environment() -> None:
    given = WorkerSettings.from_environ(
        {
            "SPECTRAL_GENERATION": "3",
            "SPECTRAL_CONTEXTS": "orders, billing",
            "SPECTRAL_ACCEPT_GENERATIONS": "1, 2,",
            "SPECTRAL_CLASSES": " hot ,,cold",
        }
    )
    assert (given.generation, given.contexts, given.accept_generations, given.classes) == (
        3,
        frozenset({"orders", "billing"}),
        frozenset({1, 2}),
        ("hot", "cold"),
    )


def test_without_a_generation_it_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="SPECTRAL_GENERATION is not set"):
        WorkerSettings.from_environ({})


@pytest.mark.parametrize("text", ["one", "1;2", "-1", "1 2"])
def test_accepted_generations_that_are_none_are_refused_by_their_own_variable(text: str) -> None:
    with pytest.raises(ConfigurationError, match="SPECTRAL_ACCEPT_GENERATIONS"):
        WorkerSettings.from_environ({"SPECTRAL_GENERATION": "1", "SPECTRAL_ACCEPT_GENERATIONS": text})


# the database


@pytest.mark.parametrize(
    ("environ", "dsn", "direct"),
    [
        ({"SPECTRAL_DATABASE_URL": "postgresql://a/x", "DATABASE_URL": "postgresql://b/x"}, "postgresql://a/x", ""),
        ({"DATABASE_URL": "postgresql+psycopg://b/x"}, "postgresql://b/x", ""),
        (
            {"DATABASE_URL": "postgres://b/x", "SPECTRAL_DIRECT_URL": "postgresql+asyncpg://c/x"},
            "postgres://b/x",
            "postgresql://c/x",
        ),
        ({"PGHOST": "db"}, "", ""),
        ({"SPECTRAL_DATABASE_URL": "", "DATABASE_URL": "postgresql://b/x"}, "postgresql://b/x", ""),
    ],
)
def test_the_database_is_read_from_the_environment(environ: dict[str, str], dsn: str, direct: str) -> None:
    given = DatabaseSettings.from_environ(environ)
    assert (given.dsn, given.direct_dsn) == (dsn, direct)


def test_no_database_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigurationError, match="set SPECTRAL_DATABASE_URL, DATABASE_URL or the PG"):
        DatabaseSettings.from_environ({"PATH": "/bin"})


def test_a_connection_string_is_never_shown() -> None:
    given = DatabaseSettings(dsn="postgresql://ada:canary@db/x", direct_dsn="postgresql://ada:canary@direct/x")
    assert "canary" not in repr(given) + str(given)
