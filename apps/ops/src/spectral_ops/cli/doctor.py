"""`spectral doctor`: what is wrong, why it matters, what to run. It is decided in `spectral.core.operations.doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from spectral_ops.cli.database import environment
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.options import AsJson  # noqa: TC001  typer reads the annotation when it runs
from spectral_ops.cli.output import emit_json, note

if TYPE_CHECKING:
    from spectral.core.operations.doctor import Examination


def doctor(as_json: AsJson = False) -> None:
    """Examine the database and the way to it; every finding comes with its fix.

    Looks at the server, poolers, LISTEN, the schema, roles, vacuum, whoever holds it up, workers, what waits and what
    failed. Silent when nothing is wrong. SPECTRAL_DIRECT_URL is examined too. A login in spectral_operator sees
    delivery, pg_monitor other logins' transactions, the role that ran the migrations the schema; what this login may
    not see is said. Exits with 4 when something is unhealthy.
    """
    import asyncio  # noqa: PLC0415  --help must not pay for it

    from spectral.core.events.settings import DatabaseSettings  # noqa: PLC0415  pydantic comes with it
    from spectral.core.operations.doctor import Level, examine  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    settings = DatabaseSettings.from_environ(environment())
    found = asyncio.run(examine(settings.dsn, settings.direct_dsn))
    if as_json:
        emit_json(as_document(found))
    else:
        _show(found)
    if found.level is Level.UNHEALTHY:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _show(found: Examination) -> None:
    from spectral_ops.cli import status_screen  # noqa: PLC0415  rich

    console = status_screen.screen()
    status_screen.show(
        console,
        *(
            status_screen.block(finding.severity, [f"{finding.what}.", f"{finding.why}."], finding.fix, console.width)
            for finding in found.findings
        ),
    )
    for each in found.unseen:
        note(f"not examined: {each.part}: {each.reason}\n  try: {each.fix}")
    count = len(found.findings)
    result = "nothing found" if not count else f"{count} finding{'s' if count > 1 else ''}"
    note(f"{found.database}: {found.checks} checks, {result}")
