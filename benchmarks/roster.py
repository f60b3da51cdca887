"""Who takes part, at which settings, and what the one who measures has to know of them.

`left` counts what is not settled yet and `clear` empties the tables, both in the contestant's own database. `rates` are
guesses of events per second that decide how many events the first round is filled with; later rounds use what was
measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.figures import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A product.

    packages: what its environment is made of; nothing means ours.
    python: the oldest Python it runs on.
    """

    name: str
    module: str
    left: str
    clear: str
    packages: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    has_bulk: bool = True

    @property
    def group(self) -> Group:
        """Ours, or a peer's."""
        return "peer" if self.packages else "ours"


@dataclass(frozen=True, slots=True)
class Line:
    """A contestant at certain settings.

    variables: what its worker finds in its environment beside everything else.
    keeps_log: whether the log of a worker of ours can be read while it runs.
    """

    contestant: Contestant
    settings: str
    label: str
    rates: Mapping[str, float] = field(default_factory=dict[str, float])
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    keeps_log: bool = False

    @property
    def group(self) -> Group:
        """Whose it is."""
        return self.contestant.group

    @property
    def once(self) -> bool:
        """A peer's defaults are shown, not competed with: one round of them has to be enough."""
        return self.group == "peer" and self.settings == "default"


def _rates(noop: float, upsert: float, sleep: float) -> dict[str, float]:
    return {"noop": noop, "upsert": upsert, "sleep": sleep}


OURS: Final = Contestant(
    name="spectral",
    module="ours",
    left=(
        "select (select count(*) from core.outbox where status = 'pending' and deleted_at is null)"
        " + (select count(*) from core.outbox where status = 'in_flight')"
    ),
    clear="truncate core.outbox, core.event_handled",
)
PGQUEUER: Final = Contestant(
    name="PgQueuer",
    module="pgqueuer_peer",
    left="select count(*) from pgqueuer",
    clear="truncate pgqueuer, pgqueuer_log",
    packages=("pgqueuer[asyncpg]==1.6.0", "uvloop==0.23.0"),
)
PROCRASTINATE: Final = Contestant(
    name="procrastinate",
    module="procrastinate_peer",
    left="select count(*) from procrastinate_jobs where status <> 'succeeded'",
    clear="truncate procrastinate_jobs cascade",
    packages=("procrastinate==3.10.0", "psycopg[binary]==3.3.8", "uvloop==0.23.0"),
)
OBAN: Final = Contestant(
    name="oban",
    module="oban_peer",
    left="select count(*) from oban_jobs where state <> 'completed'",
    clear="truncate oban_jobs",
    packages=("oban==0.7.0", "psycopg[binary]==3.3.8", "uvloop==0.23.0"),
    python=(3, 12),
)
CHANCY: Final = Contestant(
    name="chancy",
    module="chancy_peer",
    left="select count(*) from chancy_jobs where state <> 'succeeded'",
    clear="truncate chancy_jobs",
    packages=("chancy==0.26.0", "psycopg[binary]==3.3.8", "uvloop==0.23.0"),
)
ABSURD: Final = Contestant(
    name="absurd-sdk",
    module="absurd_peer",
    left="select count(*) from absurd.t_bench where state <> 'completed'",
    clear="truncate absurd.t_bench, absurd.r_bench, absurd.c_bench",
    packages=("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0"),
    has_bulk=False,
)
PGMQ: Final = Contestant(
    name="pgmq",
    module="pgmq_peer",
    left="select count(*) from pgmq.q_bench",
    clear="truncate pgmq.q_bench",
    packages=("pgmq[async]==1.1.4", "uvloop==0.23.0"),
)
FASTSTREAM: Final = Contestant(
    name="faststream-outbox",
    module="faststream_peer",
    left="select count(*) from outbox",
    clear="truncate outbox",
    packages=("faststream-outbox==0.19.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
)

SPECTRAL: Final = Line(OURS, "default", "Spectral", _rates(12_000, 2_000, 4_000))
QUIET: Final = Line(OURS, "quiet", "Spectral, quiet", _rates(14_000, 2_000, 4_000))
PROCESSES: Final = Line(OURS, "processes", "Spectral, 2 processes", _rates(14_000, 2_500, 5_000))
SUBSTRATES: Final = {
    kind: Line(OURS, "default", label, _rates(rate, 2_000, 4_000), {"SPECTRAL_RELAY": kind}, keeps_log=True)
    for kind, label, rate in (
        ("postgres", "Postgres", 12_000),
        ("nats", "NATS", 6_000),
        ("redis", "Redis", 6_000),
    )
}
"""By the mode that the database is switched to."""

PEERS: Final = (PGQUEUER, PROCRASTINATE, OBAN, CHANCY, ABSURD, PGMQ, FASTSTREAM)
FASTEST_PEERS: Final = (PGQUEUER, PGMQ)

_DEFAULT_RATES: Final = {
    PGQUEUER.name: _rates(3_500, 2_000, 2_500),
    PROCRASTINATE.name: _rates(300, 230, 70),
    OBAN.name: _rates(1_500, 900, 700),
    CHANCY.name: _rates(1, 1, 1),
    ABSURD.name: _rates(60, 50, 40),
    PGMQ.name: _rates(300, 250, 80),
    FASTSTREAM.name: _rates(850, 450, 80),
}
_BEST_RATES: Final = {
    PGQUEUER.name: _rates(15_000, 3_500, 10_000),
    PROCRASTINATE.name: _rates(400, 400, 450),
    OBAN.name: _rates(2_500, 2_000, 2_000),
    CHANCY.name: _rates(4_000, 1_800, 2_500),
    ABSURD.name: _rates(650, 500, 500),
    PGMQ.name: _rates(35_000, 5_500, 20_000),
    FASTSTREAM.name: _rates(2_800, 1_000, 700),
}


def at_defaults(contestant: Contestant) -> Line:
    """A peer as it comes."""
    return Line(contestant, "default", f"{contestant.name}, defaults", _DEFAULT_RATES[contestant.name])


def at_best(contestant: Contestant) -> Line:
    """A peer at the best of its documented settings."""
    return Line(contestant, "best", f"{contestant.name}, best", _BEST_RATES[contestant.name])
