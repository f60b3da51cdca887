"""`spectral demo`: the main job on an embedded Postgres, in half a minute."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.database import environment
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.output import emit_json, emit_table, note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from spectral_ops.demo.counts import Counts


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="The counts as one JSON document on stdout.")] = False,
) -> None:
    """Kill a worker, roll out a release and replay dead letters, on a Postgres of its own.

    Two contexts, real worker processes, events published inside business transactions, broadcasts; then an oracle
    counts. Needs no database: it starts one and removes it. Exit code 0 only if nothing was lost, doubled or stuck.
    """
    from spectral_ops.demo.telling import telling  # noqa: PLC0415  as below
    from spectral_ops.demo.tour import tour  # noqa: PLC0415  psycopg and the launcher

    with _ended_in_good_order(), _logs() as directory:
        with telling(note) as teller:
            counts = tour(teller, environment(), directory)
        if as_json:
            emit_json(counts.as_dict())
        else:
            emit_table(("", "events", ""), _rows(counts))
        if not counts.clean:
            for problem in counts.problems:
                note(f"  {problem}")
            note("error: the counts do not come out even; please report this with everything above and the logs")
            raise typer.Exit(ExitCode.UNHEALTHY)
    note(f"clean in {counts.seconds:g} s: every committed event was handled once, no rolled-back one was ever seen")


@contextmanager
def _ended_in_good_order() -> Iterator[None]:
    """Let whoever ends this process by SIGTERM, or closes its terminal, be obeyed as a Ctrl-C is: nothing is left."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _logs() -> Iterator[Path]:
    """A directory for the workers' logs; kept if there is something to find in them."""
    from pathlib import Path  # noqa: PLC0415  only the demo needs these
    from shutil import rmtree  # noqa: PLC0415  as above
    from tempfile import mkdtemp  # noqa: PLC0415  as above

    directory = Path(mkdtemp(prefix="spectral-demo-"))
    try:
        yield directory
    except Exception:
        if any(directory.iterdir()):
            note(f"the workers' logs are in {directory}")
        else:
            directory.rmdir()
        raise
    except BaseException:
        rmtree(directory)
        raise
    rmtree(directory)


def _rows(counts: Counts) -> list[tuple[str, str, str]]:
    from spectral_ops.demo.counts import MUST_BE_NOTHING  # noqa: PLC0415  as above

    def row(name: str, value: int, remark: str = "") -> tuple[str, str, str]:
        return name, f"{value:>6,}", remark

    by_generation = counts.handled_by_generation.items()
    return [
        row("published", counts.published, "each committed with a decision of the business"),
        row("rolled back", counts.rolled_back, "published, but the transaction did not commit"),
        row("broadcasts", counts.broadcasts, "among those published"),
        row("delivered", counts.delivered, "a broadcast to both contexts"),
        *(row(f"  by generation {generation}", handled) for generation, handled in by_generation),
        row("taken over", counts.taken_over, "from the worker that was killed"),
        row("dead lettered", counts.dead_lettered, "failed for good in generation 1"),
        row("replayed", counts.replayed, "and handled in generation 2"),
        row("repeated", counts.external_duplicates, "effects outside the database, which is allowed"),
        ("must be 0:", "", ""),
        *(
            row(f"  {name.replace('_', ' ')}", getattr(counts, name), meaning)
            for name, meaning in MUST_BE_NOTHING.items()
        ),
    ]
