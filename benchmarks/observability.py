"""`make bench-observability`: what logs, traces and metrics cost a busy worker, beside none, in one run.

python -m benchmarks.observability [--rounds N] [--events N] [--only WORKLOAD,...]

Every line is a `spectral worker` that drains the same rows, in a process of its own. It is watched for a moment, then
not at all for as long, and so on: a shared machine may be twice as fast a few seconds later, but both have the same of
it. A moment between two turns is no part of either, so that each is measured as it is when it has lasted for a while,
with what is written and sent in other threads. The first turns warm it up. Of the rows' traces one in ten is sampled,
as by a publisher that samples so many: one sampler follows its parent and records those, another is always on and
records all.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks import observability_stage as stage
from benchmarks.observability_lines import LINES, Line
from spectral.core.embedded import EmbeddedPostgres
from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.probe import NoteTaker
from spectral.core.migrations import up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RESULT: Final = Path(".cache") / "bench-observability.json"
BOUND: Final = 0.15
"""What logs, traces and metrics together may take of a busy worker's throughput."""

_MODULE: Final = "benchmarks.observability_stage"
_SAMPLED_OF: Final = 10
_WARM_UP: Final = 4
"""So many turns come before anything is measured: what is loaded, connected or learned once is no part of it."""

_PATIENCE: Final = 300.0
_ENDING: Final = 20.0
_SETUP: Final = b"create table bench_effects (number bigint primary key, seen integer not null)"
_CLEAR: Final = b"truncate core.outbox, core.event_handled, bench_effects"
_LEFT: Final = "select count(*) from core.outbox where status <> 'delivered' and target = 'platform'"


