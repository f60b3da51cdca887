"""Settings refuse what makes no sense, and say what to set."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectral.core.events.failure import ConfigurationError
from spectral.core.events.settings import PublishSettings, parse_generation


@given(st.integers(0, 10**15))
def test_any_whole_number_that_leaves_room_for_the_next_is_a_generation(generation: int) -> None:
    assert parse_generation(str(generation)) == generation


@pytest.mark.parametrize("text", [" 7", "7 ", "\t7\n", "7\r\n", "007"])
def test_surrounding_whitespace_and_leading_zeros_are_forgiven(text: str) -> None:
    assert parse_generation(text) == 7


@pytest.mark.parametrize("text", [None, "", " ", "\t\n", "\u00a0\u2003"])
def test_a_missing_generation_is_refused_with_what_to_set(text: str | None) -> None:
    with pytest.raises(ConfigurationError, match=r"SPECTRAL_GENERATION is not set: .* such as SPECTRAL_GENERATION=1"):
        parse_generation(text)


@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "-0",
        "+1",
        "1.0",
        "1e3",
        "1_000",
        "1,000",
        "1 2",
        "0x10",
        "one",
        "gen-1",
        "nan",
        "inf",
        "١٢٣",
        "\uff11",
        "²",
        "1\x00",
        "1;",
        "None",
        "true",
        "{{generation}}",
        "1000000000000001",
        "9223372036854775807",
        "9223372036854775808",
        "9" * 4_300,
        "9" * 4_301,
        "9" * 100_000,
    ],
    ids=lambda text: text.encode("unicode_escape").decode()[:24] + f"-{len(text)}",
)
def test_what_is_no_generation_is_refused_with_what_to_set(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a generation: set it to .* SPECTRAL_GENERATION=1"):
        parse_generation(text)


@given(st.text())
def test_any_text_gives_a_generation_or_a_configuration_error(text: str) -> None:
    generation = 0
    with suppress(ConfigurationError):
        generation = parse_generation(text)
    assert 0 <= generation <= 10**15


def test_a_very_long_generation_is_not_repeated_in_full() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_generation("x" * 10_000)
    assert len(str(caught.value)) < 300


def test_the_generation_is_read_from_its_variable() -> None:
    assert PublishSettings.from_environ({"SPECTRAL_GENERATION": "42"}).generation == 42


def test_an_environment_without_a_generation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="SPECTRAL_GENERATION is not set"):
        PublishSettings.from_environ({"SPECTRAL_CONTEXTS": "orders"})


@pytest.mark.parametrize("environ", [{}, {"SPECTRAL_CONTEXTS": ""}, {"SPECTRAL_CONTEXTS": " , "}])
def test_contexts_default_to_the_three_of_every_project(environ: dict[str, str]) -> None:
    settings = PublishSettings.from_environ({"SPECTRAL_GENERATION": "1"} | environ)
    assert settings.contexts == {"platform", "worlds", "core"}


@pytest.mark.parametrize(
    "declared", ["orders,billing", " orders , billing ", "billing,orders,,billing", "orders,billing,"]
)
def test_contexts_are_read_as_names_between_commas(declared: str) -> None:
    settings = PublishSettings.from_environ({"SPECTRAL_GENERATION": "1", "SPECTRAL_CONTEXTS": declared})
    assert settings.contexts == {"orders", "billing"}


@pytest.mark.parametrize("declared", ["Orders", "orders;billing", "orders billing", "1st", "_x", "o" * 64, "bücher"])
def test_contexts_that_are_no_names_are_refused_with_what_to_set(declared: str) -> None:
    with pytest.raises(ConfigurationError, match=r"contexts must be .* set SPECTRAL_CONTEXTS=orders,billing"):
        PublishSettings.from_environ({"SPECTRAL_GENERATION": "1", "SPECTRAL_CONTEXTS": declared})


def test_a_context_with_a_newline_at_its_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="contexts must be"):
        PublishSettings(generation=1, contexts=frozenset({"orders\n"}))


def test_only_the_wrong_contexts_are_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        PublishSettings(generation=1, contexts=frozenset({"warehouse", "B", "A"}))
    assert "['A', 'B']" in str(caught.value)
    assert "warehouse" not in str(caught.value)


def test_no_contexts_at_all_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="contexts must be"):
        PublishSettings(generation=1, contexts=frozenset())


@pytest.mark.parametrize("generation", [0, 1, 10**15])
def test_a_generation_may_be_any_number_that_leaves_room_for_the_next(generation: int) -> None:
    assert PublishSettings(generation=generation).generation == generation


wrong_generations: list[Any] = [-1, 10**15 + 1, 2**63 - 1, 2**63, True, False, 1.5, 1.0, float("nan"), "7", None]


@pytest.mark.parametrize("generation", wrong_generations, ids=repr)
def test_a_generation_that_is_no_whole_number_from_zero_is_refused(generation: Any) -> None:  # noqa: ANN401  the point
    with pytest.raises(ConfigurationError, match="generation must be a whole number"):
        PublishSettings(generation=generation)


def test_a_transaction_is_required_unless_told_otherwise() -> None:
    assert PublishSettings(generation=1).require_transaction is True


def test_settings_cannot_be_changed() -> None:
    settings = PublishSettings(generation=1)
    with pytest.raises(AttributeError):
        settings.generation = 2  # type: ignore[misc]
