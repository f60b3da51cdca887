"""Parts of the benchmarks that can be wrong without a server: the wire, the scripts of the floor, who takes part."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import brokers, floor, plan, roster
from benchmarks.__main__ import scenarios_of
from benchmarks.arena import Arena, rate_in, times_in
from benchmarks.environments import ContestantError, Environments
from benchmarks.scenarios import latency
from benchmarks.scenarios.substrates import SUBSTRATES
from benchmarks.wire import Frames
from spectral.core.events.broker_settings import NO_BROKER, BrokerKind


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


STARTUP = (12).to_bytes(4) + (196608).to_bytes(4) + b"user"
SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)


@pytest.mark.parametrize("piece", [1, 3, 1_000])
def test_messages_are_counted_however_the_stream_is_cut(piece: int) -> None:
    stream = STARTUP + message(b"Q", b"select 1\0") + message(b"P", b"SSSS") + message(b"S") + message(b"H")
    frames = Frames()

    for first in range(0, len(stream), piece):
        frames.feed(stream[first : first + piece])

    assert frames.counts == {b"Q": 1, b"P": 1, b"S": 1, b"H": 1}


def test_a_question_for_encryption_comes_before_the_startup_message() -> None:
    frames = Frames()

    frames.feed(SSL_REQUEST + STARTUP + message(b"S"))

    assert frames.counts == {b"S": 1}


def test_a_publisher_is_heard_among_lines_of_others() -> None:
    assert rate_in('log line\n{"count": 300, "seconds": 1.5}\n\n') == 200.0
    with pytest.raises(ContestantError, match="no result"):
        rate_in("nothing to see\n")


def test_times_are_lines_of_two_numbers_and_nothing_else() -> None:
    assert times_in("1 100\n[info] 2\nPulled job\n2 250\n\n") == {1: 100, 2: 250}


def test_a_time_that_has_not_been_yet_was_written_by_two_at_once(tmp_path: Path) -> None:
    seen, now = tmp_path / "seen", time.monotonic_ns()
    seen.write_text(f"1 {now}\n2 {now}{now}\n3 {now}\n")
    assert latency.came_in(seen) == {1: now, 3: now}


@pytest.mark.parametrize(
    ("write", "end"),
    [(floor.upsert_script, "commit;"), (floor.pipelined_upsert_script, "commit;\n\\endpipeline")],
)
def test_the_floor_of_upserts_locks_dedups_and_writes_each_event_of_its_group(
    write: Callable[[int], floor.Script], end: str
) -> None:
    script = write(3).text

    assert script.count("for update) as locked") == 1
    assert script.count("insert into floor.event_handled") == 1
    assert script.count("insert into bench_effects") == 3
    assert "limit 3 for update skip locked" in script
    assert script.rstrip().endswith(end)


def test_the_floor_of_drains_settles_in_two_round_trips() -> None:
    script = floor.drain_script(500).text

    assert "limit 500 for update skip locked" in script
    assert script.count("\\gset") == 1
    assert script.count(";\n") - script.count("\\;\n") == 1


def test_every_contestant_pins_what_it_is_made_of() -> None:
    assert all("==" in package for peer in roster.PEERS for package in peer.packages)
    assert len({line.label for line in plan.FULL.lines}) == len(plan.FULL.lines)


def test_the_full_run_has_every_peer_at_its_defaults_and_at_its_best() -> None:
    labels = {line.label for line in plan.FULL.lines}

    for peer in roster.PEERS:
        assert {f"{peer.name}, defaults", f"{peer.name}, best"} <= labels


def test_the_quick_run_has_ours_and_the_two_fastest_peers() -> None:
    assert [line.label for line in plan.QUICK.lines] == ["Spectral", "PgQueuer, best", "pgmq, best"]
    assert [line.label for line in plan.QUICK.patient_lines()] == ["Spectral"]


def test_the_quick_run_is_a_part_of_the_full_one() -> None:
    full = [scenario.name for scenario in scenarios_of(plan.FULL)]
    quick = [scenario.name for scenario in scenarios_of(plan.QUICK)]

    assert set(quick) < set(full)
    assert len(full) == len(set(full))


def test_every_mode_of_the_relay_is_measured_in_both_runs() -> None:
    labels = {line.label for line in roster.SUBSTRATES.values()}

    assert set(roster.SUBSTRATES) == {NO_BROKER, *BrokerKind}
    assert set(brokers.KINDS) == set(BrokerKind)
    assert len(labels) == len(roster.SUBSTRATES)
    for each in (plan.FULL, plan.QUICK):
        assert "substrates" in [scenario.name for scenario in scenarios_of(each)]
        assert {entry.label for entry in SUBSTRATES.entries(Arena(), each)} == labels


def test_substrates_are_ours_and_not_measured_for_others() -> None:
    peers = tuple(line for line in plan.FULL.lines if line.group == "peer")

    assert SUBSTRATES.entries(Arena(), replace(plan.FULL, lines=peers)) == []


def test_a_peer_that_no_python_here_can_run_is_absent_with_a_reason(tmp_path: Path) -> None:
    from_the_future = roster.Contestant(
        name="future", module="none", left="", clear="", packages=("future==1",), python=(9, 0)
    )

    with pytest.raises(ContestantError, match=r"needs Python 9\.0 or newer"):
        Environments(tmp_path).python_of(from_the_future)
