"""What something costs: processor time of the client's and of the server's processes, and write-ahead log.

Processor time is read from /proc: of a process, everything it has waited for, and everything below it that lives. For
the server that is the postmaster and all its children, background writers and vacuum included, so that nothing a
contestant causes is left out. A tick is 10 ms, so a figure over two seconds is good to about one per cent.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

_TICK: Final = os.sysconf("SC_CLK_TCK")
# Fields of /proc/<pid>/stat behind the name, which may hold anything, parentheses too.
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)  # of the process, user and system; of the children it has waited for, the same
_STOLEN: Final = 7


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment."""

    clock: float
    client: float
    server: float
    wal: int
    beside: Mapping[str, float] = field(default_factory=dict[str, float])

    def cost_since(self, before: Reading, events: int) -> dict[str, float]:
        """What it took since then: processor seconds for 1,000 events, log for one."""
        count = max(events, 1)
        return {
            "client_cpu": (self.client - before.client) * 1_000 / count,
            "server_cpu": (self.server - before.server) * 1_000 / count,
            "wal": (self.wal - before.wal) / count,
            **{f"{name}_cpu": (spent - before.beside[name]) * 1_000 / count for name, spent in self.beside.items()},
        }


@dataclass(frozen=True, slots=True)
class Meter:
    """Reads the counters of one server."""

    server_pid: int
    connection: psycopg.Connection[Any]

    def read(self, client_pid: int | None = None, beside: Mapping[str, int] | None = None) -> Reading:
        """Now; of the client there may be none. Beside it there may be others, each with a name."""
        processes = _processes()
        row = self.connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()
        return Reading(
            clock=time.monotonic(),
            client=0.0 if client_pid is None else cpu_of(client_pid, processes),
            server=cpu_of(self.server_pid, processes),
            wal=int(row[0]) if row else 0,
            beside={name: cpu_of(pid, processes) for name, pid in (beside or {}).items()},
        )


def cpu_of(pid: int, processes: dict[int, tuple[int, float]]) -> float:
    """Seconds that a process and everything below it has used."""
    total = processes.get(pid, (0, 0.0))[1]
    return total + sum(cpu_of(child, processes) for child, (parent, _) in processes.items() if parent == pid)


def parse_stat(text: str) -> tuple[int, float]:
    """The parent and the processor seconds in a line of /proc/<pid>/stat."""
    fields = text.rpartition(")")[2].split()
    return int(fields[_PARENT]), sum(map(int, fields[_TIMES])) / _TICK


def stolen_share(before: list[int], after: list[int]) -> float:
    """Per cent of the machine's time that the host gave to somebody else between two looks at `machine_times`."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    return 100 * spent[_STOLEN] / max(1, sum(spent))


def machine_times() -> list[int]:
    """Ticks of all processors by what they did, from /proc/stat."""
    with Path("/proc/stat").open() as file:
        return [int(field) for field in file.readline().split()[1:9]]


def _processes() -> dict[int, tuple[int, float]]:
    found: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                found[int(place.name)] = parse_stat((place / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
