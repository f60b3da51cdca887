"""`spectral status`: one screen, a verdict in words. What it says is decided in `spectral.core.operations`."""

from __future__ import annotations

import typer

from spectral_ops.cli.database import environment, resolve_dsn
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.options import AsJson  # noqa: TC001  typer reads the annotation when it runs
from spectral_ops.cli.output import emit_json, note
from spectral_ops.cli.running import with_database


def status(as_json: AsJson = False) -> None:
    """Say in words how delivery stands, and what to run next.

    Tells delivering from idle, draining, braked and down. Counts end at 10,000, shown as 10,000+. Needs a login in
    spectral_operator. Exits with 4 when something is unhealthy, which is when events are not delivered and somebody has
    to act; what only needs attention is no failure.
    """
    from spectral.core.database import describe_database  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above
    from spectral.core.operations.insights import take_snapshot  # noqa: PLC0415  as above
    from spectral.core.operations.verdict import Level, judge  # noqa: PLC0415  as above

    where = describe_database(resolve_dsn(environment()))
    snapshot = with_database("status", take_snapshot)
    verdict = judge(snapshot)
    if as_json:
        emit_json(as_document({"database": where, "verdict": verdict, "snapshot": snapshot}))
    else:
        from spectral_ops.cli import status_screen  # noqa: PLC0415  rich

        console = status_screen.screen()
        status_screen.show(
            console,
            *status_screen.verdict_parts(verdict, console.width),
            status_screen.backlog_table(snapshot, console.width),
            status_screen.worker_table(snapshot, console.width),
        )
        note(f"{where} at {snapshot.taken_at:%Y-%m-%d %H:%M:%S} UTC, by the database's clock")
    if verdict.level is Level.UNHEALTHY:
        raise typer.Exit(ExitCode.UNHEALTHY)
