"""`spectral generations`: releases and what is left of them. What it does is decided in `spectral.core.deployments`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.events_options import command_line
from spectral_ops.cli.generations_progress import bar, interrupted
from spectral_ops.cli.options import AsJson, By, DryRun, Reason, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.database import Database
    from spectral.core.deployments import Deployment, HandedOver, HandOverPreview, Promotion

generations = typer.Typer(
    help="Release generations: allocate, promote, drain, retire, hand over.",
    epilog="Example: spectral generations list",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Generation = Annotated[int, typer.Argument(metavar="GENERATION", min=0, help="The number of the release.")]


@generations.command("list", epilog="Example: spectral generations list --json")
def list_(
    retired: Annotated[int, typer.Option(min=0, max=1000, help="Retired generations to show; the newest ones.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show every generation, what is left of it and how many workers run it.

    Counts end at 10,000, shown as 10,000+. What needs a look is said below the table, with the command that sees to it.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it

    found = with_database("generations list", lambda each: deployments.list_deployments(each, retired=retired))
    remarks = deployments.remarks(found)
    if as_json:
        _emit(generations=found, remarks=remarks)
        return
    columns = ("generation", "status", "label", "since", "pending", "in flight", "failed", "workers")
    emit_table(columns, [_row(each) for each in found])
    for remark in remarks:
        note(f"{remark.message}\n  try: {remark.remedy}")


@generations.command(epilog="Example: spectral generations allocate shop.events:billing --label v2")
def allocate(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    apps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[APP]...", help="module:attribute of a Consumer of the release, or of a list of them."),
    ] = None,
    label: Annotated[str | None, typer.Option(help="What people call the release: a tag, a commit.")] = None,
    generation: Annotated[
        int | None, typer.Option(min=0, help="Its number; the next one unless told.", show_default=False)
    ] = None,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accepted for scripts; allocate never asks.")] = False,  # noqa: ARG001  see help
    as_json: AsJson = False,
) -> None:
    """Give a release its generation, and print the number.

    Name all consumers of the release: who handles what is recorded before its workers run, so that no event is taken
    for one that nobody handles. Allocating the same number again, before it is promoted, brings that up to date.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral_workers.locate import locate_consumers  # noqa: PLC0415  as above

    release = deployments.Release.of(locate_consumers(apps or ()), label=label, generation=generation)
    done = with_database(
        "generations allocate",
        lambda each: deployments.allocate(each, release, by=actor(by), reason=reason, dry_run=dry_run),
    )
    if as_json:
        _emit(done, dry_run=dry_run)
    else:
        typer.echo(str(done.generation))
    verb = "would be allocated" if dry_run else "is allocated" if done.new else "is brought up to date"
    note(f"generation {done.generation} {verb}: {done.subscriptions} subscription(s)")


