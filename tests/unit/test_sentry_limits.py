"""Reports to Sentry: how many there are, and that none is lost from the count."""

from __future__ import annotations

from spectral.core.events.infrastructure.observability.sentry import MAX_REMEMBERED, MAX_REPORTS, Allowance
from tests.unit.sentry_stage import Clock, finished, sentry, tool


def test_the_same_trouble_is_reported_once_a_minute_and_the_rest_is_counted() -> None:
    clock = Clock()
    watched = tool(clock)
    with sentry() as kept:
        for _ in range(10):
            watched.tell(finished())
        clock.now += 59.9
        watched.tell(finished())
        assert len(kept.events) == 1
        clock.now += 0.1
        watched.tell(finished())
        clock.now += 60
        watched.tell(finished())
    assert [event["extra"]["suppressed"] for event in kept.events] == [0, 10, 0]


def test_a_report_shows_those_before_it_that_were_held_back() -> None:
    clock = Clock()
    watched = tool(clock)
    with sentry() as kept:
        for _ in range(50):
            watched.tell(finished())
        clock.now += 60
        watched.tell(finished())
    assert len(kept.events[-1]["breadcrumbs"]["values"]) == 20


def test_troubles_that_differ_are_reported_each_but_no_more_than_thirty_a_minute() -> None:
    clock = Clock()
    watched = tool(clock)
    with sentry() as kept:
        for number in range(40):
            watched.tell(finished(event_type=f"worlds.scan.x{number}"))
        assert len(kept.events) == MAX_REPORTS
        clock.now += 60
        watched.tell(finished(event_type="worlds.scan.x39"))
    assert kept.events[-1]["extra"]["suppressed"] == 1


def test_the_thirty_are_of_any_minute_and_not_of_the_clocks() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    allowed = []
    for number in range(400):
        clock.now += 0.5
        allowed.append(allowance.take(("spectral", str(number), "ValueError")) is not None)
    for start in range(400 - 120):
        assert sum(allowed[start : start + 120]) <= MAX_REPORTS


def test_no_more_than_a_thousand_troubles_are_remembered_and_none_is_lost_from_the_count() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    count = 5_000
    reports = [allowance.take(("spectral", str(number), "ValueError")) for number in range(count)]
    assert len(allowance) == MAX_REMEMBERED
    clock.now += 60
    allowed = allowance.take(("spectral", "another", "ValueError"))
    assert allowed is not None
    # Those still remembered are counted with their own next report; one of them has made room for this one.
    assert allowed.suppressed_others == count - MAX_REPORTS - MAX_REMEMBERED + 1
    assert sum(report is not None for report in reports) == MAX_REPORTS
