"""Channel names: unambiguous, and never longer than Postgres allows."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spectral.core.events.channels import DEFAULT_CHANNEL, MAX_GENERATION, channel_for

generations = st.integers(0, 2**63 - 1)
classes = st.from_regex("[a-z][a-z0-9_]{0,31}", fullmatch=True)


def test_a_generation_has_its_channel() -> None:
    assert channel_for(7) == "outbox_gen_7"


def test_a_processing_class_has_a_channel_within_its_generation() -> None:
    assert channel_for(7, "hot") == "outbox_gen_7_hot"


def test_rows_without_a_channel_land_in_the_default_one() -> None:
    assert DEFAULT_CHANNEL == "outbox_default"


def test_generations_are_as_large_as_a_bigint() -> None:
    assert MAX_GENERATION == 9_223_372_036_854_775_807


@given(generations, st.none() | classes)
@example(MAX_GENERATION, "z" * 32)
def test_every_channel_fits_the_63_bytes_of_postgres(generation: int, processing_class: str | None) -> None:
    assert len(channel_for(generation, processing_class).encode()) <= 63


@given(st.tuples(generations, st.none() | classes), st.tuples(generations, st.none() | classes))
@example((1, None), (11, None))
@example((1, "a"), (1, None))
def test_no_two_pairs_share_a_channel(one: tuple[int, str | None], other: tuple[int, str | None]) -> None:
    assert (channel_for(*one) == channel_for(*other)) == (one == other)


@pytest.mark.parametrize("generation", [-1, 2**63, -(2**63)])
def test_a_generation_that_is_no_bigint_from_zero_is_refused(generation: int) -> None:
    with pytest.raises(ValueError, match="generation must be between 0 and 9223372036854775807"):
        channel_for(generation)


@pytest.mark.parametrize(
    "processing_class",
    [
        "",
        "Hot",
        "1st",
        "_hot",
        "hot-ish",
        "hot.cold",
        "hot cold",
        "hot\n",
        " hot",
        "heiß",
        "h" * 33,
        "hot;--",
        "\x00",
        5,
    ],
)
def test_a_class_that_is_no_short_lower_case_name_is_refused(processing_class: object) -> None:
    with pytest.raises(ValueError, match="lower-case name of 1 to 32 characters"):
        channel_for(1, cast("Any", processing_class))


def test_a_very_long_class_is_not_repeated_in_full() -> None:
    with pytest.raises(ValueError, match="processing class") as caught:
        channel_for(1, "h" * 10_000)
    assert len(str(caught.value)) < 200
