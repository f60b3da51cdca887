"""`spectral tail`: events as they come and go. What it shows is decided in `spectral.core.operations`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from spectral_ops.cli.database import environment, resolve_dsn
from spectral_ops.cli.events import OfStatus  # noqa: TC001  typer reads the annotations
from spectral_ops.cli.events_options import Context, OfGeneration, Type, Workspace  # noqa: TC001  as above


def tail(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    status: OfStatus = None,
    event_type: Type = None,
    context: Context = None,
    workspace: Workspace = None,
    of_generation: OfGeneration = None,
    last: Annotated[int, typer.Option(min=0, max=1000, help="Begin with this many that are there.")] = 10,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=0.1, max=60, help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show those that are there, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document for each line.")] = False,
) -> None:
    """Follow events as they are published, claimed, delivered or fail, until Ctrl-C.

    With --status only what comes into that state is shown. A lost connection is made anew, and nothing is shown twice.
    """
    from spectral.core.operations.events import EventFilter, EventStatus  # noqa: PLC0415  psycopg; --help must not pay
    from spectral_ops.cli.tail_follow import Wish, follow  # noqa: PLC0415  as above

    wanted = EventFilter(
        status=None if status is None else EventStatus(status.value),
        event_type=event_type,
        context=context,
        workspace_id=workspace,
        generation=of_generation,
    )
    pause = None if once else timedelta(seconds=every)
    follow(resolve_dsn(environment()), Wish(wanted, last=last, every=pause, as_json=as_json))
