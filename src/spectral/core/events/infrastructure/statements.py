"""The publish statements, written once and spelt for each driver's way of naming parameters.

One INSERT, one round trip. A single publish never raises on a known id: it inserts nothing, and the caller sees it
by the count, with its transaction still usable. A bulk publish that must not meet a known id raises in the server,
so that it is whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

from spectral.core.events.failure import ConfigurationError, DuplicateEventError, NotInTransactionError, PublishError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from spectral.core.events.delivery.publish import Insert

ParameterStyle: TypeAlias = Literal["pyformat", "binary", "named", "dollar"]
"""`%(id)s` for psycopg and Django, `%(id)b` to have psycopg send binary, `:id` for SQLAlchemy, `$1` for asyncpg."""

ROW_COLUMNS: Final = {
    "id": "uuid",
    "event_type": "text",
    "event_version": "integer",
    "occurred_at": "timestamptz",
    "source": "text",
    "target": "text",
    "workspace_id": "uuid",
    # As text first: a driver that was taught to encode JSON by itself would encode ours a second time.
    "payload": "text",
    "idempotency_key": "text",
    "trace_context": "text",
}
STAMP_COLUMNS: Final = {"channel": "text", "generation": "bigint", "content_class": "text", "delay": "interval"}
PARAMETERS: Final = (*ROW_COLUMNS, *STAMP_COLUMNS)
"""In the order of `$1`, `$2`, ... ."""

_TARGET: Final = (
    "insert into core.outbox (id, event_type, event_version, occurred_at, source, target, workspace_id, payload,"
    " idempotency_key, trace_context, channel, generation, content_class, next_attempt_at)"
)


def insert_one(style: ParameterStyle, *, ignore_known: bool = True) -> str:
    """Insert one row; without `ignore_known` a known id is an error of the server."""
    values = [f"cast({_placeholder(style, name)} as {kind})" for name, kind in (ROW_COLUMNS | STAMP_COLUMNS).items()]
    values[list(ROW_COLUMNS).index("payload")] += "::jsonb"
    values[-1] = f"clock_timestamp() + {values[-1]}"
    return f"{_TARGET} values ({', '.join(values)})" + (" on conflict do nothing" if ignore_known else "")


def insert_many(style: ParameterStyle, *, ignore_known: bool, shared: Collection[str] = ()) -> str:
    """Insert any number of rows, given as one array for each column; of `shared` columns, as the value of all rows."""
    varying = {name: kind for name, kind in ROW_COLUMNS.items() if name not in shared}
    arrays = ", ".join(f"cast({_placeholder(style, name)} as {kind}[])" for name, kind in varying.items())
    columns = {name: f"event.{name}" for name in varying} | {
        name: f"cast({_placeholder(style, name)} as {ROW_COLUMNS[name]})" for name in shared
    }
    columns["payload"] += "::jsonb"
    stamp = [f"cast({_placeholder(style, name)} as {kind})" for name, kind in STAMP_COLUMNS.items()]
    stamp[-1] = f"clock_timestamp() + {stamp[-1]}"
    selected = ", ".join([*(columns[name] for name in ROW_COLUMNS), *stamp])
    # Built from the constants above and placeholders; no value ever becomes part of the text.
    rows = f"select {selected} from unnest({arrays}) as event ({', '.join(varying)})"  # noqa: S608
    return f"{_TARGET} {rows}" + (" on conflict do nothing" if ignore_known else "")


def positional(parameters: Mapping[str, object]) -> list[object]:
    """The parameters in the order of `$1`, `$2`, ... ."""
    return [parameters[name] for name in PARAMETERS]


def not_in_transaction(found: str) -> NotInTransactionError:
    """The refusal to publish outside a transaction; `found` says what the connection is doing instead."""
    return NotInTransactionError(
        f"{found}: an event belongs to the transaction of the business change it reports. Publish inside one "
        "(`async with connection.transaction():` or your session's `begin()`), or allow it with "
        "PublishSettings(require_transaction=False), and commit unless the connection does"
    )


def explain(sqlstate: str | None, insert: Insert) -> PublishError | ConfigurationError | None:
    """The named error for what the server refused; none if it is not ours to explain.

    No unique constraint but the event's id can be hit by a publish, so that is what a violation means.
    """
    match sqlstate:
        case "23505":
            return DuplicateEventError([row.id for row in insert.rows])
        case "42P01" | "3F000" | "42703":
            return ConfigurationError("this database has no Spectral schema, or an old one; run: spectral migrate up")
        case "42501":
            return PublishError(
                "this role may not publish here: either it is no member of spectral_publisher "
                "(grant spectral_publisher to <role>), or the session acts for a workspace and the event names "
                "another workspace or none"
            )
        case "25P02":
            return not_in_transaction("the transaction has failed and must be rolled back first")
        case _:
            return None


def refuse(error: Exception, sqlstate: str | None, insert: Insert) -> NoReturn:
    """Raise the named error for what the server refused, or the driver's own where there is no better name.

    The named one does not carry the driver's along: its details may quote the row.
    """
    named = explain(sqlstate, insert)
    if named is None:
        raise error
    raise named from None


def _placeholder(style: ParameterStyle, name: str) -> str:
    match style:
        case "pyformat":
            return f"%({name})s"
        case "binary":
            return f"%({name})b"
        case "named":
            return f":{name}"
        case "dollar":
            return f"${PARAMETERS.index(name) + 1}"
