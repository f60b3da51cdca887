"""The small Prometheus of the tests, where it is easily got wrong."""

from __future__ import annotations

from typing import Final

import pytest

from tests.unit.promql import SCRAPE, Scraped, Series, Value

AT: Final = {"instance": "a"}
UP: Final = Series("up", AT, lambda now: now if now < 600 else None)
NOT_ANY_MORE: Final[Value] = {}


def ask(expression: str, now: float) -> Value:
    return Scraped([UP]).ask(expression, now)


def of(value: float, *, name: str = "") -> Value:
    return {frozenset({**AT, **({"__name__": name} if name else {})}.items()): value}


@pytest.mark.parametrize(
    ("expression", "now", "value"),
    [
        ("up", 600 - SCRAPE, of(585, name="up")),
        ("up", 600, NOT_ANY_MORE),
        # what is not exposed any more was so once; the span does not begin with its first instant
        ("last_over_time(up[2m])", 600, of(585, name="up")),
        ("last_over_time(up[2m])", 690, of(585, name="up")),
        ("last_over_time(up[2m])", 705, NOT_ANY_MORE),
        ("max_over_time(up[2m])", 690, of(585)),
        ("min_over_time(up[2m])", 600, of(495)),
        # an offset moves the whole span
        ("up offset 1m", 600, of(540, name="up")),
        ("last_over_time(up[2m] offset 5m)", 700, of(390, name="up")),
        ("max_over_time(up[2m] offset 5m)", 1_000, of(585)),
        ("max_over_time(up[2m] offset 5m)", 1_005, NOT_ANY_MORE),
        ("increase(up[2m])", 500, of(120)),
        ("increase(up[2m] offset 5m)", 880, of(120)),
    ],
)
def test_what_an_expression_finds(expression: str, now: float, value: Value) -> None:
    assert ask(expression, now) == value


def test_a_set_binds_closer_than_or() -> None:
    series = [UP, Series("down", AT, lambda now: 1.0 if now >= 630 else None)]
    held = Scraped(series)
    expression = "up or last_over_time(up[2m]) unless on () down"
    assert [held.ask(expression, now) for now in (585, 615, 630)] == [of(585, name="up"), of(585, name="up"), {}]
