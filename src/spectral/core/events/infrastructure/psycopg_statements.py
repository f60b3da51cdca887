"""What both psycopg publishers share: the statements, how a connection shows its transaction, what a count means."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from psycopg.pq import PipelineStatus, TransactionStatus

from spectral.core.events.infrastructure.statements import insert_many, insert_one, not_in_transaction

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from spectral.core.events.delivery.publish import Insert

_ONE: Final = insert_one("pyformat").encode()
_ONE_OR_FAIL: Final = insert_one("pyformat", ignore_known=False).encode()
_MAY_BE_SHARED: Final = ("event_type", "event_version", "source", "target", "workspace_id", "trace_context")
"""What the events of one bulk publish often have in common."""


def require_transaction(connection: Connection[Any] | AsyncConnection[Any], *, required: bool) -> None:
    """Refuse a connection that is idle, if that matters, or whose transaction has failed."""
    status = connection.info.transaction_status
    if status is TransactionStatus.INERROR:
        raise not_in_transaction("the transaction has failed and must be rolled back first")
    if required and status is TransactionStatus.IDLE:
        raise not_in_transaction("this connection is in no transaction")


def statement_for_one(connection: Connection[Any] | AsyncConnection[Any], insert: Insert) -> bytes:
    """In a pipeline the answer comes later and nobody looks at the count: there a known id has to be an error."""
    pipelined = connection.info.pipeline_status is not PipelineStatus.OFF
    return _ONE_OR_FAIL if pipelined and not insert.ignore_known else _ONE


def bulk(insert: Insert) -> tuple[bytes, dict[str, Any]]:
    """The statement for many rows, whole or not at all unless known ids are to be ignored, and its parameters.

    psycopg writes an array value by value, in Python: what all rows have in common is sent once.
    """
    parameters = insert.columns()
    shared = {name: parameters[name][0] for name in _MAY_BE_SHARED if _is_one_value(parameters[name])}
    return _many(ignore_known=insert.ignore_known, shared=tuple(shared)), parameters | shared


@cache
def _many(*, ignore_known: bool, shared: tuple[str, ...]) -> bytes:
    # Arrays as text have to be quoted here and parsed there; in binary a bulk publish takes a good third less time.
    return insert_many("binary", ignore_known=ignore_known, shared=shared).encode()


def _is_one_value(column: list[Any]) -> bool:
    return column.count(column[0]) == len(column)


def counted(rowcount: int, insert: Insert) -> int:
    """The rows inserted; in a pipeline the count is not known yet, and the rows sent are what can be said."""
    return len(insert.rows) if rowcount < 0 else rowcount
