"""Hand over: what waits in one generation becomes another's, whole, once, and somebody is woken for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, outbox_row, value
from tests.migrations.sql import EVENT_TYPE, audit, claim, entry, lose, publish, reap, refusal, row, settle

DRAIN = "update core.deployments set status = 'draining' where generation = 1"
HAND_OVER = "select core.outbox_hand_over(1, 2, %s, %s, 'ada', 'r')"


@pytest.fixture
def session(session: Connection) -> Connection:
    session.execute(DRAIN)
    return session


@pytest.fixture
def connection(connection: Connection) -> Connection:
    connection.execute(DRAIN)
    return connection


def test_the_live_one_keeps_its_events(session: Connection) -> None:
    event_id = publish(session)
    session.execute("update core.deployments set status = 'live' where generation = 1")
    said = refusal(session, HAND_OVER, None, 10)
    assert (said.sqlstate, said.message_primary) == ("55000", "generation 1 is live")
    assert row(session, event_id)["generation"] == 1


def test_a_generation_that_becomes_live_between_two_batches_keeps_the_rest(session: Connection) -> None:
    for _ in range(3):
        publish(session)
    assert hand_over(session, limit=2) == 2
    session.execute("select core.deployment_promote(1)")
    assert refusal(session, HAND_OVER, None, 2).message_hint is not None
    assert value(session, "select count(*) from core.outbox where generation = 1") == 1


def hand_over(connection: Connection, context: str | None = None, limit: int = 1000) -> int:
    return int(value(connection, HAND_OVER, [context, limit]))


def claim_as(connection: Connection, generation: int, context: str = "platform") -> list[UUID]:
    rows = connection.execute(
        "select id from core.outbox_claim('w', %s, %s, %s, null, 100)",
        [context, [generation], [f"outbox_gen_{generation}", f"outbox_gen_{generation}_hot"]],
    )
    return [event_id for (event_id,) in rows]


def generations(connection: Connection) -> dict[UUID, tuple[int, str]]:
    found = connection.execute("select id, generation, channel from core.outbox").fetchall()
    return {event_id: (generation, channel) for event_id, generation, channel in found}


def test_what_waits_becomes_the_others_with_its_class_and_an_entry_in_the_audit(session: Connection) -> None:
    usual, hot = publish(session), publish(session, p_class="hot")
    plain = outbox_row(session, channel="outbox_default")
    delayed = publish(session, p_delay=timedelta(hours=1))
    to_all = publish(session, target=None)
    assert hand_over(session) == 5
    assert generations(session) == {
        usual: (2, "outbox_gen_2"),
        hot: (2, "outbox_gen_2_hot"),
        plain: (2, "outbox_gen_2"),
        delayed: (2, "outbox_gen_2"),
        to_all: (2, "outbox_gen_2"),
    }
    assert row(session, delayed)["next_attempt_at"] > value(session, "select now() + interval '59 minutes'")
    moved = sorted([usual, hot, plain, delayed, to_all])
    assert audit(session) == [entry("hand_over", {"generation": 2, "before": 1}, 5, event_ids=moved)]


def test_the_new_generation_runs_it_and_the_old_one_does_not(session: Connection) -> None:
    moved = publish(session)
    hand_over(session)
    assert claim_as(session, 1) == []
    assert claim_as(session, 2) == [moved]


def test_a_broadcast_is_split_among_those_who_subscribe_where_it_went(session: Connection) -> None:
    for generation, context in ((1, "platform"), (2, "worlds")):
        session.execute(
            "select core.outbox_subscribe(%s, %s, %s, %s, '{6}')",
            [generation, [context], [EVENT_TYPE], [f"{context}.handler"]],
        )
    publish(session, target=None)
    hand_over(session)
    split = "select context from core.outbox_fan_out(%s, '{outbox_gen_1,outbox_gen_2}')"
    assert session.execute(split, [[1]]).fetchall() == []
    assert session.execute(split, [[2]]).fetchall() == [("worlds",)]


def test_attempts_the_key_and_the_error_stay(session: Connection) -> None:
    event_id = publish(session, p_idempotency_key="order-7")
    settle(session, claim(session), "retry", "OSError: x")
    before = row(session, event_id)
    hand_over(session)
    after = row(session, event_id)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"generation", "channel"}
    assert (after["attempts"], after["idempotency_key"], after["last_error"]) == (1, "order-7", "OSError: x")


def test_a_suspect_stays_one(session: Connection) -> None:
    suspect = publish(session)
    lose(session, suspect)
    publish(session)
    hand_over(session)
    assert claim_as(session, 2) == [suspect]  # alone


@pytest.mark.parametrize("status", ["in_flight", "delivered", "failed"])
def test_only_what_waits_is_handed_over(session: Connection, status: str) -> None:
    event_id = outbox_row(session, status)
    assert hand_over(session) == 0
    assert generations(session) == {event_id: (1, "outbox_gen_1")}
    assert audit(session) == []


def test_what_was_in_flight_and_comes_back_is_handed_over_the_next_time(session: Connection) -> None:
    event_id = publish(session)
    claims = claim(session)
    assert hand_over(session) == 0
    settle(session, claims, "retry", "OSError: x")
    assert hand_over(session) == 1
    assert generations(session)[event_id] == (2, "outbox_gen_2")


def test_a_context_is_handed_over_alone(session: Connection) -> None:
    ours = {publish(session), publish(session, p_class="hot"), publish(session, p_class="cold")}
    for target in ("core", "worlds", None):
        publish(session, target=target)
        publish(session, target=target, p_class="hot")
    assert hand_over(session, "platform") == 3
    moved = {event_id for event_id, (generation, _) in generations(session).items() if generation == 2}
    assert moved == ours
    assert audit(session)[0]["detail"] == {"generation": 2, "before": 1, "context": "platform"}
    assert hand_over(session, "nobody") == 0


def test_so_many_at_a_time_across_channels_until_none_is_left(session: Connection) -> None:
    for number in range(7):
        publish(session, p_class=("hot", "cold", None)[number % 3])
    assert [hand_over(session, None, 3) for _ in range(4)] == [3, 3, 1, 0]
    assert {generation for generation, _ in generations(session).values()} == {2}
    assert [each["affected"] for each in audit(session)] == [3, 3, 1]


def test_each_channel_is_woken_once(connection: Connection) -> None:
    first, second = publish(connection), publish(connection)
    hot = publish(connection, p_class="hot")
    connection.execute(b"listen outbox_gen_2; listen outbox_gen_2_hot")
    hand_over(connection)
    connection.execute("notify outbox_gen_2, 'the end'")
    heard = [(each.channel, each.payload) for each in connection.notifies(timeout=10, stop_after=3)]
    assert sorted(heard) == sorted(
        [("outbox_gen_2", str(min(first, second))), ("outbox_gen_2_hot", str(hot)), ("outbox_gen_2", "the end")]
    )


@pytest.mark.parametrize("source", [0, 99])
def test_rows_are_rescued_from_a_generation_that_is_retired_or_was_never_there(
    session: Connection, source: int
) -> None:
    event_id = publish(session, p_generation=source)
    assert value(session, "select core.outbox_hand_over(%s, 1)", [source]) == 1
    assert generations(session) == {event_id: (1, "outbox_gen_1")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("1, 0", "generation 0 is retired"),
        ("1, 99", "generation 99 is unknown"),
        ("1, null", "generation null is unknown"),
        ("1, 1", "from one generation to another"),
        ("null, 1", "from one generation to another"),
        ("1, 2, null, 0", "at least one row"),
        ("1, 2, null, null", "at least one row"),
    ],
)
def test_it_refuses_to_go_nowhere(session: Connection, arguments: LiteralString, message: str) -> None:
    event_id = publish(session)
    said = refusal(session, "select core.outbox_hand_over(" + arguments + ")")
    assert said.sqlstate == "22023"
    assert message in (said.message_primary or "")
    assert generations(session) == {event_id: (1, "outbox_gen_1")}


def test_who_did_it_is_the_login_unless_a_name_is_given(connection: Connection, database: str) -> None:
    publish(connection)
    with logged_in(database, "spectral_operator") as operator:
        operator.execute("select core.outbox_hand_over(1, 2, p_by => '')")
        user = operator.info.user
    (found,) = audit(connection)
    assert (found["actor"], found["session_role"], found["reason"]) == (user, user, None)


# at the same time as others


def test_a_row_that_is_being_claimed_is_left_to_its_worker(connection: Connection, database: str) -> None:
    claimed = publish(connection)
    with psycopg.connect(database) as worker:
        (held,) = claim(worker)
        other = publish(connection)
        connection.execute("set lock_timeout = '1ms'")
        assert hand_over(connection) == 1
        worker.commit()
    assert generations(connection) == {claimed: (1, "outbox_gen_1"), other: (2, "outbox_gen_2")}
    assert settle(connection, [held], "delivered") == [(claimed, "delivered")]


def test_a_row_that_is_being_handed_over_is_not_claimed(connection: Connection, database: str) -> None:
    moved = publish(connection)
    with psycopg.connect(database) as operator:
        hand_over(operator)
        connection.execute("set lock_timeout = '1ms'")
        assert claim(connection) == []
        operator.commit()
    assert claim_as(connection, 1) == []
    assert claim_as(connection, 2) == [moved]


def test_a_claim_that_the_reaper_takes_back_waits_where_it_was(session: Connection) -> None:
    event_id = publish(session)
    claim(session, worker="doomed")
    assert hand_over(session) == 0
    assert [found for found, *_ in reap(session)] == [event_id]
    assert hand_over(session) == 1


def test_two_operators_at_once_move_every_row_once(connection: Connection, database: str) -> None:
    value(connection, "select core.deployment_allocate(3)")
    published = [publish(connection) for _ in range(4)]
    moved: list[dict[str, Any]]
    with psycopg.connect(database) as ada, psycopg.connect(database) as bob:
        assert hand_over(ada, None, 3) == 3
        bob.execute("set lock_timeout = '1ms'")
        assert value(bob, "select core.outbox_hand_over(1, 3, null, 3, 'bob')") == 1
        ada.commit()
        bob.commit()
    moved = audit(connection)[1:]
    assert [(each["actor"], each["affected"]) for each in moved] == [("ada", 3), ("bob", 1)]
    assert sorted(event_id for each in moved for event_id in each["event_ids"]) == sorted(published)
    found = sorted(generation for generation, _ in generations(connection).values())
    assert found == [2, 2, 2, 3]


def test_a_hand_over_that_is_rolled_back_has_not_happened(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    with psycopg.connect(database) as operator:
        hand_over(operator)
        operator.rollback()
    assert generations(connection) == {event_id: (1, "outbox_gen_1")}
    assert audit(connection) == []
