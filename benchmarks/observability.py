"""`make bench-observability`: what logs, traces and metrics cost a busy worker, beside none, in one run.

python -m benchmarks.observability [--rounds N] [--events N] [--only WORKLOAD,...]

Every line drains the same rows in a process of its own, which is always `spectral worker`; for *none* its watch is
replaced by one that takes no notes. The rounds are interleaved, and each begins with another line. The first thousand
events warm it up. From then on, time is taken to the last settlement, and processor time until everything is written
and sent, whatever thread does that; what the interpreter takes to dismantle itself is left out. Of the rows' traces one
in ten is sampled, as by a publisher that samples so many: a sampler that follows its parent records those, one that is
always on records all.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks import observability_stage as stage
from benchmarks.observability_lines import LINES, NONE, Line, Watched
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

_PROGRAM: Final = "from spectral_ops.cli import main; main()"
_MODULE: Final = "benchmarks.observability_stage"
_SAMPLED_OF: Final = 10
_PATIENCE: Final = 120.0
_ENDING: Final = 20.0
_SETUP: Final = b"create table bench_effects (number bigint primary key, seen integer not null)"
_CLEAR: Final = b"truncate core.outbox, core.event_handled, bench_effects"
_LEFT: Final = "select count(*) from core.outbox where status <> 'delivered' and target = 'platform'"
_LAST: Final = "select extract(epoch from max(delivered_at))::float8 from core.outbox where target = 'platform'"


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


@dataclass(frozen=True, slots=True)
class Drained:
    """What one drain came to: events per second, and processor seconds for 1,000 of them."""

    rate: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the drains happen."""

    dsn: str
    connection: psycopg.Connection[Any]
    collector: int
    events: int

    def run(self, workload: str, line: Line) -> Drained:
        """Publish, drain, and see what it took."""
        self._publish(workload)
        with ExitStack() as meanwhile:
            directory = meanwhile.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
            stamp = Path(directory) / "stamp"
            watched = Watched() if line.open is None else line.open(self.collector, meanwhile)
            command = [sys.executable, "-m", _MODULE, "quiet", workload]
            if line.open is not None:
                options = [] if watched.port is None else ["--health-port", str(watched.port)]
                app = f"{_MODULE}:{workload}"
                command = [sys.executable, "-c", _PROGRAM, "worker", "--drain", *options, app]
            own = {"SPECTRAL_DATABASE_URL": self.dsn, "SPECTRAL_GENERATION": "1", stage.STAMP_VARIABLE: str(stamp)}
            process = subprocess.Popen(  # noqa: S603  us
                command,
                env={**os.environ, **own, **watched.variables},  # noqa: TID251  the top of a program
                stdout=subprocess.DEVNULL,
                stderr=watched.log,
            )
            used = self._wait(process, f"{workload}, {line.name}")
            stamps = [tuple(map(float, line.split())) for line in stamp.read_text().splitlines()]
        (began, used_before), *at_the_end = stamps
        if at_the_end:  # else it had to leave at once, without dismantling anything
            ((_, used),) = at_the_end
        ((ended,),) = self.connection.execute(_LAST).fetchall()
        measured = self.events - stage.WARM_UP
        return Drained(measured / (ended - began), (used - used_before) * 1_000 / measured)

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

    def _wait(self, process: subprocess.Popen[bytes], what: str) -> float:
        """Until everything is delivered and the process has ended; answers all its processor seconds."""
        deadline = time.monotonic() + _PATIENCE
        while self.connection.execute(_LEFT).fetchall() != [(0,)]:
            if time.monotonic() > deadline:
                process.kill()
                raise SystemExit(f"not drained within {_PATIENCE:g} s: {what}")
            time.sleep(0.05)
        killing = threading.Timer(_ENDING, process.send_signal, [signal.SIGKILL])
        killing.start()
        _, status, usage = os.wait4(process.pid, 0)
        killing.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.stderr.write(f"a worker ended with {process.returncode}: {what}\n")
        return usage.ru_utime + usage.ru_stime


def _trace(*, is_sampled: bool) -> str:
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-{'01' if is_sampled else '00'}"


# what it came to


def summary(drains: Sequence[Drained], none: Sequence[Drained]) -> dict[str, float]:
    """Medians, spread, and the median of the rounds' ratios to none."""
    rates = [drain.rate for drain in drains]
    return {
        "rate": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "ratio": statistics.median(each.rate / other.rate for each, other in zip(drains, none, strict=True)),
        "cpu": statistics.median(drain.cpu for drain in drains),
        "cpu_ratio": statistics.median(each.cpu / other.cpu for each, other in zip(drains, none, strict=True)),
    }


def show(workload: str, found: dict[str, dict[str, float]], console: Console) -> None:
    """One table."""
    table = Table(title=stage.WORKLOADS[workload][1], title_justify="left")
    for heading in ("watched by", "events/s", "lowest to highest", "to none", "CPU s / 1,000", "to none"):
        table.add_column(heading, justify="left" if heading == "watched by" else "right")
    judged = {line.name for line in LINES if line.is_judged}
    for name, each in found.items():
        verdict = "" if name not in judged else " ok" if 1 - each["ratio"] < BOUND else " TOO MUCH"
        table.add_row(
            name,
            f"{each['rate']:,.0f}",
            f"{each['low']:,.0f} to {each['high']:,.0f}",
            f"{each['ratio']:.2f}{verdict}",
            f"{each['cpu']:.3f}",
            f"{each['cpu_ratio']:.2f}",
        )
    console.print(table)


def main() -> None:
    """Measure, show, write down."""
    options = _options()
    drains: dict[str, dict[str, list[Drained]]] = {
        workload: {line.name: [] for line in LINES} for workload in options.only or stage.WORKLOADS
    }
    with ExitStack() as meanwhile:
        server = meanwhile.enter_context(EmbeddedPostgres())
        collector = meanwhile.enter_context(_collecting())
        dsn = server.create_database()
        up(dsn)
        connection = meanwhile.enter_context(psycopg.connect(dsn, autocommit=True))
        connection.execute(_SETUP)
        bench = Bench(dsn, connection, collector, options.events)
        for number in range(options.rounds):
            for workload, found in drains.items():
                first = number % len(LINES)
                for line in LINES[first:] + LINES[:first]:
                    found[line.name].append(bench.run(workload, line))
            sys.stderr.write(f"round {number + 1} of {options.rounds}\n")
    results = {
        workload: {name: summary(each, found[NONE]) for name, each in found.items()}
        for workload, found in drains.items()
    }
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
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--events",
        type=int,
        default=40_000,
        help=f"how many each drain has to deliver, {stage.WARM_UP:,} of them to warm up",
    )
    parser.add_argument("--only", type=names, metavar="WORKLOAD,...", help=", ".join(stage.WORKLOADS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
