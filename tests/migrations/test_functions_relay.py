"""The relay's half of the database: what is taken to be sent, what a reference is worth, and who may switch."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.migrations.schema import Connection, logged_in, value
from tests.migrations.sql import CHANNELS, EVENT_TYPE, claim, fail, lose, publish, refusal, row, settle

OTHER_TYPE = "worlds.scan.started"
LONG = timedelta(minutes=5)
AT_ONCE = timedelta(microseconds=1)


@pytest.fixture
def switched(connection: Connection) -> Connection:
    """A database whose workers take from NATS."""
    assert value(connection, "select core.relay_switch('nats', 'ada', 'growth')") is True
    return connection


def answers(connection: Connection, statement: LiteralString, parameters: dict[str, object]) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement, parameters).fetchall()


def relay(connection: Connection, **given: object) -> list[dict[str, Any]]:
    """Take rows to be sent; the answer's first row says when and how far."""
    arguments = {"broker": "nats", "context": "platform", "limit": 10, "start": None, "lost": LONG}
    return answers(
        connection,
        "select * from core.outbox_relay(%(broker)s, 1, 'outbox_gen_1', %(context)s, %(limit)s, %(start)s::timestamptz,"
        " %(lost)s)",
        arguments | given,
    )


def relayed(connection: Connection, **given: object) -> list[UUID]:
    _, *rows = relay(connection, **given)
    return [each["id"] for each in rows]


