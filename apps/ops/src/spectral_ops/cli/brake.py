"""`spectral brake`: the emergency brake. What it does is decided in `spectral.core.operations`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.events_options import plain
from spectral_ops.cli.options import AsJson, By, DryRun, Reason, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.operations.brakes import Held

brake = typer.Typer(
    help="Stop claiming, of one context or of all, and go on again.",
    epilog="Example: spectral brake status",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="The context.", show_default=False)]
Everything = Annotated[bool, typer.Option("--all", help="Every context; broadcasts are not split either.")]


@brake.command(epilog="Example: spectral brake on --context platform --reason 'billing is down' --yes")
def on(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    context: Context = None,
    everything: Everything = False,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Stop claiming. What is being handled is finished; publishing goes on, and its events wait.

    It works on every worker at once, also on those that nobody can reach. A reason is required: whoever finds the brake
    pulled has to know why.
    """
    from spectral.core.operations import brakes  # noqa: PLC0415  psycopg; --help must not pay for it

    name = _named(context, everything=everything)
    if not (reason or "").strip():
        raise typer.BadParameter("say why, with --reason; it is kept in the audit")

    async def run(database: Database) -> tuple[Held, bool]:
        held = await brakes.look(database, name)
        for warning in held.warnings:
            note(f"warning: {warning}")
        if dry_run or held.brake is not None:
            return held, False
        confirm(f"stop the claiming of {_spoken(name)} ({held})", yes=yes)
        return held, await brakes.pull_brake(database, name, by=actor(by), reason=reason or "")

    held, done = with_database("brake on", run)
    if as_json:
        _emit(held, changed=done, dry_run=dry_run)
    if done:
        note(f"{_spoken(name)}: braked; {held}\n  let it go: spectral brake off {_option(name)}")
    elif held.brake is not None:
        note(f"{_spoken(name)}: braked already, by {plain(held.brake.pulled_by)}: {plain(held.brake.reason)}")
    else:
        note(f"{_spoken(name)}: {'would be braked' if dry_run else 'braked already'}; {held}")


@brake.command(epilog="Example: spectral brake off --context platform --reason 'billing is back' --yes")
def off(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    context: Context = None,
    everything: Everything = False,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Go on claiming. Workers are woken at once, and begin with what has waited longest."""
    from spectral.core.operations import brakes  # noqa: PLC0415  psycopg; --help must not pay for it

    name = _named(context, everything=everything)

    async def run(database: Database) -> tuple[Held, bool]:
        held = await brakes.look(database, name)
        if dry_run or held.brake is None:
            return held, False
        confirm(f"let the brake of {_spoken(name)} go ({held})", yes=yes)
        return held, await brakes.release_brake(database, name, by=actor(by), reason=reason)

    held, done = with_database("brake off", run)
    if as_json:
        _emit(held, changed=done, dry_run=dry_run)
    if held.brake is None:
        note(f"{_spoken(name)}: no brake was pulled")
    elif done or dry_run:
        note(f"{_spoken(name)}: {'claiming goes on' if done else 'claiming would go on'}; {held}")
    else:
        note(f"{_spoken(name)}: claiming goes on; somebody else has let the brake go meanwhile")
    for other in held.still_braked:
        note(f"still braked: {_spoken(other)}\n  let it go: spectral brake off {_option(other)}")


@brake.command(epilog="Example: spectral brake status --json")
def status(as_json: AsJson = False) -> None:
    """Show which brakes are pulled, by whom and why."""
    from spectral.core.operations.brakes import list_brakes  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    found = with_database("brake status", list_brakes)
    if as_json:
        emit_json({"brakes": as_document(found)})
        return
    rows = [
        (_spoken(each.context), f"{each.pulled_at:%Y-%m-%d %H:%M:%SZ}", each.pulled_by, each.reason) for each in found
    ]
    emit_table(("braked", "since", "by", "reason"), rows)
    note(f"{len(found)} pulled" if found else "no brake is pulled")


def _named(context: str | None, *, everything: bool) -> str:
    from spectral.core.operations.brakes import EVERY_CONTEXT  # noqa: PLC0415  psycopg; --help must not pay for it

    if (context is None) is not everything:
        raise typer.BadParameter("say which: --context NAME, or --all")
    return EVERY_CONTEXT if context is None else context


def _spoken(name: str) -> str:
    return "all contexts" if name == "*" else plain(name)


def _option(name: str) -> str:
    return "--all" if name == "*" else f"--context {name}"


def _emit(held: Held, *, changed: bool, dry_run: bool) -> None:
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it

    emit_json({**as_document(held), "changed": changed, "dry_run": dry_run})
