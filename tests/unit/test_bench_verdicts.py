"""The promises of the benchmarks: which figures they are judged by, and what is said when there are none."""

from __future__ import annotations

import pytest

from benchmarks.figures import Board, Group, Summary
from benchmarks.verdicts import OPEN, Verdict, judge, ratio

PROMISES = 14
Given = tuple[str, Group, float]


def board(
    name: str,
    *entries: Given,
    lower: bool = False,
    extras: dict[str, dict[str, float]] | None = None,
) -> Board:
    known = extras or {}
    return Board(
        name,
        name,
        "events/s",
        lower,
        tuple(Summary(label, group, (value,), known.get(label, {})) for label, group, value in entries),
    )


def verdict_of(promise: str, *boards: Board) -> Verdict:
    (found,) = (one for one in judge({each.name: each for each in boards}) if one.promise.startswith(promise))
    return found


def test_what_was_not_measured_is_open_and_not_kept() -> None:
    verdicts = judge({})

    assert len(verdicts) == PROMISES
    assert {one.kept for one in verdicts} == {None}
    assert {one.word for one in verdicts} == {OPEN}


def test_the_drain_is_compared_with_the_fastest_peer_and_with_the_fastest_floor() -> None:
    drain = board(
        "drain-noop",
        ("Spectral", "ours", 3_000),
        ("Spectral, quiet", "ours", 9_000),
        ("PgQueuer, best", "peer", 2_000),
        ("pgmq, best", "peer", 1_000),
        ("floor: our SQL, 1 client", "floor", 5_000),
        ("floor: our SQL, 2 clients", "floor", 10_000),
    )

    beside_peers = verdict_of("no-op drain / best peer", drain)
    beside_the_floor = verdict_of("no-op drain / floor", drain)

    assert (beside_peers.measured, beside_peers.word) == (1.5, "ok")
    assert "PgQueuer, best" in beside_peers.detail
    assert (beside_the_floor.measured, beside_the_floor.word) == (0.3, "MISSED")


def test_upserts_are_compared_with_pgbench_as_it_is_and_in_a_pipeline() -> None:
    drain = board(
        "drain-upsert",
        ("Spectral", "ours", 3_000),
        ("floor: our SQL, 50 at once, 4 clients", "floor", 4_000),
        ("floor: our SQL, 50 at once, 4 clients, in a pipeline", "floor", 10_000),
    )

    plain, pipelined = (one for one in judge({drain.name: drain}) if "in pgbench" in one.promise)

    assert (plain.measured, plain.word) == (0.75, "ok")
    assert (pipelined.measured, pipelined.word) == (0.3, "MISSED")
    assert pipelined.promise == f"{plain.promise}, in a pipeline"


def test_a_latency_is_kept_when_it_is_at_most_the_best_peers() -> None:
    latency = board(
        "latency",
        ("Spectral", "ours", 1.0),
        ("oban, best", "peer", 2.0),
        ("PgQueuer, best", "peer", 1.5),
        lower=True,
        extras={
            "Spectral": {"p50": 1.0, "p99": 4.0},
            "oban, best": {"p50": 2.0, "p99": 2.0},
            "PgQueuer, best": {"p50": 1.5, "p99": 8.0},
        },
    )

    assert verdict_of("latency p50", latency).word == "ok"
    assert verdict_of("latency p99", latency).word == "MISSED"
    assert verdict_of("latency p99", latency).measured == 2.0


def test_busy_publishers_are_judged_by_the_bell_once_there_is_one() -> None:
    plain: Given = ("floor: plain insert, no trigger", "floor", 10_000.0)
    always: Given = ("Spectral's table, notify always", "ours", 4_000.0)
    bell: Given = ("Spectral's table, notify bell", "ours", 8_000.0)
    before = board("publish-busy", always, plain)
    after = board("publish-busy", bell, always, plain)
    promise = "16 publishers beside a busy worker / "

    assert verdict_of(f"{promise}plain", before).measured == 0.4
    assert verdict_of(f"{promise}notify always", before).measured == 1.0
    assert verdict_of(f"{promise}plain", after).measured == 0.8
    assert verdict_of(f"{promise}notify always", after).measured == 2.0


def test_growth_is_judged_for_every_number_of_old_rows() -> None:
    growth = board(
        "growth",
        ("Spectral, empty table", "ours", 100.0),
        ("Spectral, 1,000,000 old rows", "ours", 90.0),
        ("Spectral, 5,000,000 old rows", "ours", 80.0),
    )

    assert verdict_of("drain, 1,000,000 old rows", growth).word == "ok"
    assert verdict_of("drain, 5,000,000 old rows", growth).word == "MISSED"


def test_a_pinned_drain_is_compared_with_the_free_one_of_the_same_run() -> None:
    pinned = board("pinned", ("Spectral, free", "ours", 100.0), ("Spectral, pinned", "ours", 86.0))

    assert verdict_of("drain beside a pinned snapshot", pinned).word == "ok"


def test_an_idle_worker_has_to_be_quiet_in_both_ways() -> None:
    idle = board("idle", ("Spectral", "ours", 0.4), extras={"Spectral": {"client_cpu_percent": 5.0}}, lower=True)

    assert verdict_of("idle worker, statements", idle).word == "ok"
    assert verdict_of("idle worker, per cent", idle).word == "MISSED"


@pytest.mark.parametrize(("above", "below"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_a_ratio_with_something_missing_is_missing(above: float | None, below: float | None) -> None:
    assert ratio(above, below) is None