@generations.command(epilog="Example: spectral generations promote 2 --yes --reason 'v2 is up'")
def promote(
    generation: Generation,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a generation the live one; the one that was starts draining.

    Live is where events go whose publisher names no generation, and what dead letters are replayed into. Workers and
    publishers keep to their own SPECTRAL_GENERATION, so start those of the new release first.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it

    async def run(database: Database) -> Promotion:
        planned = await deployments.promote(database, generation, by=actor(by), dry_run=True)
        if dry_run or not planned.changed:
            return planned
        confirm(f"make {planned} live", yes=yes)
        return await deployments.promote(database, generation, by=actor(by), reason=reason)

    _tell_promotion(with_database("generations promote", run), dry_run=dry_run, as_json=as_json)


@generations.command(epilog="Example: spectral generations rollback --yes --reason 'v2 loses orders'")
def rollback(
    reason: Reason = None, by: By = None, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Make the generation live again that was so before.

    Start publishers and workers with its number again too. What the release you leave has published is still its own:
    its workers finish it, or hand it over. A second rollback in a row is refused: say where to with promote.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it

    async def run(database: Database) -> Promotion:
        planned = await deployments.rollback(database, by=actor(by), dry_run=True)
        if dry_run:
            return planned
        confirm(f"make {planned} live again", yes=yes)
        return await deployments.rollback(database, by=actor(by), reason=reason, leaving=planned.before)

    _tell_promotion(with_database("generations rollback", run), dry_run=dry_run, as_json=as_json)


@generations.command(epilog="Example: spectral generations drain 1 --dry-run")
def drain(
    generation: Generation,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say that a generation is on its way out: for one that never went live, or to leave none live.

    Promoting another one drains the live one by itself. Workers go on and finish what there is.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it

    async def run(database: Database) -> Deployment:
        planned = await deployments.drain(database, generation, by=actor(by), dry_run=True)
        if dry_run or planned.status == "draining":
            return planned
        confirm(f"drain generation {generation}{', and have none live' if planned.status == 'live' else ''}", yes=yes)
        return await deployments.drain(database, generation, by=actor(by), reason=reason)

    _tell_deployment(with_database("generations drain", run), "drains", dry_run=dry_run, as_json=as_json)


@generations.command(epilog="Example: spectral generations retire 1 --dry-run")
def retire(
    generation: Generation,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put a generation away for good.

    Refused while rows of it wait or are in flight: the message says how many of what. Dead letters do not count; they
    are replayed into the live generation.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it

    async def run(database: Database) -> Deployment:
        planned = await deployments.retire(database, generation, by=actor(by), dry_run=True)
        if dry_run or planned.status == "retired":
            return planned
        confirm(f"retire generation {generation} for good", yes=yes)
        return await deployments.retire(database, generation, by=actor(by), reason=reason)

    done = with_database("generations retire", run)
    workers = f"; {len(done.workers)} worker(s) of it still run: stop them" if done.workers else ""
    _tell_deployment(done, f"is retired{workers}", dry_run=dry_run, as_json=as_json)


@generations.command(epilog="Example: spectral generations hand-over 1 2 --dry-run")
def hand_over(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    source: Annotated[int, typer.Argument(metavar="FROM", min=0, help="The generation whose rows wait.")],
    target: Annotated[int, typer.Argument(metavar="TO", min=0, help="The generation that is to run them.")],
    context: Annotated[
        str | None, typer.Option(help="Only rows of this context; broadcasts are of none.", show_default=False)
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Rows that move in one transaction.")] = 1000,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let another generation run what waits in this one.

    For rows whose own workers are gone. Shows what would move, by type, and warns of types that nobody subscribes to
    where they would go. Attempts and keys stay. Ctrl-C ends it after the batch at hand; run it again to go on.
    """
    from spectral.core import deployments  # noqa: PLC0415  psycopg; --help must not pay for it

    order = deployments.HandOver(source, target, context, batch)

    async def run(database: Database) -> tuple[HandOverPreview, HandedOver | None]:
        preview = await deployments.preview_hand_over(database, order)
        if not as_json:
            _show_preview(preview, deployments.warnings(preview), table=dry_run)
        if dry_run or not preview.waiting:
            return preview, None
        confirm(f"hand {preview.total} rows over from generation {source} to {target}", yes=yes)
        with bar(preview.total) as on_progress, interrupted() as aborted:
            return preview, await deployments.hand_over(
                database, order, by=actor(by), reason=reason, on_progress=on_progress, aborted=aborted
            )

    preview, done = with_database("generations hand-over", run)
    if as_json:
        _emit(preview=preview, warnings=deployments.warnings(preview), done=done, dry_run=dry_run)
    if done is None:
        note(f"{preview.total} rows would be handed over" if dry_run else "nothing waits there")
        return
    note(f"{done.moved:,} rows were handed over; left are {done.pending} that wait and {done.in_flight} in flight")
    if done.aborted or done.pending.rows:
        options = {"--context": context, "--batch": batch, "--reason": reason, "--by": by}
        again = command_line(f"generations hand-over {source} {target}", options)
        ended = "ended before it was done" if done.aborted else "given up: what still waits is held, or new"
        note(f"{ended}\n  try: {again}")
        raise typer.Exit(ExitCode.FAILED)


def _emit(value: object = None, **more: object) -> None:
    """One document: the fields of the value, and these."""
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic

    emit_json({**(as_document(value) or {}), **as_document(more)})


def _row(each: Deployment) -> tuple[str, ...]:
    since = "" if each.since is None else f"{each.since:%Y-%m-%d %H:%M:%SZ}"
    workers = f"{len(each.workers)}" + (f" (+{len(each.accepted_by)})" if each.accepted_by else "")
    left = (str(each.pending), str(each.in_flight), str(each.failed))
    return str(each.generation), each.status, each.label or "", since, *left, workers


def _tell_promotion(done: Promotion, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        _emit(done, changed=done.changed, dry_run=dry_run)
    is_live, drains = ("would be live", "would drain") if dry_run and done.changed else ("is live", "drains")
    before = f"; {done.before} {drains}" if done.changed and done.before is not None else ""
    note(f"generation {done.generation} {is_live}{before}")


def _tell_deployment(done: Deployment, verb: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        _emit(done, dry_run=dry_run)
    note(f"generation {done.generation} {verb}" if not dry_run else "it may be done; nothing was changed")


def _show_preview(preview: HandOverPreview, warnings: Sequence[str], *, table: bool) -> None:
    if table:
        rows = [(each.context or "", each.event_type, f"{each.rows:,}") for each in preview.waiting]
        emit_table(("context", "type", "rows"), rows)
    for warning in warnings:
        note(f"warning: {warning}")
