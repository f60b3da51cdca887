"""What is judged without a database: pages, cursors, errors taken apart, the pace, the command that goes on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral.core.database import RefusedError
from spectral.core.events.describe import describe
from spectral.core.operations.dead_letters_batches import Pace
from spectral.core.operations.events_pages import Order, Place, Stretch, merge, read_cursor, write_cursor
from spectral.core.operations.events_walk import first_id_of
from spectral.core.operations.fingerprints import ErrorParts, take_apart
from spectral_ops.cli.events_options import command_line, moment, plain

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
OLDEST_FIRST = Order(newest_first=False, ids_descend=False)

places = st.builds(
    Place,
    st.integers(0, 5).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number)),
)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


# pages


@given(
    groups=st.lists(st.lists(places, max_size=12, unique=True), max_size=4),
    limit=st.integers(1, 5),
    window=st.integers(6, 9),
    order=st.builds(Order, st.booleans(), st.booleans()),
)
@settings(max_examples=200, deadline=None)
def test_pages_show_everything_once_and_in_order_however_far_each_look_goes(
    groups: list[list[Place]], limit: int, window: int, order: Order
) -> None:
    ranges = [sorted(set(group), key=order.key) for group in groups]
    expected = sorted({place for group in ranges for place in group}, key=order.key)
    ranges = [[place for place in expected if place in set(group)] for group in ranges]
    seen: list[Place] = []
    place: Place | None = None
    for _ in range(100):
        stretches = [look(each, place, window, order) for each in ranges]
        found, place = merge(stretches, limit, order.key)
        seen += found
        assert len(found) <= limit
        if place is None:
            break
    assert sorted(seen, key=order.key) == seen
    assert set(seen) == set(expected)


def look(rows: list[Place], place: Place | None, window: int, order: Order) -> Stretch:
    """As the statements do it: so many rows beyond the place, and the last one if there may be more."""
    beyond = [row for row in rows if place is None or order.key(row) > order.key(place)][:window]
    return Stretch(tuple(beyond), beyond[-1] if len(beyond) == window else None)


def test_a_page_ends_at_the_nearest_horizon() -> None:
    near, far = Place(after(1), uuid4()), Place(after(9), uuid4())
    beyond = Place(after(5), uuid4())
    found, place = merge([Stretch((), near), Stretch((beyond,), far)], 10, OLDEST_FIRST.key)
    assert (found, place) == ([], near)


@given(place=places, kind=st.sampled_from("pt"))
def test_a_cursor_is_read_as_it_was_written(place: Place, kind: str) -> None:
    text = write_cursor(kind, place)
    assert text is not None
    assert read_cursor(text, "pt") == (kind, place)


@pytest.mark.parametrize("text", ["", "x", "t", "t12", "t12-zz", "q1-" + "0" * 32, "t" + "f" * 40 + "-" + "0" * 32])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="no cursor"):
        read_cursor(text, "pt")


def test_the_first_id_of_a_moment_lies_between_the_ids_before_and_after_it() -> None:
    moment_id = UUID("019c1426-4d00-7abc-8def-000000000000")
    at = datetime.fromtimestamp(0x019C14264D00 / 1000, tz=UTC)
    assert first_id_of(at) <= moment_id < first_id_of(at + timedelta(milliseconds=1))


# errors


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ValueError: platform.index: no: never", ErrorParts("ValueError", "platform.index", "no: never")),
        ("ValueError: no", ErrorParts("ValueError", None, "no")),
        ("ValueError: Not.A.Handler: no", ErrorParts("ValueError", None, "Not.A.Handler: no")),
        ("no class at all", ErrorParts("no class at all", None, "no class at all")),
        ("ValueError:", ErrorParts("ValueError", None, "ValueError:")),
        ("E" * 130 + ": x", ErrorParts("E" * 120, None, "x")),
        ("ValueError: a.b: two\nlines", ErrorParts("ValueError", "a.b", "two\nlines")),
    ],
)
def test_an_error_is_taken_apart(text: str, parts: ErrorParts) -> None:
    assert take_apart(text) == parts


def test_what_a_worker_keeps_of_an_error_can_be_taken_apart_again() -> None:
    assert take_apart(describe(KeyError("no"), "platform.index")) == ErrorParts("KeyError", "platform.index", "'no'")


# the pace, and the command line


def test_a_pace_never_takes_more_than_a_second_of_its_rate_at_once() -> None:
    assert (Pace(500, None).size, Pace(500, 20.5).size, Pace(5, 100).size, Pace(500, 0.1).size) == (500, 21, 5, 1)


@pytest.mark.parametrize(("batch", "rate"), [(0, None), (5_001, None), (10, 0), (10, -1), (10, float("nan"))])
def test_a_pace_that_makes_no_sense_is_refused(batch: int, rate: float | None) -> None:
    with pytest.raises(RefusedError):
        Pace(batch, rate)


def test_the_command_that_goes_on_is_fit_for_a_shell() -> None:
    options = {"--error": "Value'Error", "--type": None, "--all": False, "--yes": True, "--failed-before": NOON}
    assert command_line("dlq replay", options) == (
        """spectral dlq replay --error 'Value'"'"'Error' --yes --failed-before 2026-01-31T12:00:00+00:00"""
    )


def test_a_time_without_a_zone_is_utc_and_what_is_none_is_refused() -> None:
    assert moment("2026-01-31T12:00:00") == moment("2026-01-31T13:00:00+01:00") == NOON
    with pytest.raises(typer.BadParameter, match="no time"):
        moment("yesterday")


def test_nothing_of_a_row_is_an_order_to_the_terminal() -> None:
    assert plain("a\x1b[2Jb\x9bc\n") == "a�[2Jb�c�"
    assert (plain(None), plain(0)) == ("", "0")
