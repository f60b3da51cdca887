"""The pure parts of the benchmarks: medians, spread, how many events fill two seconds, and what is read from /proc."""

from __future__ import annotations

import os

import pytest

from benchmarks.figures import Board, Outcome, Summary, events_for, quantiles, summarise
from benchmarks.measure import Reading, cpu_of, machine_times, parse_stat, stolen_share


def test_a_summary_has_the_median_and_the_spread_of_its_rounds() -> None:
    summary = summarise("Spectral", "ours", [Outcome(10.0), Outcome(30.0), Outcome(20.0)])

    assert (summary.median, summary.low, summary.high) == (20.0, 10.0, 30.0)


def test_a_figure_that_some_rounds_lack_is_the_median_of_the_others() -> None:
    summary = summarise("Spectral", "ours", [Outcome(1.0, {"wal": 100.0}), Outcome(1.0), Outcome(1.0, {"wal": 300.0})])

    assert summary.extras == {"wal": 200.0}


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantiles([float(number) for number in range(1, 101)]) == {
        "p50": 51.0,
        "p95": 96.0,
        "p99": 100.0,
        "max": 100.0,
    }
    assert quantiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0, "max": 7.0}


@pytest.mark.parametrize(("rate", "count"), [(0.5, 100), (1_000, 2_000), (1_026, 2_100), (9_000_000, 100_000)])
def test_the_number_of_events_follows_the_speed_within_bounds(rate: float, count: int) -> None:
    assert events_for(rate, 2.0) == count


def test_the_best_of_a_group_is_the_lowest_where_lower_is_better() -> None:
    fast, slow = Summary("fast", "peer", (1.0,), {"p99": 9.0}), Summary("slow", "peer", (2.0,), {"p99": 3.0})
    board = Board("latency", "", "ms", lower_is_better=True, summaries=(slow, fast))

    assert board.best("peer") is fast
    assert board.best("peer", "p99") is slow
    assert board.best("floor") is None
    assert board.best("peer", "unheard of") is None


def test_a_line_of_proc_is_read_whatever_the_process_is_called() -> None:
    behind_the_name = "S 41 1 1 0 -1 4194560 1 2 3 4 100 50 25 25 20 0 1 0 5 6 7"

    assert parse_stat(f"42 (a) name ( with) it) {behind_the_name}") == (41, 200 / os.sysconf("SC_CLK_TCK"))


def test_the_processor_time_of_a_process_includes_everything_below_it() -> None:
    processes = {1: (0, 1.0), 2: (1, 2.0), 3: (2, 4.0), 9: (0, 100.0)}

    assert cpu_of(1, processes) == 7.0
    assert cpu_of(77, processes) == 0.0


def test_costs_are_for_a_thousand_events_and_the_log_for_one() -> None:
    before, after = Reading(0.0, 1.0, 2.0, 1_000), Reading(2.0, 1.5, 2.25, 21_000)

    assert after.cost_since(before, 500) == {"client_cpu": 1.0, "server_cpu": 0.5, "wal": 40.0}
    assert after.cost_since(before, 0)["wal"] == 20_000.0


def test_what_runs_beside_the_client_has_its_own_costs() -> None:
    before, after = (Reading(clock, 0.0, 0.0, 0, {"relay": clock / 2, "broker": 1.0}) for clock in (1.0, 2.0))

    costs = after.cost_since(before, 250)

    assert (costs["relay_cpu"], costs["broker_cpu"]) == (2.0, 0.0)


def test_stolen_time_is_a_share_of_all_time() -> None:
    assert stolen_share([0] * 8, [10, 0, 0, 80, 0, 0, 0, 10]) == 10.0
    assert 0.0 <= stolen_share([0] * 8, machine_times()) < 100.0
