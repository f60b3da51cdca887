"""Several statements in one message: one round trip and, outside a transaction block, one transaction.

A pipeline would do the same with parameters, but costs the driver several times as much as these statements cost the
server. The values are quoted by the driver, never by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import sql
from psycopg.rows import tuple_row

if TYPE_CHECKING:
    import psycopg

Rows: TypeAlias = list[tuple[Any, ...]]


async def run_script(connection: psycopg.AsyncConnection[Any], *statements: sql.Composable) -> list[Rows]:
    """Run them; answer the rows of each. A cursor of our own: a handler may have changed what the connection makes."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(sql.SQL("; ").join(statements), prepare=False)
    answers: list[Rows] = []
    while True:
        answers.append(await cursor.fetchall() if cursor.description is not None else [])
        if not cursor.nextset():
            return answers
