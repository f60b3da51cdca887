"""`make bench-latency`: from commit to handler on an idle system, ours beside procrastinate and PgQueuer in one run.

Everybody has a database of their own on the same server, one worker process and one publisher that sends an event
every 50 ms. Rounds are interleaved; the medians over all rounds are shown, never an absolute promise.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from spectral.core.embedded import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.embedded import PostgresServer

ROUNDS: Final = 3
EVENTS: Final = 100
PAUSE: Final = 0.05
WARM_UP: Final = 10
HERE: Final = Path(__file__).parent
PEERS: Final = Path(".cache") / "peers"
PACKAGES: Final = ("procrastinate==3.10.0", "pgqueuer[asyncpg]==1.6.0", "psycopg[binary]")
RESULT: Final = Path(".cache") / "bench-latency.json"


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who, and how its programs are started."""

    name: str
    command: tuple[str, ...]

    def run(self, what: str, dsn: str, *arguments: str) -> str:
        """Run a program to its end."""
        done = subprocess.run(  # noqa: S603  our own programs
            [*self.command, what, dsn, *arguments], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode != 0:
            raise SystemExit(f"{self.name} {what} failed:\n{done.stderr[-2000:]}")
        return done.stdout


@contextmanager
def working(contestant: Contestant, dsn: str, output: Path) -> Iterator[None]:
    """A worker process, whose lines go to a file."""
    with output.open("w") as file:
        process = subprocess.Popen(  # noqa: S603  our own programs
            [*contestant.command, "work", dsn], stdout=file, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def peers() -> str:
    """An environment with the peers in it; answers its interpreter."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)  # noqa: S603  our own interpreter
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--quiet", *PACKAGES], check=True)  # noqa: S603  as above
    return str(python)


def times_in(text: str) -> dict[int, int]:
    """Event numbers and when they were seen."""
    pairs = (line.split() for line in text.splitlines())
    return {int(pair[0]): int(pair[1]) for pair in pairs if len(pair) == 2}  # noqa: PLR2004  a number and a time


def one_round(contestant: Contestant, dsn: str, output: Path) -> list[float]:
    """Milliseconds from commit to handler, without the first few."""
    with working(contestant, dsn, output):
        sent = times_in(contestant.run("publish", dsn, str(EVENTS + WARM_UP), str(PAUSE)))
    came = times_in(output.read_text())
    missing = [number for number in sent if number not in came and number >= WARM_UP]
    if missing:
        raise SystemExit(f"{contestant.name} did not deliver {len(missing)} of {EVENTS} events")
    return [(came[number] - sent[number]) / 1e6 for number in sent if number >= WARM_UP]


def contest(server: PostgresServer) -> dict[str, list[float]]:
    """Every contestant's latencies, rounds interleaved."""
    python = peers()
    contestants = [
        Contestant("spectral", (sys.executable, "-m", "benchmarks.contestants.ours")),
        Contestant("procrastinate", (python, str(HERE / "contestants" / "procrastinate_peer.py"))),
        Contestant("PgQueuer", (python, str(HERE / "contestants" / "pgqueuer_peer.py"))),
    ]
    databases = {each.name: server.create_database() for each in contestants}
    for each in contestants:
        each.run("setup", databases[each.name])
    found: dict[str, list[float]] = {each.name: [] for each in contestants}
    for number in range(ROUNDS):
        for each in contestants:
            output = Path(".cache") / f"latency-{each.name}-{number}.txt"
            found[each.name] += one_round(each, databases[each.name], output)
            output.unlink()
    return found


def main() -> None:
    """Run the contest and show it."""
    Path(".cache").mkdir(exist_ok=True)
    with EmbeddedPostgres() as server:
        found = contest(server)
    table = Table("commit to handler, ms", "p50", "p95", "p99", "max")
    summary: dict[str, dict[str, float]] = {}
    for name, latencies in found.items():
        quantiles = statistics.quantiles(latencies, n=100)
        figures = {"p50": quantiles[49], "p95": quantiles[94], "p99": quantiles[98], "max": max(latencies)}
        summary[name] = figures
        table.add_row(name, *(f"{value:.2f}" for value in figures.values()))
    Console().print(table)
    RESULT.write_text(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
