"""`spectral audit`: who did what, and why. What it shows is decided in `spectral.core.operations`."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003  typer reads the annotations
from typing import TYPE_CHECKING, Annotated
from uuid import UUID  # noqa: TC003  as above

import typer

from spectral_ops.cli.events_options import Cursor, command_line, moment, plain, when
from spectral_ops.cli.options import AsJson, Limit  # noqa: TC001  as above
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from spectral.core.operations.audit import AuditEntry


def audit(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    action: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as replay, discard or promote.", show_default=False)
    ] = None,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Who did it.", show_default=False)] = None,
    event: Annotated[
        UUID | None, typer.Option(metavar="ID", help="What was done to this event.", show_default=False)
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(metavar="TIME", parser=moment, help="Then or later.", show_default=False)
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """Show who replayed, discarded, promoted or braked what, when and why; newest first.

    The actor is whom the caller named; the login is whom the server knew.
    """
    from spectral.core.operations import audit as service  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    wanted = service.AuditFilter(action=action, actor=actor, event_id=event, since=since)
    page = with_database("audit", lambda database: service.list_audit(database, wanted, limit=limit, cursor=cursor))
    if as_json:
        emit_json(as_document(page))
    else:
        emit_table(("when", "action", "actor", "login", "events", "what", "why"), [_row(each) for each in page.items])
    if page.next_cursor is None:
        note(f"{len(page.items)} shown, no more" if page.items or cursor else "none")
        return
    options = {
        "--action": action,
        "--actor": actor,
        "--event": event,
        "--since": since,
        "--limit": limit,
        "--cursor": page.next_cursor,
    }
    note(f"{len(page.items)} shown; there may be more\n  try: {command_line('audit', options)}")


def _row(each: AuditEntry) -> tuple[str, ...]:
    who = (plain(each.actor), plain(each.session_role))
    what = [str(each.event_ids[0])] if each.affected == 1 and each.event_ids else []
    what += [f"{plain(name)} {plain(value)}" for name, value in each.detail.items() if value is not None]
    return when(each.recorded_at), each.action, *who, f"{each.affected:,}", ", ".join(what), plain(each.reason)
