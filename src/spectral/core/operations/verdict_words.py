"""Numbers as people say them, and the commands that findings and verdicts name."""

from __future__ import annotations

import re
from shlex import quote
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from spectral.core.operations.insights_values import Amount, Holder

DOCTOR: Final = "spectral doctor"
DEAD_LETTERS: Final = "spectral dlq groups"
SWEEP: Final = "spectral retention run"
PARTITION: Final = "spectral partitions enable"
MAINTAIN: Final = "spectral partitions maintain"
RELAY_STATUS: Final = "spectral relay status"

GIVEN_UP: Final = "5 min"
"""How long a due row waits for a handler to appear, unless a worker is told otherwise (`unhandled_after`)."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def spoken(span: timedelta | None) -> str:
    """A span as one number: 3 s, 4 min, 2 h, 5 d."""
    if span is None:
        return "an unknown time"
    seconds = max(span.total_seconds(), 0.0)
    for size, unit in _UNITS:
        if seconds >= 2 * size or (unit == "min" and seconds >= size):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"


def several(amount: Amount | int, noun: str, nouns: str | None = None) -> str:
    """`1 event`, `2 events`, `10,000+ events`."""
    text = f"{amount:,}" if isinstance(amount, int) else str(amount)
    return f"{text} {noun if text == '1' else nouns or noun + 's'}"


def listed(names: Iterable[object], most: int = 3) -> str:
    """`a, b and 4 more`."""
    texts = [str(each) for each in names]
    shown, more = texts[:most], len(texts) - most
    return f"{', '.join(shown)} and {more} more" if more > 0 else ", ".join(shown)


def start_worker(generation: int | None, *, processing_class: str | None = None) -> str:
    """Run a worker for these rows; which consumer, only its release knows."""
    options = f" --class {processing_class}" if processing_class else ""
    return f"SPECTRAL_GENERATION={1 if generation is None else generation} spectral worker <module>:<consumer>{options}"


def hand_over(source: int, target: int | None) -> str:
    """Move a generation's waiting rows to another one; where none is live, see first which there are."""
    return "spectral generations list" if target is None else f"spectral generations hand-over {source} {target}"


def list_pending(context: str, event_type: str) -> str:
    """The rows of one type that wait for a context."""
    return f"spectral events list --status pending --context {context} --type {event_type}"


def start_relay(kind: str) -> str:
    """Run a relay to this broker; where it is, only its people know."""
    return f"SPECTRAL_RELAY={kind} SPECTRAL_BROKER_URL=<url> spectral relay run"


def retire(generation: int) -> str:
    """Close a generation for good."""
    return f"spectral generations retire {generation}"


def release(context: str) -> str:
    """Let a brake go."""
    return f"spectral brake off {'--all' if context == '*' else f'--context {context}'}"


def psql(*statements: str) -> str:
    """Have the server do this."""
    return " ".join(['psql "$SPECTRAL_DATABASE_URL"', *(f"-c {_for_shell(statement)}" for statement in statements)])


def reset_option(table: str, option: str, *, partitioned: bool) -> str:
    """Have a table go by the server's setting again; its partitions, if it has any."""
    if not partitioned:
        return f"alter table {table} reset ({option})"
    leaves = f"select inhrelid from pg_inherits where inhparent = '{table}'::regclass"  # noqa: S608  for a person
    each = f"execute format('alter table %s reset ({option})', leaf)"
    return f"do $$ declare leaf regclass; begin for leaf in {leaves} loop {each}; end loop; end $$"


def set_server(setting: str) -> str:
    """Change a setting of the server that takes no restart."""
    return psql(f"alter system set {setting}", "select pg_reload_conf()")


def grant(role: str, login: str) -> str:
    """Make this login a member."""
    return psql(f"grant {role} to {identifier(login)}")


def identifier(name: str) -> str:
    """A name as SQL writes it: quoted where it has to be."""
    return name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"{}"'.format(name.replace('"', '""'))


def end_backend(pid: int | None) -> str:
    """End one backend; its transaction is rolled back."""
    return psql(f"select pg_terminate_backend({pid})")


def end_holder(holder: Holder) -> str:
    """Make whoever holds the horizon let go."""
    match holder.kind:
        case "slot":
            return psql(f"select pg_drop_replication_slot('{_quoted(holder.name)}')")
        case "prepared":
            return psql(f"rollback prepared '{_quoted(holder.name)}'")
        case _:
            return end_backend(holder.pid)


def name_holder(holder: Holder) -> str:
    """Who holds the horizon, by every name there is."""
    match holder.kind:
        case "slot":
            return f"Replication slot {holder.name!r} ({holder.state})"
        case "prepared":
            return f"Prepared transaction {holder.name!r} of {holder.user}"
        case _:
            kind = "Standby" if holder.kind == "standby" else "Backend"
            state = holder.state or "its state is hidden; grant pg_monitor shows it"
            return f"{kind} {holder.pid}, {holder.name!r} of {holder.user or 'an unknown role'} ({state})"


def _for_shell(statement: str) -> str:
    """In double quotes where SQL has single ones, if the shell then leaves it alone: that is easier to read."""
    readable = "'" in statement and re.search(r'["$`\\!]', statement) is None
    return f'"{statement}"' if readable else quote(statement)


def _quoted(name: str) -> str:
    return name.replace("'", "''")
