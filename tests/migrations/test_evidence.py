"""What the oracle reads of rows that are gone: the audit knows what became of them."""

from __future__ import annotations

import pytest

from spectral.core.events import new_event_id
from spectral.core.events.testing import EFFECTS_SCHEMA
from spectral.core.events.testing.evidence import collect
from spectral.core.events.testing.owed import child_id
from tests.migrations.retention import EVERYTHING, begin, sweep
from tests.migrations.schema import Connection, value
from tests.migrations.sql import fail, publish, row


@pytest.mark.parametrize("context", ["platform", "w" * 63])
def test_the_id_of_a_share_is_the_one_the_database_makes(session: Connection, context: str) -> None:
    parent = new_event_id()
    assert child_id(parent, context) == value(session, "select core.outbox_child_id(%s, %s)", [parent, context])


async def test_moves_and_discards_are_known_of_rows_that_were_swept(database: str, connection: Connection) -> None:
    connection.execute(EFFECTS_SCHEMA)
    discarded, by_hand, taken_back = fail(connection), fail(connection), fail(connection)
    moved = publish(connection)
    connection.execute("update core.deployments set status = 'draining' where generation = 1")
    connection.execute("select core.outbox_hand_over(1, 2)")
    connection.execute("select core.outbox_discard(%s)", [[discarded, taken_back]])
    connection.execute("update core.outbox set deleted_at = now() where id = %s", [by_hand])
    connection.execute("update core.outbox set deleted_at = null where id = %s", [taken_back])
    begin(connection)
    assert sweep(connection, EVERYTHING).deleted == 2

    evidence = await collect(database)
    assert evidence.discarded == {discarded, by_hand}
    assert {each.row_id for each in evidence.rows} == {moved, taken_back}
    assert [(each.row_id, each.generation) for each in evidence.moves] == [(moved, 2)]
    assert row(connection, moved)["generation"] == 2