def claim_these(
    connection: Connection, *references: tuple[UUID, int, int], **given: object
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The head of the answer, if there is one, and what was claimed."""
    arguments = {
        "worker": "worker-1",
        "context": "platform",
        "generations": [1],
        "channels": CHANNELS,
        "ids": [each[0] for each in references],
        "replays": [each[1] for each in references],
        "attempts": [each[2] for each in references],
        "handlers": ["platform.project"],
        "handler_types": None,
    }
    rows = answers(
        connection,
        "select * from core.outbox_claim_these(%(worker)s, %(context)s, %(generations)s::bigint[],"
        " %(channels)s::text[], %(ids)s::uuid[], %(replays)s::integer[], %(attempts)s::integer[],"
        " %(handlers)s::text[], %(handler_types)s::text[])",
        arguments | given,
    )
    return (rows[0], rows[1:]) if rows else (None, [])


def claimed(connection: Connection, *references: tuple[UUID, int, int], **given: object) -> list[UUID]:
    return [each["id"] for each in claim_these(connection, *references, **given)[1]]


def late(connection: Connection, after: timedelta, limit: int = 10, types: list[str] | None = None) -> list[UUID]:
    _, *rows = connection.execute(
        "select id from core.outbox_claim_late('w', 'platform', '{1}', %s, %s::text[], %s, %s, '{}')",
        [CHANNELS, types, limit, after],
    ).fetchall()
    return [event_id for (event_id,) in rows]


# taking rows to be sent


def test_what_is_due_is_taken_once_and_says_what_a_reference_needs(switched: Connection) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    event_id = publish(switched, p_trace_context=traceparent)
    head, taken = relay(switched)
    assert taken == {
        "id": event_id,
        "event_id": event_id,
        "event_type": EVENT_TYPE,
        "replays": 0,
        "attempts": 0,
        "trace_context": traceparent,
        "due_at": row(switched, event_id)["next_attempt_at"],
        "relayed_at": head["relayed_at"],
    }
    assert (head["id"], head["due_at"]) == (None, None)
    assert row(switched, event_id)["relayed_at"] == head["relayed_at"]
    assert relayed(switched) == []


def test_a_full_answer_says_where_the_next_may_start(switched: Connection) -> None:
    ids = [publish(switched) for _ in range(3)]
    head, *taken = relay(switched, limit=2)
    assert [each["id"] for each in taken] == ids[:2]
    assert head["due_at"] == taken[-1]["due_at"]
    assert relayed(switched, start=head["due_at"]) == ids[2:]


def test_what_was_sent_too_long_ago_is_sent_again(switched: Connection) -> None:
    event_id = publish(switched)
    assert relayed(switched) == [event_id]
    assert relayed(switched, lost=LONG) == []
    head, *taken = relay(switched, lost=AT_ONCE)
    assert [each["id"] for each in taken] == [event_id]
    assert head["attempts"] == 1


def test_what_was_sent_to_the_broker_before_this_one_is_sent_again(switched: Connection) -> None:
    event_id = publish(switched)
    assert relayed(switched) == [event_id]
    switched.execute("select core.relay_switch('redis', 'ada', 'another')")
    assert relayed(switched, broker="redis") == [event_id]
    assert relayed(switched, broker="redis") == []


def test_nothing_is_sent_before_it_is_due_nor_of_another_lane(switched: Connection) -> None:
    publish(switched, p_delay=timedelta(hours=1))
    publish(switched, target="worlds")
    publish(switched, target=None)
    assert relayed(switched) == []


@pytest.mark.parametrize("braked", ["platform", "*"])
def test_nothing_is_sent_while_the_brake_is_pulled(switched: Connection, braked: str) -> None:
    publish(switched)
    switched.execute("select core.brake_pull(%s, 'ada', 'r')", [braked])
    assert relay(switched) == []
    lanes = switched.execute("select due, next_due from core.outbox_relay_lanes()").fetchall()
    assert lanes == ([] if braked == "*" else [(False, None)])


@pytest.mark.parametrize("mode", ["postgres", "redis"])
def test_nothing_is_sent_to_a_broker_that_nobody_takes_from(switched: Connection, mode: str) -> None:
    publish(switched)
    switched.execute("select core.relay_switch(%s, 'ada', 'r')", [mode])
    assert relay(switched) == []


def test_two_relays_do_not_take_the_same_row(switched: Connection, database: str) -> None:
    first, second = publish(switched), publish(switched)
    with psycopg.connect(database) as other:
        assert relayed(other, limit=1) == [first]
        assert relayed(switched) == [second]


@pytest.mark.parametrize("way", ["released", "retried", "reaped", "replayed", "handed over"])
def test_a_row_that_is_pending_again_is_unsent(switched: Connection, way: str) -> None:
    if way == "replayed":
        event_id = publish(switched)
        relay(switched)
        settle(switched, claim(switched), "dead_letter", "ValueError: no")
        switched.execute("select core.outbox_replay(%s, 1)", [event_id])
    elif way == "reaped":
        event_id = publish(switched)
        relay(switched)
        lose(switched, event_id)
    elif way == "handed over":
        event_id = publish(switched)
        relay(switched)
        switched.execute("update core.outbox set generation = 2, channel = 'outbox_gen_2' where id = %s", [event_id])
    else:
        event_id = publish(switched)
        relay(switched)
        if way == "released":
            (held,) = claim(switched)
            switched.execute("select core.outbox_release(%s::uuid[], %s::uuid[])", [[held.id], [held.token]])
        else:
            settle(switched, claim(switched), "retry", "ValueError: no")
    assert row(switched, event_id)["status"] == "pending"
    assert row(switched, event_id)["relayed_at"] is None


def test_what_the_broker_refused_is_unsent_unless_somebody_else_has_sent_it(switched: Connection) -> None:
    first, second = publish(switched), publish(switched)
    stamp = relay(switched)[0]["relayed_at"]
    again = relay(switched, lost=AT_ONCE, limit=1)[0]["relayed_at"]
    assert again != stamp
    assert value(switched, "select core.outbox_unrelay(%s::uuid[], %s)", [[first, second], stamp]) == 1
    assert row(switched, first)["relayed_at"] == again
    assert row(switched, second)["relayed_at"] is None


def test_lanes_are_those_on_which_something_waits(switched: Connection) -> None:
    publish(switched)
    publish(switched, target="worlds", p_delay=timedelta(hours=1))
    publish(switched, target=None)
    lanes = switched.execute("select context, due, next_due from core.outbox_relay_lanes()").fetchall()
    assert [(context, due) for context, due, _ in lanes] == [("platform", True), ("worlds", False), (None, True)]
    assert timedelta(minutes=59) < lanes[1][2] <= timedelta(hours=1)


def test_lanes_are_told_in_turns(switched: Connection) -> None:
    """However many there are: a page of them, then those behind it, each exactly once."""
    for context in ("platform", "worlds", "billing", None):
        for generation in (1, 2):
            for _ in range(2):
                publish(switched, target=context, p_generation=generation)
        publish(switched, target=context, p_class="hot", p_delay=timedelta(hours=1))
    found = list[tuple[int, str, str | None]]()
    after: tuple[int, str, str | None] = (-1, "", None)
    while page := switched.execute(
        "select generation, channel, context from core.outbox_relay_lanes(3, %s, %s, %s)", after
    ).fetchall():
        assert len(page) <= 3
        found += page
        after = page[-1]
    contexts = ["billing", "platform", "worlds", None]
    channels = [(1, "outbox_gen_1"), (1, "outbox_gen_1_hot"), (2, "outbox_gen_2")]
    assert found == [(*channel, context) for channel in channels for context in contexts]


def test_lanes_of_a_retired_generation_are_not_looked_at(switched: Connection) -> None:
    publish(switched)
    switched.execute("update core.deployments set status = 'retired', retired_at = now() where generation = 1")
    assert switched.execute("select * from core.outbox_relay_lanes()").fetchall() == []


# what a reference is worth


def test_a_reference_that_tells_the_truth_claims_its_row(connection: Connection) -> None:
    event_id = publish(connection)
    head, (delivery,) = claim_these(connection, (event_id, 0, 0))
    assert head is not None
    assert (head["id"], head["handled"]) == (None, [])
    stored = row(connection, event_id)
    assert (stored["status"], stored["attempts"], stored["claimed_by"]) == ("in_flight", 1, "worker-1")
    assert stored["claim_token"] == head["claim_token"]
    assert (delivery["attempts"], delivery["suspect"], delivery["handled"]) == (1, False, [])


def test_a_reference_has_the_keys_looked_for_of_the_handlers_that_its_row_is_for(connection: Connection) -> None:
    event_id = publish(connection, p_idempotency_key="k")
    handlers = ["platform.project", "platform.other"]
    connection.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id)"
        " select asked.name, 'k', %s::uuid from unnest(%s::text[]) as asked (name)",
        [event_id, handlers],
    )
    types = [EVENT_TYPE, "worlds.scan.failed"]
    _, (delivery,) = claim_these(connection, (event_id, 0, 0), handlers=handlers, handler_types=types)
    assert delivery["handled"] == ["platform.project"]


def test_workers_that_do_not_say_which_handler_is_for_which_type_claim_by_reference_as_before(
    connection: Connection,
) -> None:
    event_id = publish(connection)
    (_, found) = connection.execute(
        "select id from core.outbox_claim_these('worker-1', 'platform', '{1}', %s::text[], array[%s::uuid], '{0}',"
        " '{0}', '{platform.project}')",
        [CHANNELS, event_id],
    ).fetchall()
    assert found == (event_id,)


def test_answers_have_the_columns_of_a_claim_from_the_database(connection: Connection) -> None:
    columns = [
        [column.name for column in cursor.description or ()]
        for cursor in (
            connection.execute(
                "select * from core.outbox_claim_from('w', 'x', '{1}', '{c}', null, 1, null, null, '{}')"
            ),
            connection.execute("select * from core.outbox_claim_these('w', 'x', '{1}', '{c}', '{}', '{}', '{}', '{}')"),
            connection.execute("select * from core.outbox_claim_late('w', 'x', '{1}', '{c}', null, 1, '1 s', '{}')"),
        )
    ]
    assert columns[0] == columns[1] == columns[2]


def test_a_message_that_comes_twice_claims_once(connection: Connection) -> None:
    event_id = publish(connection)
    assert claimed(connection, (event_id, 0, 0), (event_id, 0, 0)) == [event_id]
    assert claimed(connection, (event_id, 0, 0)) == []


def test_rows_are_claimed_and_answered_in_the_order_they_fell_due(connection: Connection) -> None:
    ids = [publish(connection) for _ in range(3)]
    assert claimed(connection, *((event_id, 0, 0) for event_id in reversed(ids))) == ids


def test_a_reference_of_an_earlier_attempt_is_void(connection: Connection) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection), "retry", "ValueError: no")
    assert claimed(connection, (event_id, 0, 0)) == []
    assert claimed(connection, (event_id, 0, 1)) == [event_id]


def test_a_reference_from_before_a_replay_is_void(connection: Connection) -> None:
    event_id = fail(connection)
    connection.execute("select core.outbox_replay(%s, 1)", [event_id])
    assert claimed(connection, (event_id, 0, 0)) == []
    assert claimed(connection, (event_id, 1, 0)) == [event_id]


@pytest.mark.parametrize(
    "given",
    [{"context": "worlds"}, {"generations": [2]}, {"channels": ["outbox_gen_1_hot"]}],
    ids=["context", "generation", "channel"],
)
def test_a_reference_gives_no_right_to_a_row_of_somebody_else(connection: Connection, given: dict[str, object]) -> None:
    event_id = publish(connection)
    assert claimed(connection, (event_id, 0, 0), **given) == []
    assert row(connection, event_id)["status"] == "pending"


def test_a_reference_to_a_row_that_is_not_due_or_not_there_is_void(connection: Connection) -> None:
    event_id = publish(connection, p_delay=timedelta(hours=1))
    assert claimed(connection, (event_id, 0, 0), (UUID(int=7), 0, 0)) == []


def test_a_row_that_somebody_holds_is_void_and_not_waited_for(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    with psycopg.connect(database) as other:
        assert claimed(other, (event_id, 0, 0)) == [event_id]
        assert claimed(connection, (event_id, 0, 0)) == []


def test_nothing_is_claimed_while_the_brake_is_pulled(connection: Connection) -> None:
    event_id = publish(connection)
    connection.execute("select core.brake_pull('platform', 'ada', 'r')")
    assert claim_these(connection, (event_id, 0, 0)) == (None, [])


def test_a_suspect_is_claimed_alone_if_it_comes_first(connection: Connection) -> None:
    suspect = publish(connection)
    lose(connection, suspect)
    other = publish(connection)
    head, (delivery,) = claim_these(connection, (suspect, 0, 1), (other, 0, 0))
    assert head is not None
    assert (delivery["id"], delivery["suspect"]) == (suspect, True)
    assert head["handled"] == [str(other)]


def test_a_suspect_that_comes_later_is_left(connection: Connection) -> None:
    suspect = publish(connection)
    lose(connection, suspect)
    other = publish(connection)
    head, (delivery,) = claim_these(connection, (other, 0, 0), (suspect, 0, 1), (UUID(int=7), 0, 0))
    assert head is not None
    assert (delivery["id"], head["handled"]) == (other, [str(suspect)])


def test_parallel_arrays_of_two_lengths_are_refused(connection: Connection) -> None:
    said = refusal(connection, "select core.outbox_claim_these('w', 'x', '{1}', '{c}', '{}', '{1}', '{}', '{}')")
    assert said.sqlstate == "22023"


# late


def test_what_has_been_due_for_long_is_claimed_without_a_message(connection: Connection) -> None:
    event_id = publish(connection)
    assert late(connection, timedelta(hours=1)) == []
    assert late(connection, timedelta(0), types=[OTHER_TYPE]) == []
    assert late(connection, timedelta(0), types=[EVENT_TYPE]) == [event_id]


def test_a_late_claim_takes_no_more_than_asked_for(connection: Connection) -> None:
    ids = [publish(connection) for _ in range(3)]
    assert late(connection, timedelta(0), limit=2) == ids[:2]


@pytest.mark.parametrize("heap", [50_500, 101_000])
def test_a_late_claim_sees_past_a_heap_of_what_it_does_not_ask_for(connection: Connection, heap: int) -> None:
    connection.execute(
        "insert into core.outbox (event_type, source, target, generation, channel, next_attempt_at)"
        " select 'worlds.heap.piled', 'worlds', 'platform', 1, 'outbox_gen_1',"
        " clock_timestamp() + n * interval '1 us' from generate_series(1, %s) as n",
        [heap],
    )
    connection.execute("analyze core.outbox")
    ids = [publish(connection) for _ in range(3)]
    (kind,) = connection.execute("select event_type from core.outbox where id = %s", [ids[0]]).fetchone() or ("",)
    assert late(connection, timedelta(0), limit=2, types=[kind]) == ids[:2]
    assert late(connection, timedelta(0), limit=2, types=[kind]) == ids[2:]
    assert len(late(connection, timedelta(0), limit=2, types=["worlds.heap.piled"])) == 2


def test_a_late_claim_serves_the_class_first_whose_first_row_has_waited_longest(connection: Connection) -> None:
    """Or one with more late rows than a claim takes would keep the others waiting for as long as it has them."""
    for oldest, channel in (("hot", None), (None, "hot")):
        first = publish(connection, p_class=oldest)
        for _ in range(3):
            publish(connection, p_class=channel)
        (claimed_first, *_), *_ = connection.execute(
            "select array_agg(id) filter (where id is not null) from core.outbox_claim_late('w', 'platform', '{1}',"
            " '{outbox_gen_1, outbox_gen_1_hot}', null, 1, '0', '{}')"
        ).fetchall()
        assert claimed_first == [first]
        connection.execute("delete from core.outbox where status = 'pending'")


# switching


def test_a_switch_is_audited_and_wakes_everybody(connection: Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as ear:
        ear.execute("listen outbox_gen_1")
        assert value(connection, "select core.relay_switch('redis', 'ada', 'growth')") is True
        assert [note.channel for note in ear.notifies(timeout=10, stop_after=1)] == ["outbox_gen_1"]
    assert value(connection, "select core.relay_switch('redis', 'ada', 'growth')") is False
    entries = connection.execute("select action, actor, reason, detail from core.audit").fetchall()
    assert entries == [("relay_switch", "ada", "growth", {"from": "postgres", "to": "redis"})]


@pytest.mark.parametrize(("mode", "reason"), [("kafka", "r"), (None, "r"), ("nats", " ")])
def test_a_switch_to_nowhere_or_without_a_reason_is_refused(
    connection: Connection, mode: str | None, reason: str
) -> None:
    said = refusal(connection, "select core.relay_switch(%s, 'ada', %s)", mode, reason)
    assert said.sqlstate == "22023"


def test_the_prefix_is_the_databases_own(connection: Connection) -> None:
    mode, prefix = connection.execute("select mode, prefix from core.relay_mode()").fetchone() or ("", "")
    assert mode == "postgres"
    assert len(prefix) == len("spectral_12345678")
    assert value(connection, "select prefix from core.relay_state()") == prefix


def test_relays_that_run_are_counted(connection: Connection, database: str) -> None:
    assert value(connection, "select relays from core.relay_state()") == 0
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as other:
        for each in (one, other):
            each.execute("select pg_advisory_lock_shared(core.relay_lock_key())")
        assert value(connection, "select relays from core.relay_state()") == 2


def test_relays_that_run_are_counted_by_broker(connection: Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as one, psycopg.connect(database, autocommit=True) as other:
        one.execute("select pg_advisory_lock_shared(core.relay_crew_key('nats'))")
        other.execute("select pg_advisory_lock_shared(core.relay_lock_key())")
        crew = connection.execute("select broker, relays from core.relay_crew() order by broker").fetchall()
        assert crew == [("nats", 1), ("redis", 0)]
        assert value(connection, "select relays from core.relay_state()") == 1


def test_only_operators_switch_and_only_workers_relay(database: str) -> None:
    switch: LiteralString = "select core.relay_switch('nats', 'ada', 'r')"
    take: LiteralString = "select core.outbox_relay('nats', 1, 'outbox_gen_1', 'platform', 1, null, '1 s')"
    with logged_in(database, "spectral_worker") as worker:
        assert refusal(worker, switch).sqlstate == "42501"
        assert refusal(worker, "update core.outbox set relayed_at = now()").sqlstate == "42501"
        assert worker.execute(take).fetchall() == []
        assert worker.execute("select * from core.insight_relay(now(), 10, 10)").fetchall() == []
    with logged_in(database, "spectral_operator") as operator:
        assert refusal(operator, take).sqlstate == "42501"
        assert operator.execute(switch).fetchall() == [(True,)]
    with logged_in(database, "spectral_publisher") as publisher:
        assert refusal(publisher, take).sqlstate == "42501"
        assert refusal(publisher, "insert into core.outbox (relayed_at) values (now())").sqlstate == "42501"


# reading


def test_insight_counts_what_was_sent_and_what_was_not(switched: Connection) -> None:
    for _ in range(3):
        publish(switched)
    assert len(relayed(switched, limit=1)) == 1
    (lane,) = answers(switched, "select * from core.insight_relay(%(now)s, 100, 10)", {"now": now(switched)})
    assert (lane["generation"], lane["channel"], lane["context"]) == (1, "outbox_gen_1", "platform")
    assert (lane["unsent"], lane["sent"]) == (2, 1)
    assert lane["oldest_unsent"] > timedelta(0)
    assert lane["oldest_sent"] > timedelta(0)


def now(connection: Connection) -> datetime:
    found: datetime = value(connection, "select clock_timestamp()")
    return found


# cost

EXPLAIN = (
    "load 'auto_explain'; set auto_explain.log_min_duration = 0; set auto_explain.log_nested_statements = on;"
    "set auto_explain.log_analyze = on; set auto_explain.log_buffers = on; set auto_explain.log_format = json;"
    "set auto_explain.log_timing = off; set auto_explain.log_level = notice; set client_min_messages = notice"
)


def indexes_and_buffers(plan: dict[str, Any]) -> tuple[set[str], int]:
    """The indexes that a plan reads, and the buffers it touches; a sequential scan counts as one."""
    found = {plan["Index Name"]} if "Index Name" in plan else set()
    if plan["Node Type"] == "Seq Scan" and plan["Relation Name"].startswith(("outbox", "event_handled")):
        found.add("seq scan")
    for child in plan.get("Plans", []):
        found |= indexes_and_buffers(child)[0]
    return found, plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)


def test_what_is_read_depends_neither_on_history_nor_on_other_lanes(switched: Connection) -> None:
    """20,000 rows that are over and 5,000 of another context lie around: each verb reads a few pages of its index."""
    switched.execute(
        "insert into core.outbox (event_type, source, target, channel, generation, idempotency_key, status,"
        " delivered_at, next_attempt_at) select 'worlds.scan.completed', 'worlds',"
        " case when n % 5 = 0 then 'worlds' else 'platform' end, 'outbox_gen_1', 1, 'k' || n,"
        " case when n % 5 = 0 then 'pending' else 'delivered' end, case when n % 5 > 0 then now() end,"
        " now() - interval '1 day' from generate_series(1, 25000) as n"
    )
    switched.execute("analyze core.outbox")
    ids = [publish(switched) for _ in range(20)]
    plans: list[dict[str, Any]] = []
    switched.add_notice_handler(lambda said: plans.append(json.loads((said.message_primary or "").split("\n", 1)[1])))
    switched.execute(EXPLAIN)
    plans.clear()
    assert len(switched.execute("select from core.outbox_relay_lanes()").fetchall()) == 2
    taken = relayed(switched, limit=20, start=now(switched) - timedelta(hours=1))
    switched.execute("select core.outbox_unrelay(%s::uuid[], now())", [ids])
    got = claimed(switched, *((event_id, 0, 0) for event_id in ids[:10]))
    got += late(switched, timedelta(0), limit=10)
    switched.execute("set auto_explain.log_min_duration = -1")
    assert taken == got == ids
    read = [indexes_and_buffers(each["Plan"]) for each in plans]
    assert {"outbox_pkey", "outbox_pending_idx"} <= set().union(*(indexes for indexes, _ in read))
    assert not any("seq scan" in indexes for indexes, _ in read)
    assert max(buffers for _, buffers in read) < 500  # the pending index alone has more pages than that would read
