"""`spectral bell`: whether publishers notify. What that means is decided in `spectral.core.operations`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.events_options import plain
from spectral_ops.cli.options import AsJson, By, DryRun, Reason, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.operations.bell import BellState

bell = typer.Typer(
    help="Have publishers notify workers when somebody may be asleep, always, or never.",
    epilog="Example: spectral bell show",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Ring(StrEnum):
    """As `spectral.core.operations.bell.Mode`, which costs the import of a driver."""

    BELL = "bell"
    ALWAYS = "always"
    OFF = "off"


_SPOKEN = {
    Ring.BELL: "publishers notify when somebody may be asleep",
    Ring.ALWAYS: "publishers notify of every row",
    Ring.OFF: "publishers never notify: workers find every event by polling",
}

Wanted = Annotated[Ring, typer.Argument(metavar="MODE", help="bell, always or off.", show_default=False)]


@bell.command(epilog="Example: spectral bell show --json")
def show(as_json: AsJson = False) -> None:
    """Show how publishers notify, who set it so, and which workers are awake."""
    from spectral.core.operations.bell import show_bell  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    state = with_database("bell show", show_bell)
    if as_json:
        emit_json(as_document(state))
        return
    since = f"{state.changed_at:%Y-%m-%d %H:%M:%SZ}"
    row = (state.mode, since, state.changed_by, state.reason or "", f"{state.queue_usage:.0%}", str(len(state.awake)))
    emit_table(("mode", "since", "by", "reason", "queue", "awake"), [row])
    note(_SPOKEN[Ring(state.mode)])


@bell.command("set", epilog="Example: spectral bell set off --reason 'the NOTIFY queue is full' --yes")
def set_mode(
    mode: Wanted,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have publishers notify when somebody may be asleep (bell), of every row (always), or never (off).

    It works on every transaction that publishes from now on. A reason is required: off makes idle workers slow, and
    whoever finds it so has to know why.
    """
    from spectral.core.operations.bell import Mode, set_bell, show_bell  # noqa: PLC0415  psycopg; --help must not pay
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    if not (reason or "").strip():
        raise typer.BadParameter("say why, with --reason; it is kept in the audit")

    async def run(database: Database) -> tuple[BellState, bool]:
        before = await show_bell(database)
        if dry_run or before.mode == mode:
            return before, False
        confirm(f"change the bell from {before.mode} to {mode}: {_SPOKEN[mode]}", yes=yes)
        return before, await set_bell(database, Mode(mode), by=actor(by), reason=reason or "")

    before, done = with_database("bell set", run)
    if as_json:
        emit_json({"before": as_document(before), "mode": str(mode), "changed": done, "dry_run": dry_run})
    if done:
        note(f"{mode}: {_SPOKEN[mode]}\n  take it back: spectral bell set {before.mode}")
    elif before.mode == mode:
        note(f"{mode} already, by {plain(before.changed_by)}: {plain(before.reason or 'no reason')}")
    else:
        note(f"{mode}: would be set" if dry_run else f"{mode}: somebody else has set it meanwhile")
