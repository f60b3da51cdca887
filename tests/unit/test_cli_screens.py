"""The tables of `status` and `top` on any width: names give way, numbers never do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console, RenderableType

from spectral.core.operations.insights import Amount, Brake, Snapshot
from spectral.core.operations.insights_rates import rates
from spectral_ops.cli.fitted_table import Name
from spectral_ops.cli.status_screen import backlog_table, worker_table
from spectral_ops.cli.top_screen import frame
from tests.unit.test_operations_verdict import NOW, backlog, look, worker

LONG = "reminders-of-invoices-that-nobody-has-paid-as-yet"
NUMBERS = ["1,001", "59 min", "1,002", "1,003", "1,004", "10,000+"]


def busy(context: str = "billing") -> Snapshot:
    row = backlog(
        context,
        due=Amount(1001),
        oldest_due=timedelta(minutes=59),
        waiting=Amount(1002),
        in_flight=Amount(1003),
        stale=Amount(1004),
        failed=Amount(10_000, capped=True),
    )
    return look(backlogs=(row, backlog("worlds", due=Amount(10))))


def lines(part: RenderableType | None, width: int) -> list[str]:
    """What a screen of this width shows of it, which ends where the screen does."""
    assert part is not None
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    return ["".join(each.text for each in line).rstrip() for line in console.render_lines(part, pad=False)]


@pytest.mark.parametrize("context", ["billing", LONG])
@pytest.mark.parametrize("width", [30, 50, 60, 70, 75, 80, 90, 100, 120, 200])
def test_no_number_is_cut_or_hidden(width: int, context: str) -> None:
    snapshot = busy(context)
    shown = "\n".join(lines(frame(snapshot, rates(snapshot, snapshot), (), width), width))
    table = shown[shown.index("\ncontext" if "\ncontext" in shown else "context ") :]
    assert [number for number in NUMBERS if number in table] == NUMBERS
    for heading in ("due", "oldest", "later", "flight", "stale", "failed", "workers"):
        assert heading in table


def test_where_there_is_room_there_are_bars_and_whole_names() -> None:
    heading, first, second = lines(backlog_table(busy(LONG), 141, bars=True), 141)
    assert heading.split()[:3] == ["context", "generation", "backlog"]
    assert first.startswith(f"{LONG}  7 live      {'█' * 20}")
    assert second.split()[:4] == ["worlds", "7", "live", "█"]


def test_the_bar_goes_first() -> None:
    heading, first, _ = lines(backlog_table(busy(), 90, bars=True), 90)
    assert "backlog" not in heading
    assert first.split() == ["billing", "7", "live", *" ".join(NUMBERS).split(), "0"]


def test_then_the_name_is_shortened() -> None:
    heading, first, second = lines(backlog_table(busy(LONG), 90, bars=True), 90)
    assert "in flight" in heading
    assert len(first) == 90
    assert first.startswith("reminders-…id-as-yet  7 live")
    assert second.startswith("worlds  ")


def test_then_headings_are_folded() -> None:
    shown = lines(backlog_table(busy(LONG), 77, bars=True), 77)
    assert shown[0].strip() == "in"
    assert shown[1].split()[-4:] == ["flight", "stale", "failed", "workers"]
    assert shown[2].startswith("remin…-yet  7 live")


def test_then_each_row_is_a_block() -> None:
    shown = lines(backlog_table(busy(), 50, bars=True), 50)
    assert shown[:4] == ["context: billing", "  generation: 7 live", "  due: 1,001", "  oldest: 59 min"]
    assert shown[shown.index("") + 1 :] == ["context: worlds", "  generation: 7 live", "  due: 10", "  workers: 0"]


def test_a_brake_is_shown_behind_a_shortened_name() -> None:
    braked = replace(busy(LONG), brakes=(Brake(LONG, NOW, "dana", "too fast"),))
    _, first, _ = lines(backlog_table(braked, 90), 90)
    assert first.startswith("remind…as-yet braked  7 live")


@pytest.mark.parametrize(
    ("name", "room", "shown"),
    [
        (Name("platform-eu-1"), 13, "platform-eu-1"),
        (Name("platform-eu-1"), 10, "platf…eu-1"),
        (Name("platform-eu-1"), 2, "plat…u-1"),
        (Name("billing"), 2, "billing"),
        (Name("platform-eu-1", " pid 4711"), 19, "platf…eu-1 pid 4711"),
        (Name("請求書請求書"), 9, "請求…求書"),
    ],
)
def test_a_name_loses_its_middle_but_never_all_of_it(name: Name, room: int, shown: str) -> None:
    assert str(name.within(room)) == shown


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_the_numbers_of_a_worker_are_whole(width: int) -> None:
    one = replace(
        worker("ip-10-0-12-34-4194303-a1b2c3", contexts=("billing", LONG)), pid=4194303, in_flight=1234, host="h" * 60
    )
    shown = "\n".join(lines(worker_table(look(workers=(one,)), width), width))
    for whole in ("pid 4194303", "1234", "60 min", "alive"):
        assert whole in shown


def test_living_workers_stand_before_the_vanished_that_there_is_no_room_for() -> None:
    gone = [worker(f"gone-{number}", alive=False) for number in range(14)]
    shown = lines(worker_table(look(workers=(*gone, worker("lives"))), 100), 100)
    assert shown[1].split()[:2] == ["lives", "alive"]
    assert shown[2].split()[:2] == ["gone-0", "vanished"]
    assert shown[-1] == "and 3 more workers, 3 of them vanished"


def test_more_living_workers_than_there_is_room_for_are_counted() -> None:
    shown = lines(worker_table(look(workers=tuple(worker(f"w{number}") for number in range(14))), 100), 100)
    assert shown[-1] == "and 2 more workers"
