"""`spectral events`: events as they are. What it shows is decided in `spectral.core.operations`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.events_options import (
    Context,
    Cursor,
    EventId,
    OfGeneration,
    Type,
    Workspace,
    command_line,
    plain,
    when,
)
from spectral_ops.cli.options import AsJson, Limit  # noqa: TC001  typer reads the annotations
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_events

if TYPE_CHECKING:
    from spectral.core.operations.events import Event

events = typer.Typer(
    help="Look at events, whatever became of them.",
    epilog="Example: spectral events list --status pending",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class Status(StrEnum):
    """As `spectral.core.operations.events.EventStatus` has them, which --help must not pay for."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    FAILED = "failed"
    DISCARDED = "discarded"


OfStatus = Annotated[Status | None, typer.Option("--status", help="In this state.", show_default=False)]


@events.command("list", epilog="Example: spectral events list --status pending --context platform")
def list_(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    status: OfStatus = None,
    event_type: Type = None,
    context: Context = None,
    workspace: Workspace = None,
    of_generation: OfGeneration = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List events, newest first; pending ones by when they were due.

    At most 50,000 rows are looked at; what was, is said below the table, and the cursor goes on from there. An empty
    --context means broadcasts.
    """
    from spectral.core.operations import events as service  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    wanted = service.EventFilter(
        status=None if status is None else service.EventStatus(status.value),
        event_type=event_type,
        context=context,
        workspace_id=workspace,
        generation=of_generation,
    )
    page = with_events(
        "events list",
        lambda database: service.list_events(database, wanted, limit=limit, cursor=cursor),
        workspace=workspace,
    )
    if as_json:
        emit_json(as_document(page))
    else:
        emit_table(("id", "type", "from", "to", "status", "attempts", "published"), [_row(each) for each in page.items])
    note(f"{len(page.items)} shown of {page.window}" + ("" if page.next_cursor else "; no more"))
    if page.next_cursor is not None:
        options = {
            "--status": None if status is None else status.value,
            "--type": event_type,
            "--context": context,
            "--workspace": workspace,
            "--of-generation": of_generation,
            "--limit": limit,
            "--cursor": page.next_cursor,
        }
        note(f"  more: {command_line('events list', options)}")


@events.command(epilog="Example: spectral events show 0198c0de-0000-7000-8000-000000000001")
def show(event_id: EventId, as_json: AsJson = False) -> None:
    """Show one event whole: payload, course, handlers, and what was done to it."""
    from spectral_ops.cli.events_screen import show_event  # noqa: PLC0415  psycopg; --help must not pay for it

    show_event(event_id, as_json=as_json)


def _row(each: Event) -> tuple[str, ...]:
    way = (plain(each.source), plain(each.context) or "(broadcast)")
    return str(each.id), plain(each.event_type), *way, each.status, str(each.attempts), when(each.created_at)
