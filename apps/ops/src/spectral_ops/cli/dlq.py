"""`spectral dlq`: the dead letter queue. What it does is decided in `spectral.core.operations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from spectral_ops.cli.dlq_change import discard, replay
from spectral_ops.cli.events_options import (
    Context,
    Cursor,
    Error,
    EventId,
    FailedAfter,
    FailedBefore,
    Handler,
    OfGeneration,
    Type,
    Workspace,
    command_line,
    letters_wanted,
    plain,
    when,
)
from spectral_ops.cli.options import AsJson, Limit  # noqa: TC001  typer reads the annotations
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_events

if TYPE_CHECKING:
    from spectral.core.operations.dead_letters import DeadLetter, DeadLetterGroup

dlq = typer.Typer(
    help="Failed events: look at them, replay them, discard them.",
    epilog="Example: spectral dlq groups",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_EXAMPLE_ID = "0198c0de-0000-7000-8000-000000000001"
dlq.command(epilog=f"Example: spectral dlq replay {_EXAMPLE_ID} --reason 'fixed in 1.4.2' --yes")(replay)
dlq.command(epilog=f"Example: spectral dlq discard {_EXAMPLE_ID} --reason 'a test order' --yes")(discard)


@dlq.command("list", epilog="Example: spectral dlq list --error ValueError")
def list_(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    event_type: Type = None,
    context: Context = None,
    handler: Handler = None,
    error: Error = None,
    workspace: Workspace = None,
    of_generation: OfGeneration = None,
    failed_before: FailedBefore = None,
    failed_after: FailedAfter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List failed events, by first failure, newest first; an empty --context or --handler means those without one."""
    from spectral.core.operations import dead_letters  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    options = {
        "--type": event_type,
        "--context": context,
        "--handler": handler,
        "--error": error,
        "--workspace": workspace,
        "--of-generation": of_generation,
        "--failed-before": failed_before,
        "--failed-after": failed_after,
    }
    wanted = letters_wanted(options)
    page = with_events(
        "dlq list",
        lambda database: dead_letters.list_dead_letters(database, wanted, limit=limit, cursor=cursor),
        workspace=workspace,
    )
    if as_json:
        emit_json(as_document(page))
    else:
        emit_table(("id", "type", "context", "error", "replays", "failed"), [_letter(each) for each in page.items])
    if page.next_cursor is None:
        note(f"{len(page.items)} shown, no more" if page.items or cursor else "none")
        return
    following = command_line("dlq list", {**options, "--limit": limit, "--cursor": page.next_cursor})
    note(f"{len(page.items)} shown; there may be more\n  try: {following}")


@dlq.command(epilog="Example: spectral dlq groups --context platform --json")
def groups(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    event_type: Type = None,
    context: Context = None,
    handler: Handler = None,
    error: Error = None,
    workspace: Workspace = None,
    of_generation: OfGeneration = None,
    failed_before: FailedBefore = None,
    failed_after: FailedAfter = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """Show what failures have in common: type, context, error and handler, the most frequent first.

    Counts end where counting would take long, shown as 10,000+ or less. The sample is the newest of its group.
    """
    from spectral.core.operations import dead_letters  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    options = {
        "--type": event_type,
        "--context": context,
        "--handler": handler,
        "--error": error,
        "--workspace": workspace,
        "--of-generation": of_generation,
        "--failed-before": failed_before,
        "--failed-after": failed_after,
    }
    wanted = letters_wanted(options)
    found = with_events(
        "dlq groups",
        lambda database: dead_letters.group_dead_letters(database, wanted, limit=limit),
        workspace=workspace,
    )
    if as_json:
        emit_json(as_document(found))
    else:
        columns = ("events", "type", "context", "error", "handler", "first failed", "last failed", "sample")
        emit_table(columns, [group_row(each) for each in found.items])
    more = "" if found.complete else "; there are more, or too many to look at"
    note(f"{len(found.items)} group(s){more}" if found.items or more else "none")


@dlq.command(epilog=f"Example: spectral dlq show {_EXAMPLE_ID}")
def show(event_id: EventId, as_json: AsJson = False) -> None:
    """Show one failed event whole: payload, errors, course, handlers, and what was done to it."""
    from spectral_ops.cli.events_screen import show_event  # noqa: PLC0415  psycopg; --help must not pay for it

    detail = show_event(event_id, as_json=as_json)
    if detail.status != "failed":
        note(f"it is {detail.status}, not in the DLQ")
    else:
        note(f"  replay:  spectral dlq replay {event_id}\n  discard: spectral dlq discard {event_id} --reason ...")


def _letter(each: DeadLetter) -> tuple[str, ...]:
    error = plain(each.error)
    shown = error if len(error) <= 60 else f"{error[:59]}…"  # noqa: PLR2004  about half a line
    context = plain(each.context) or "(broadcast)"
    return str(each.id), plain(each.event_type), context, shown, str(each.replays), when(each.failed_at)


def group_row(each: DeadLetterGroup) -> tuple[str, ...]:
    """A group as a row of a table."""
    count = f"{each.count:,}+" if each.capped else f"{each.count:,}"
    what = (plain(each.event_type), plain(each.context) or "(broadcast)", plain(each.error_class))
    span = (when(each.first_failed_at), when(each.last_failed_at))
    return count, *what, plain(each.handler_name), *span, str(each.sample_id)
