"""`spectral demo`: the main job on an embedded Postgres, in seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.output import emit_json, emit_table, note


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="The counts as one JSON document on stdout.")] = False,
) -> None:
    """Publish, roll back, deliver, lose a worker, dead-letter and replay on a Postgres of its own.

    Needs no database: it starts one and removes it. Exit code 0 only if nothing was lost, doubled or stuck.
    """
    import asyncio  # noqa: PLC0415  only the demo needs it
    from dataclasses import asdict  # noqa: PLC0415  as above

    from spectral_ops.demo import tour  # noqa: PLC0415  psycopg and the launcher

    counts = asyncio.run(tour(lambda step: note(f"· {step}")))
    if as_json:
        emit_json(asdict(counts))
    else:
        emit_table(
            ("count", "events"), [(name.replace("_", " "), str(value)) for name, value in asdict(counts).items()]
        )
    if not counts.clean:
        note("error: the counts do not come out even; please report this with the table above")
        raise typer.Exit(ExitCode.UNHEALTHY)
    note("clean: every committed event was handled once, no rolled-back one was ever seen")
