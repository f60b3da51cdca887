"""Enqueue: the task's row and the outbox row that dispatches it, in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from psycopg.pq import TransactionStatus
from psycopg.types.json import Jsonb

from spectral.core.events import NotInTransactionError
from spectral.core.events.infrastructure.observability.traces import current_traceparent
from spectral.platform.agent_tasks.values import Enqueued

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from spectral.core.events.protocols import Rows
    from spectral.platform.agent_tasks.values import NewTask

_ENQUEUE: Final = """
select id, conversation_id, event_id
from platform.agent_task_enqueue(
    p_kind => %(kind)s, p_input => %(input)s, p_requested_by => %(requested_by)s,
    p_conversation_id => %(conversation_id)s, p_workspace_id => %(workspace_id)s, p_on_loss => %(on_loss)s,
    p_max_attempts => %(max_attempts)s, p_keep_for => %(keep_for)s, p_generation => %(generation)s,
    p_class => %(processing_class)s, p_delay => %(delay)s, p_trace_context => %(trace_context)s
)
"""


class Executes(Protocol):
    """A `Transaction` of a handler, or an async connection of psycopg."""

    def execute(self, query: Any, params: Any = ..., /) -> Awaitable[Rows]:  # noqa: ANN401  two drivers' views of SQL
        """Run one statement."""
        ...


async def enqueue(on: Executes, task: NewTask, *, generation: int | None = None) -> Enqueued:
    """Have the task run once this transaction commits; never, if it rolls back.

    Args:
        on: the business transaction.
        task: what is to be done.
        generation: the deployment whose workers run it; the live one unless told. A worker names its own.

    Raises:
        NotInTransactionError: the connection is in autocommit mode and in no transaction.
        psycopg.Error: the database refuses it, for instance because there is no such conversation.
    """
    info = getattr(on, "info", None)
    if info is not None and getattr(on, "autocommit", False) and info.transaction_status is TransactionStatus.IDLE:
        raise NotInTransactionError(
            "this connection is in no transaction: enqueue where the business changes, "
            "inside `async with connection.transaction():`"
        )
    parameters = {
        "kind": task.kind,
        "input": Jsonb(dict(task.input)),
        "requested_by": task.requested_by,
        "conversation_id": task.conversation_id,
        "workspace_id": task.workspace_id,
        "on_loss": task.on_loss.value,
        "max_attempts": task.max_attempts,
        "keep_for": task.keep_for,
        "generation": generation,
        "processing_class": task.processing_class,
        "delay": task.delay,
        "trace_context": current_traceparent(),
    }
    row = await (await on.execute(_ENQUEUE, parameters)).fetchone()
    assert row is not None  # noqa: S101  the function answers one row, or raises
    return Enqueued(id=row[0], conversation_id=row[1], event_id=row[2])
