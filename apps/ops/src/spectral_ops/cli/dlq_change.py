"""`spectral dlq replay` and `spectral dlq discard`: by ids, or everything that a filter means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from spectral_ops.cli.events_options import (
    Context,
    Error,
    FailedAfter,
    FailedBefore,
    Handler,
    OfGeneration,
    Type,
    Workspace,
    letters_wanted,
)
from spectral_ops.cli.options import AsJson, By, DryRun, Reason, Yes, actor
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.database import Database
    from spectral_ops.cli.dlq_bulk import Deed, Manner
    from spectral_ops.cli.errors import ExitCode

Ids = Annotated[list[UUID] | None, typer.Argument(metavar="ID", help="The events, by their ids.")]
All = Annotated[bool, typer.Option("--all", help="Everything in the DLQ.")]
Batch = Annotated[int, typer.Option(min=1, max=5_000, help="Events in one transaction.")]
Rate = Annotated[
    float | None,
    typer.Option(
        min=0.001, max=1_000_000, help="Events in a second; as fast as it goes, unless told.", show_default=False
    ),
]


def replay(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    ids: Ids = None,
    event_type: Type = None,
    context: Context = None,
    handler: Handler = None,
    error: Error = None,
    workspace: Workspace = None,
    of_generation: OfGeneration = None,
    failed_before: FailedBefore = None,
    failed_after: FailedAfter = None,
    everything: All = False,
    generation: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Replay into this one; the live one, unless told.", show_default=False),
    ] = None,
    rate: Rate = None,
    batch: Batch = 500,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let failed events start anew, under the same id and key; what a handler has done before it does not do again.

    By ids, or all that a filter means and that are in the DLQ by now, oldest failure first. What fails again meanwhile
    is not replayed twice. Ctrl-C ends it after the batch at hand, exits with 1, and shows the command that goes on.
    """
    from spectral.core.deployments import replay_target  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations import replay as service  # noqa: PLC0415  as above
    from spectral_ops.cli.dlq_bulk import Deed, Manner  # noqa: PLC0415  as above

    options = {
        "--type": event_type,
        "--context": context,
        "--handler": handler,
        "--error": error,
        "--workspace": workspace,
        "--of-generation": of_generation,
        "--failed-before": failed_before,
        "--failed-after": failed_after,
        "--all": everything,
        "--generation": generation,
        "--rate": rate,
        "--batch": batch,
        "--reason": reason,
        "--by": by,
    }
    _require_a_choice(ids, options)

    async def run(database: Database) -> ExitCode:
        into = await replay_target(database, generation)
        how = service.ReplayOptions(by=actor(by), reason=reason, generation=into, rate=rate, batch=batch)
        deed = Deed(
            do="replay",
            done="replayed",
            where=f" into generation {into}",
            few=lambda few: service.replay(database, few, generation=into, by=how.by, reason=reason),
            many=lambda wanted, tell, stop: service.replay_matching(database, wanted, how, tell, stop),
        )
        # Whoever goes on means the same generation, though another one may be live by then.
        pinned = {**options, "--generation": into}
        return await _change(database, deed, ids, pinned, Manner(yes=yes, dry_run=dry_run, as_json=as_json))

    raise typer.Exit(with_database("dlq replay", run))


def discard(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    ids: Ids = None,
    event_type: Type = None,
    context: Context = None,
    handler: Handler = None,
    error: Error = None,
    workspace: Workspace = None,
    of_generation: OfGeneration = None,
    failed_before: FailedBefore = None,
    failed_after: FailedAfter = None,
    everything: All = False,
    rate: Rate = None,
    batch: Batch = 500,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take failed events out of the DLQ for good; a reason is required.

    They stay in the table, history and all, until the sweep comes, and can be brought back till then. Otherwise it is
    like replay: by ids, or all that a filter means; Ctrl-C ends it after the batch at hand.
    """
    from spectral.core.operations import discard as service  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral_ops.cli.dlq_bulk import Deed, Manner  # noqa: PLC0415  as above

    options = {
        "--type": event_type,
        "--context": context,
        "--handler": handler,
        "--error": error,
        "--workspace": workspace,
        "--of-generation": of_generation,
        "--failed-before": failed_before,
        "--failed-after": failed_after,
        "--all": everything,
        "--rate": rate,
        "--batch": batch,
        "--reason": reason,
        "--by": by,
    }
    _require_a_choice(ids, options)
    why = (reason or "").strip()
    if not why:
        raise typer.BadParameter("say why, with --reason; it is kept in the audit")

    async def run(database: Database) -> ExitCode:
        how = service.DiscardOptions(by=actor(by), reason=why, rate=rate, batch=batch)
        deed = Deed(
            do="discard",
            done="discarded",
            where="",
            few=lambda few: service.discard(database, few, by=how.by, reason=why),
            many=lambda wanted, tell, stop: service.discard_matching(database, wanted, how, tell, stop),
        )
        return await _change(database, deed, ids, options, Manner(yes=yes, dry_run=dry_run, as_json=as_json))

    raise typer.Exit(with_database("dlq discard", run))


def _require_a_choice(ids: list[UUID] | None, options: Mapping[str, object]) -> None:
    filters = ("--type", "--context", "--handler", "--error", "--workspace", "--of-generation", "--failed-after")
    by_filter = any(options[name] is not None for name in filters)
    if ids and (by_filter or options["--all"] or options["--failed-before"] is not None):
        raise typer.BadParameter("name events by their ids or by a filter, not by both")
    if not (ids or by_filter or options["--all"]):
        raise typer.BadParameter("say which: ids, a filter such as --error or --type, or --all")
    if by_filter and options["--all"]:
        raise typer.BadParameter("--all means everything; leave it out to go by the filter")


async def _change(
    database: Database, deed: Deed, ids: list[UUID] | None, options: Mapping[str, object], manner: Manner
) -> ExitCode:
    from spectral_ops.cli.dlq_bulk import change_few, change_many  # noqa: PLC0415  psycopg

    if ids:
        return await change_few(database, deed, ids, manner)
    return await change_many(database, deed, letters_wanted(options), options, manner)