@contextmanager
def _collecting() -> Iterator[int]:
    command = [sys.executable, "-m", _MODULE, "collector"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  us
        try:
            if process.stdout is None:
                raise SystemExit("the collector cannot be heard")
            yield int(process.stdout.readline())
        finally:
            process.kill()


class Turn(NamedTuple):
    """A moment of a drain."""

    is_watched: bool
    events: int
    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the drains happen."""

    dsn: str
    connection: psycopg.Connection[Any]
    collector: int
    events: int

    def run(self, workload: str, line: Line) -> list[Turn]:
        """Publish, drain, and see what it took: as many turns with the watch as without, each beside the other."""
        self._publish(workload)
        with ExitStack() as meanwhile:
            directory = meanwhile.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            turns = Path(directory) / "turns"
            watched = line.open(self.collector, meanwhile)
            options = [] if watched.port is None else ["--health-port", str(watched.port)]
            own = {"SPECTRAL_DATABASE_URL": self.dsn, "SPECTRAL_GENERATION": "1", stage.TURNS_VARIABLE: str(turns)}
            process = subprocess.Popen(  # noqa: S603  us
                [sys.executable, "-m", _MODULE, "worker", workload, *options],
                env={**os.environ, **own, **watched.variables},  # noqa: TID251  the top of a program
                stdout=subprocess.DEVNULL,
                stderr=watched.log,
            )
            self._wait(process, f"{workload}, {line.name}")
            every = [Turn(*json.loads(line)) for line in turns.read_text().splitlines()][_WARM_UP:]
        if len(every) < 2:  # noqa: PLR2004  one of each
            raise SystemExit(f"drained within a moment, more --events are wanted: {workload}, {line.name}")
        return every[: len(every) // 2 * 2]

    def _publish(self, workload: str) -> None:
        self.connection.execute(_CLEAR)
        shared = publishing(PublishSettings(generation=1), probe=NoteTaker())
        with self.connection.transaction():
            publisher_for(self.connection, shared).publish_many(
                EventEnvelope(
                    event_type=stage.event_type(workload),
                    source="worlds",
                    target="platform",
                    payload={"number": number},
                    trace_context=_trace(is_sampled=number % _SAMPLED_OF == 0),
                )
                for number in range(self.events)
            )
        self.connection.execute("vacuum analyze")
        self.connection.execute("checkpoint")

    def _wait(self, process: subprocess.Popen[bytes], what: str) -> None:
        """Until everything is delivered and the process has ended."""
        deadline = time.monotonic() + _PATIENCE
        while self.connection.execute(_LEFT).fetchall() != [(0,)]:
            if time.monotonic() > deadline:
                process.kill()
                raise SystemExit(f"not drained within {_PATIENCE:g} s: {what}")
            time.sleep(0.2)
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.returncode:
            sys.stderr.write(f"a worker ended with {process.returncode}: {what}\n")


def _trace(*, is_sampled: bool) -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{'01' if is_sampled else '00'}"


# what it came to


def summary(turns: Sequence[Turn]) -> dict[str, float]:
    """With the watch and without, over all turns; and how far pairs of turns differ."""
    watched = [turn for turn in turns if turn.is_watched]
    none = [turn for turn in turns if not turn.is_watched]
    pairs = [_rate([one]) / _rate([other]) for one, other in zip(watched, none, strict=True) if other.events]
    low, _, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
    return {
        "turns": len(turns),
        "rate": _rate(watched),
        "none": _rate(none),
        "ratio": _rate(watched) / _rate(none),
        "low": low,
        "high": high,
        "cpu": _cpu(watched),
        "cpu_none": _cpu(none),
    }


def _rate(turns: Sequence[Turn]) -> float:
    return sum(turn.events for turn in turns) / sum(turn.seconds for turn in turns)


def _cpu(turns: Sequence[Turn]) -> float:
    """Microseconds of the processor for an event."""
    return sum(turn.cpu for turn in turns) * 1_000_000 / sum(turn.events for turn in turns)


def show(workload: str, found: dict[str, dict[str, float]], console: Console) -> None:
    """One table."""
    table = Table(title=stage.WORKLOADS[workload][1], title_justify="left")
    for heading in ("watched by", "events/s", "none", "to none", "half of the pairs", "CPU us / event", "none"):
        table.add_column(heading, justify="left" if heading == "watched by" else "right")
    judged = {line.name for line in LINES if line.is_judged}
    for name, each in found.items():
        verdict = "" if name not in judged else " ok" if 1 - each["ratio"] < BOUND else " TOO MUCH"
        table.add_row(
            name,
            f"{each['rate']:,.0f}",
            f"{each['none']:,.0f}",
            f"{each['ratio']:.2f}{verdict}",
            f"{each['low']:.2f} to {each['high']:.2f}",
            f"{each['cpu']:.1f}",
            f"{each['cpu_none']:.1f}",
        )
    console.print(table)


def main() -> None:
    """Measure, show, write down."""
    options = _options()
    drains: dict[str, dict[str, list[Turn]]] = {
        workload: {line.name: [] for line in LINES} for workload in options.only or stage.WORKLOADS
    }
    with ExitStack() as meanwhile:
        server = meanwhile.enter_context(EmbeddedPostgres())
        collector = meanwhile.enter_context(_collecting())
        dsn = server.create_database()
        up(dsn)
        connection = meanwhile.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(_SETUP)
        for number in range(options.rounds):
            for workload, found in drains.items():
                bench = Bench(dsn, connection, collector, options.events or stage.WORKLOADS[workload][2])
                first = number % len(LINES)
                for line in LINES[first:] + LINES[:first]:
                    found[line.name] += bench.run(workload, line)
            sys.stderr.write(f"round {number + 1} of {options.rounds}\n")
    results = {workload: {name: summary(each) for name, each in found.items()} for workload, found in drains.items()}
    RESULT.parent.mkdir(exist_ok=True)
    document = {"rounds": options.rounds, "events": options.events, "bound": BOUND, "workloads": results}
    RESULT.write_text(json.dumps(document, indent=2) + "\n")
    console = Console(width=None if sys.stdout.isatty() else 120)
    for workload, found_results in results.items():
        show(workload, found_results, console)


def _options() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name for name in stage.WORKLOADS if name in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.observability")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--events",
        type=int,
        help="how many each drain has to deliver, instead of as many as take ten to twenty seconds",
    )
    parser.add_argument("--only", type=names, metavar="WORKLOAD,...", help=", ".join(stage.WORKLOADS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
