"""Options of the commands that look at events, the names they have in JSON, and text that is safe to print."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.operations.dead_letters import DeadLetterFilter


def moment(text: str | datetime) -> datetime:
    """A time as ISO 8601 has it; without a zone it is UTC."""
    try:
        found = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write it as 2026-01-31T14:00:00") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


EventId = Annotated[UUID, typer.Argument(metavar="ID", help="The event's id.")]
Type = Annotated[str | None, typer.Option("--type", metavar="NAME", help="Of this event type.", show_default=False)]
Context = Annotated[str | None, typer.Option("--context", metavar="NAME", help="For this context.", show_default=False)]
Workspace = Annotated[
    UUID | None, typer.Option("--workspace", metavar="ID", help="Of this workspace.", show_default=False)
]
Handler = Annotated[
    str | None, typer.Option("--handler", metavar="NAME", help="Failed in this handler.", show_default=False)
]
Error = Annotated[
    str | None, typer.Option("--error", metavar="CLASS", help="Failed with this error.", show_default=False)
]
OfGeneration = Annotated[
    int | None, typer.Option("--of-generation", metavar="N", min=0, help="Of this generation.", show_default=False)
]
FailedBefore = Annotated[
    datetime | None,
    typer.Option("--failed-before", metavar="TIME", parser=moment, help="In the DLQ before this.", show_default=False),
]
FailedAfter = Annotated[
    datetime | None,
    typer.Option("--failed-after", metavar="TIME", parser=moment, help="First failed after this.", show_default=False),
]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="TEXT", help="Go on where a page ended.", show_default=False)
]


_FILTER = {
    "--type": "event_type",
    "--context": "context",
    "--handler": "handler_name",
    "--error": "error_class",
    "--workspace": "workspace_id",
    "--of-generation": "generation",
    "--failed-before": "failed_before",
    "--failed-after": "failed_after",
}


def letters_wanted(options: Mapping[str, Any]) -> DeadLetterFilter:
    """The filter that these options make; those that are none of it are left out."""
    from spectral.core.operations.dead_letters import DeadLetterFilter  # noqa: PLC0415  psycopg

    return DeadLetterFilter(**{field: options.get(name) for name, field in _FILTER.items()})


def command_line(command: str, options: Mapping[str, object]) -> str:
    """The command with these options, as one types it; what is none or false is left out."""
    words = ["spectral", *command.split()]
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            written = value.isoformat() if isinstance(value, datetime) else str(value)
            words += [name, shlex.quote(written)]
    return " ".join(words)


def when(at: datetime | None) -> str:
    """A time to the second, in UTC."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%SZ}"


def exactly_when(at: datetime | None) -> str:
    """The same to the millisecond, for steps that follow each other within a second."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}Z"


def plain(text: object) -> str:
    """What a row holds, without anything that a terminal would take for an order."""
    shown = "" if text is None else str(text)
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


def plain_lines(text: str) -> str:
    """The same for a text of ours that has several lines."""
    return "\n".join(map(plain, text.split("\n")))
