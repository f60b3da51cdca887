"""Deliver locks rows in the order of their ids, wherever they lie in the table: no two workers wait for each other."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from tests.migrations.schema import Connection, value
from tests.migrations.sql import held_up, reap
from tests.migrations.test_functions_claim_from import claim
from tests.migrations.test_functions_deliver import DELIVER
from tests.migrations.test_functions_deliver_alike import DELIVER_ALIKE

SPREAD = """\
insert into core.outbox (
    id, event_type, source, target, channel, generation, idempotency_key, status, attempts, delivered_at
)
select md5(n::text)::uuid, 'worlds.scan.completed', 'worlds', 'platform', 'outbox_gen_1', 1, n::text,
       case when n % 200 = 0 then 'pending' else 'delivered' end,
       case when n % 200 = 0 then 0 else 1 end,
       case when n % 200 = 0 then null else now() end
from generate_series(1, 8000) as n"""

FREE = "select id from core.outbox where id = any (%s) for update skip locked"


@pytest.fixture
def spread(connection: Connection) -> list[tuple[UUID, UUID]]:
    """Forty claims, in the order of their ids, which is not the order of the pages they lie on."""
    connection.execute("set session_replication_role = replica")
    connection.execute(SPREAD)
    connection.execute("set session_replication_role = origin")
    connection.execute("analyze core.outbox")
    held = claim(connection, limit=100).held
    assert len(held) == 40
    return sorted((each.id, each.token) for each in held)


@pytest.mark.parametrize("alike", [False, True], ids=["deliver", "deliver_alike"])
@pytest.mark.parametrize("at", [0, 20, 39])
def test_whoever_waits_for_a_row_holds_those_before_it_and_none_behind(
    connection: Connection, database: str, spread: list[tuple[UUID, UUID]], at: int, *, alike: bool
) -> None:
    ids, tokens = [event_id for event_id, _ in spread], [token for _, token in spread]
    deliver: tuple[LiteralString, list[object]] = (DELIVER, [ids, tokens, ids, ["platform.mail"] * 40])
    if alike:
        deliver = (DELIVER_ALIKE, [tokens[0], ids[::-1], ["platform.mail"]])  # in whatever order they are given
    with psycopg.connect(database) as one, psycopg.connect(database, autocommit=True) as two:
        one.execute("select from core.outbox where id = %s for update", [ids[at]])
        with held_up(connection, one, two, *deliver) as answer:
            with connection.transaction(force_rollback=True):
                free = sorted(event_id for (event_id,) in connection.execute(FREE, [ids]))
            one.rollback()
            assert len(answer.result()) == (0 if alike else 40)
    assert free == ids[at + 1 :]
    assert value(connection, "select count(*) from core.event_handled") == 40
    assert reap(connection) == []
