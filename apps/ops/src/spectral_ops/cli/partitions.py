"""`spectral partitions`: the outbox in months. What it does is decided in `spectral.core.partitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.database import environment
from spectral_ops.cli.options import AsJson, By, DryRun, Reason, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.partitions_screen import changes_of, counted, said_of, shown, steps_of, teller
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.partitions import Keep, Maintained, PartitionStatus

partitions = typer.Typer(
    help="The outbox as one table, or in months that are dropped as a whole.",
    epilog="Example: spectral partitions status",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@partitions.command(epilog="Example: spectral partitions status --json")
def status(as_json: AsJson = False) -> None:
    """Show how the outbox is laid out, every partition, and what may be dropped or why not."""
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.core.partitions import partition_status  # noqa: PLC0415  psycopg

    keep = _keep()
    found = with_database("partitions status", lambda database: partition_status(database, keep))
    if as_json:
        emit_json(as_document(found))
        return
    columns = ("partition", "from", "to", "rows", "size", "unfinished", "failed", "droppable")
    emit_table(columns, [shown(each) for each in found.partitions])
    note(said_of(found))


@partitions.command(epilog="Example: spectral partitions enable --reason 'six million rows' --yes")
def enable(
    dedup: Annotated[
        bool, typer.Option("--dedup", help="Lay the dedup records out by hash too, which copies them.")
    ] = False,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Partition the outbox by month, while publishers and workers go on.

    No row is copied: the table as it is becomes the first partition. Should it be interrupted, run it again, and it
    goes on where it stopped; `disable` takes it back until a month has its first event. The login has to be a member
    of spectral_owner, as for `spectral migrate up`.
    """
    from spectral.core import partitions as service  # noqa: PLC0415  psycopg; --help must not pay for it

    options = service.EnableOptions(dedup=dedup)

    async def run(database: Database) -> PartitionStatus:
        before = await service.enable(database, by=actor(by), reason=reason, options=options, dry_run=True)
        wanted = steps_of(before, dedup=dedup)
        if dry_run or not wanted:
            note(
                f"would take these steps: {', '.join(wanted)}" if wanted else "nothing to do: it is partitioned already"
            )
            return before
        confirm(f"partition core.outbox by month, in these steps: {', '.join(wanted)}", yes=yes)
        return await service.enable(database, by=actor(by), reason=reason, options=options, on_progress=teller())

    _tell(with_database("partitions enable", run), as_json=as_json)


@partitions.command(epilog="Example: spectral partitions disable --reason 'not yet' --yes")
def disable(
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take partitioning back: the outbox is one table again.

    Possible from any step on, until a month's partition has rows. The login has to be a member of spectral_owner.
    """
    from spectral.core import partitions as service  # noqa: PLC0415  psycopg; --help must not pay for it

    async def run(database: Database) -> PartitionStatus:
        before = await service.disable(database, by=actor(by), reason=reason, dry_run=True)
        if dry_run or (before.layout is service.Layout.PLAIN and not before.under_way):
            return before
        confirm("make core.outbox one table again", yes=yes)
        return await service.disable(database, by=actor(by), reason=reason, on_progress=teller())

    _tell(with_database("partitions disable", run), as_json=as_json)


@partitions.command(epilog="Example: spectral partitions maintain --dry-run")
def maintain(dry_run: DryRun = False, yes: Yes = False, by: By = None, as_json: AsJson = False) -> None:
    """Make the months to come, put rows of the default partition where they belong, and drop what is over.

    A partition is dropped when every row in it is over and past its retention; never one with an event that waits or
    failed. `spectral retention run` does the same, so a timer for that one is enough.
    """
    from spectral.core import partitions as service  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    keep = _keep()

    async def run(database: Database) -> Maintained:
        planned = await service.maintain(database, keep, by=actor(by), dry_run=True)
        if dry_run or planned.busy:
            return planned
        confirm(_intention(planned), yes=yes)
        return await service.maintain(database, keep, by=actor(by))

    done = with_database("partitions maintain", run)
    if as_json:
        emit_json(as_document(done))
    else:
        emit_table(("partition", ""), changes_of(done))
    note(_summary(done))


def _keep() -> Keep:
    from spectral.core.retention import keep_of, policies_from  # noqa: PLC0415  psycopg; --help must not pay for it

    return keep_of(policies_from(environment()))


def _tell(found: PartitionStatus, *, as_json: bool) -> None:
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it

    if as_json:
        emit_json(as_document(found))
    note(said_of(found))


def _intention(planned: Maintained) -> str:
    doing = [
        f"make {', '.join(planned.created)}" if planned.created else "",
        f"make a partition of {counted(planned.default_rows)} rows that fit no month" if planned.default_rows else "",
        f"drop for good {', '.join(planned.dropped)}" if planned.dropped else "",
    ]
    return ", ".join(each for each in doing if each) or "look after the partitions; none has to be made or dropped"


def _summary(done: Maintained) -> str:
    if done.busy:
        busy = "somebody else is at it, or the outbox is too busy: not everything was done"
        return f"{busy}\n  try: spectral partitions maintain"
    if done.dry_run:
        return "nothing was changed"
    dropped = f"{len(done.dropped)} dropped with {done.dropped_rows:,} rows"
    left = (
        f"\n{counted(done.default_rows)} rows fit no month and stay in the default partition"
        if done.default_rows
        else ""
    )
    return f"{len(done.created)} made, {dropped}{left}"
