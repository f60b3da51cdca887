"""The life of a generation: allocate, promote (also back), drain, retire; what each refuses, and who is told."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, outbox_row, value
from tests.migrations.sql import EVENT_TYPE, audit, entry, fail, held_up, publish, refusal

SUBSCRIBE = "select core.outbox_subscribe(%s, '{platform}', %s, '{platform.project_scan}', '{6}')"


def deployments(connection: Connection) -> dict[int, str]:
    return dict(connection.execute("select generation, status from core.deployments").fetchall())


def subscriptions(connection: Connection, generation: int) -> set[tuple[str, str, int]]:
    rows = connection.execute(
        "select context, handler_name, max_attempts from core.subscriptions where generation = %s", [generation]
    )
    return set(rows.fetchall())


# allocate


def allocate(connection: Connection, generation: int | None = None, **given: object) -> int:
    handlers = given.pop("handlers", [])
    assert isinstance(handlers, list)
    return int(
        value(
            connection,
            "select core.deployment_allocate(%s, %s, %s::text[], %s::text[], %s::text[], %s::integer[], 'ada', 'r')",
            [
                generation,
                given.get("label"),
                [handler.split(".")[0] for handler in handlers],
                [EVENT_TYPE] * len(handlers),
                handlers,
                [given.get("max_attempts", 6)] * len(handlers),
            ],
        )
    )


def test_without_a_number_the_next_one_is_allocated(session: Connection) -> None:
    assert allocate(session, label="v3") == 3
    assert allocate(session) == 4
    assert deployments(session) == {0: "retired", 1: "live", 2: "allocated", 3: "allocated", 4: "allocated"}
    assert audit(session) == [
        entry("allocate", {"generation": 3, "label": "v3"}, 0),
        entry("allocate", {"generation": 4}, 0),
    ]


def test_the_first_of_a_database_is_one_and_live_only_when_it_is_promoted(connection: Connection) -> None:
    connection.execute("delete from core.deployments")
    assert allocate(connection) == 1
    assert deployments(connection) == {1: "allocated"}


def test_numbers_may_be_left_out_but_not_gone_back_to(session: Connection) -> None:
    assert allocate(session, 20261115) == 20261115
    assert allocate(session) == 20261116
    said = refusal(session, "select core.deployment_allocate(7)")
    assert (said.sqlstate, said.message_primary) == ("22023", "generation 7 is below 20261116, the highest so far")
    assert "leave out the number" in (said.message_hint or "")


@pytest.mark.parametrize(("generation", "status"), [(0, "retired"), (1, "live"), (2, "draining")])
def test_what_is_beyond_allocated_is_not_allocated_again(session: Connection, generation: int, status: str) -> None:
    session.execute("select core.deployment_drain(2)")
    said = refusal(session, "select core.deployment_allocate(%s)", generation)
    assert (said.sqlstate, said.message_primary) == ("55000", f"generation {generation} is {status} already")
    assert "leave out the number" in (said.message_hint or "")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select core.deployment_allocate(-1)", "a generation is a number from 0, not -1"),
        ("select core.deployment_allocate(p_contexts => '{platform}')", "parallel arrays"),
        ("select core.deployment_allocate(p_event_types => '{worlds.scan.completed}')", "parallel arrays"),
        ("select core.deployment_allocate(p_contexts => null)", "parallel arrays"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(session: Connection, statement: LiteralString, message: str) -> None:
    said = refusal(session, statement)
    assert said.sqlstate == "22023"
    assert message in (said.message_primary or "")
    assert 3 not in deployments(session)


def test_it_records_who_handles_what_before_any_worker_runs(session: Connection) -> None:
    allocate(session, 2, handlers=["platform.project_scan", "worlds.index_scan"], label="v2")
    assert subscriptions(session, 2) == {
        ("platform", "platform.project_scan", 6),
        ("worlds", "worlds.index_scan", 6),
    }
    assert audit(session) == [entry("allocate", {"generation": 2, "label": "v2"}, 2)]
    # a broadcast reaches both, though nobody has started
    parent = publish(session, target=None, p_generation=2)
    split = session.execute("select parent_id, context from core.outbox_fan_out('{2}', '{outbox_gen_2}')").fetchall()
    assert split == [(parent, "platform"), (parent, "worlds")]


def test_allocating_again_brings_up_to_date_what_was_given_and_nothing_else(session: Connection) -> None:
    allocate(session, 2, handlers=["platform.old", "worlds.index_scan"], label="v2")
    allocate(session, 2, handlers=["platform.new"], max_attempts=3)
    assert subscriptions(session, 2) == {("platform", "platform.new", 3), ("worlds", "worlds.index_scan", 6)}
    assert value(session, "select label from core.deployments where generation = 2") == "v2"
    allocate(session, 2, label="v2.1")
    assert len(subscriptions(session, 2)) == 2
    assert value(session, "select label from core.deployments where generation = 2") == "v2.1"


def test_two_that_allocate_at_once_get_two_numbers(connection: Connection, database: str) -> None:
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        assert value(ada, "select core.deployment_allocate()") == 3
        with held_up(connection, ada, bob, "select core.deployment_allocate()") as answer:
            ada.commit()
            assert answer.result() == [(4,)]


# promote


def test_promoting_makes_it_live_and_the_one_before_drain(session: Connection) -> None:
    assert value(session, "select core.deployment_promote(2, 'ada', 'r')") == 1
    assert deployments(session) == {0: "retired", 1: "draining", 2: "live"}
    assert value(session, "select generation from core.live_generation") == 2
    times = session.execute(
        "select drained_at is not null, promoted_at is not null from core.deployments where generation > 0 order by 1"
    )
    assert times.fetchall() == [(False, True), (True, True)]
    assert audit(session) == [entry("promote", {"generation": 2, "before": 1})]


def test_promoting_an_earlier_one_is_a_rollback(session: Connection) -> None:
    session.execute("select core.deployment_promote(2)")
    assert value(session, "select core.deployment_promote(1, 'ada', 'r')") == 2
    assert deployments(session) == {0: "retired", 1: "live", 2: "draining"}
    assert value(session, "select drained_at from core.deployments where generation = 1") is None
    assert audit(session)[-1] == entry("rollback", {"generation": 1, "before": 2})
    session.execute("select core.deployment_promote(2, 'ada', 'r')")
    assert audit(session)[-1] == entry("promote", {"generation": 2, "before": 1})


def test_promoting_the_live_one_changes_nothing(session: Connection) -> None:
    before = session.execute("select * from core.deployments").fetchall()
    assert value(session, "select core.deployment_promote(1)") == 1
    assert session.execute("select * from core.deployments").fetchall() == before
    assert audit(session) == []


def test_where_none_was_live_the_answer_is_nothing(session: Connection) -> None:
    session.execute("select core.deployment_drain(1)")
    assert value(session, "select core.deployment_promote(2, 'ada', 'r')") is None
    assert audit(session)[-1] == entry("promote", {"generation": 2, "before": None})


STEPS = ["select core.deployment_promote(%s)", "select core.deployment_drain(%s)", "select core.deployment_retire(%s)"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("generation", [99, None])
def test_no_step_is_taken_with_a_generation_that_is_not_there(
    session: Connection, step: LiteralString, generation: int | None
) -> None:
    said = refusal(session, step, generation)
    number = "null" if generation is None else generation
    assert (said.sqlstate, said.message_primary) == ("P0002", f"there is no generation {number}")
    assert "core.deployments" in (said.message_hint or "")


@pytest.mark.parametrize("step", STEPS[:2])
def test_what_is_retired_stays_so(session: Connection, step: LiteralString) -> None:
    said = refusal(session, step, 0)
    assert (said.sqlstate, said.message_primary) == ("55000", "generation 0 is retired")
    assert said.message_hint
    assert deployments(session) == {0: "retired", 1: "live", 2: "allocated"}


def test_of_two_that_promote_at_once_the_later_one_sees_what_the_first_did(
    connection: Connection, database: str
) -> None:
    allocate(connection)
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        ada.execute("select core.deployment_promote(2, 'ada')")
        with held_up(connection, ada, bob, "select core.deployment_promote(3, 'bob')") as answer:
            ada.commit()
            assert answer.result() == [(2,)]
    assert deployments(connection) == {0: "retired", 1: "draining", 2: "draining", 3: "live"}
    assert [each["detail"] for each in audit(connection)[1:]] == [
        {"generation": 2, "before": 1},
        {"generation": 3, "before": 2},
    ]


def test_a_worker_that_starts_waits_for_whoever_promotes(connection: Connection, database: str) -> None:
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as worker:
        ada.execute("select core.deployment_retire(2)")
        with held_up(connection, ada, worker, SUBSCRIBE, [2, [EVENT_TYPE]]) as answer:
            ada.commit()
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="2 is retired"):
                answer.result()


# drain


def test_draining_the_live_one_leaves_none_live(session: Connection) -> None:
    session.execute("select core.deployment_drain(1, 'ada', 'r')")
    assert deployments(session)[1] == "draining"
    assert audit(session) == [entry("drain", {"generation": 1, "before": "live"})]
    said = refusal(session, "select core.outbox_publish(%s, 'worlds')", EVENT_TYPE)
    assert (said.sqlstate, said.message_primary) == ("22023", "no generation given and none is live")
    # again: nothing is left to be done
    session.execute("select core.deployment_drain(1)")
    assert len(audit(session)) == 1


# retire


def test_a_generation_without_open_rows_is_retired(session: Connection) -> None:
    for status in ("delivered", "failed"):
        outbox_row(session, status, generation=2, channel="outbox_gen_2")
    outbox_row(session)  # another generation's
    session.execute("select core.deployment_retire(2, 'ada', 'r')")
    assert deployments(session)[2] == "retired"
    assert value(session, "select retired_at is not null from core.deployments where generation = 2")
    assert audit(session) == [entry("retire", {"generation": 2, "before": "allocated"})]
    session.execute("select core.deployment_retire(2)")
    assert len(audit(session)) == 1


def test_nothing_comes_into_a_generation_that_is_retired(session: Connection) -> None:
    failed, pending = fail(session), publish(session)
    session.execute("select core.deployment_retire(2)")
    assert refusal(session, "select core.outbox_replay(%s, 2)", failed).sqlstate == "22023"
    said = refusal(session, "select core.outbox_hand_over(1, 2)")
    assert (said.sqlstate, said.message_primary) == ("22023", "generation 2 is retired")
    assert refusal(session, SUBSCRIBE, 2, [EVENT_TYPE]).sqlstate == "55000"
    found = session.execute("select id, generation from core.outbox").fetchall()
    assert set(found) == {(failed, 1), (pending, 1)}


def test_the_live_one_is_not_retired(session: Connection) -> None:
    said = refusal(session, "select core.deployment_retire(1)")
    assert (said.sqlstate, said.message_primary) == ("55000", "generation 1 is live")
    assert said.message_hint == "Promote another one first."


@pytest.mark.parametrize("status", ["pending", "in_flight"])
def test_open_rows_keep_a_generation_from_being_retired(session: Connection, status: str) -> None:
    outbox_row(session, status, generation=2, channel="outbox_gen_2")
    said = refusal(session, "select core.deployment_retire(2)")
    assert (said.sqlstate, said.message_primary) == ("55000", "generation 2 still has 1 rows that are not delivered")
    assert "core.deployment_blockers(2)" in (said.message_hint or "")
    assert deployments(session)[2] == "allocated"
    assert audit(session) == []


MANY = (
    "insert into core.outbox (event_type, source, target, generation, channel, idempotency_key)"
    " select 'worlds.scan.completed', 'worlds', 'platform', 2, 'outbox_gen_2', n::text from generate_series(1, %s) n"
)


def test_of_a_huge_backlog_it_does_not_count_the_end(connection: Connection) -> None:
    connection.execute("set session_replication_role = replica")  # a trigger's call each, of no use here
    connection.execute(MANY, [10_005])
    assert value(connection, "select rows from core.deployment_blockers(2)") == 10_000
    said = refusal(connection, "select core.deployment_retire(2)")
    assert said.message_primary == "generation 2 still has 10,000 or more rows that are not delivered"


MOVES: list[tuple[LiteralString, str]] = [
    ("select core.outbox_hand_over(1, 2)", "publish"),
    ("select core.outbox_replay_many(array(select id from core.outbox), 2)", "fail"),
]


@pytest.mark.parametrize(("move", "source"), MOVES)
def test_a_generation_that_rows_are_just_coming_into_is_not_retired(
    connection: Connection, database: str, move: LiteralString, source: str
) -> None:
    publish(connection) if source == "publish" else fail(connection)
    connection.execute("update core.deployments set status = 'draining' where generation = 1")
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        ada.execute(move)
        with held_up(connection, ada, bob, "select core.deployment_retire(2)") as answer:
            ada.commit()
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="still has 1 rows"):
                answer.result()
    assert deployments(connection)[2] == "allocated"


@pytest.mark.parametrize(("move", "source"), MOVES)
def test_nothing_moves_into_a_generation_that_is_just_being_retired(
    connection: Connection, database: str, move: LiteralString, source: str
) -> None:
    publish(connection) if source == "publish" else fail(connection)
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        ada.execute("select core.deployment_retire(2)")
        with held_up(connection, ada, bob, move) as answer:
            ada.commit()
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="generation 2 is retired"):
                answer.result()
    assert value(connection, "select generation from core.outbox") == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_who_looks_at_an_old_snapshot_does_not_retire(connection: Connection, level: LiteralString) -> None:
    # It would not see what a hand-over has committed while it waited.
    connection.execute("set default_transaction_isolation = '" + level + "'")
    said = refusal(connection, "select core.deployment_retire(2)")
    assert said.sqlstate == "55000"
    assert "read committed" in (said.message_hint or "")


def test_what_a_forgotten_publisher_stamps_waits_and_is_handed_over(session: Connection) -> None:
    session.execute("select core.deployment_retire(2)")
    late = publish(session, p_generation=2)
    assert value(session, "select rows from core.deployment_blockers(2)") == 1
    assert value(session, "select core.outbox_hand_over(2, 1)") == 1
    assert session.execute("select id, generation from core.outbox").fetchall() == [(late, 1)]


# blockers


def blockers(connection: Connection, generation: int = 2) -> list[tuple[Any, ...]]:
    return connection.execute("select * from core.deployment_blockers(%s)", [generation]).fetchall()


def test_what_blocks_is_told_by_status_context_and_type_the_most_first(session: Connection) -> None:
    there: dict[str, Any] = {"generation": 2, "channel": "outbox_gen_2"}
    for status in ("pending", "pending", "in_flight", "delivered", "failed"):
        outbox_row(session, status, **there)
    outbox_row(session, target=None, event_type="worlds.scan.started", **there)
    outbox_row(session, generation=1)
    assert blockers(session) == [
        ("pending", "platform", EVENT_TYPE, 2),
        ("in_flight", "platform", EVENT_TYPE, 1),
        ("pending", None, "worlds.scan.started", 1),
    ]
    assert blockers(session, 99) == []


def test_read_only_is_told_of_its_own_workspace(connection: Connection, database: str) -> None:
    workspace = "7f2c1f0e-6f0a-4c0b-9d6e-3f1f6a1b2c3d"
    publish(connection, p_workspace_id=workspace)
    publish(connection)
    with logged_in(database, "spectral_operator") as operator:
        assert blockers(operator, 1) == [("pending", "platform", EVENT_TYPE, 2)]
    with logged_in(database, "spectral_readonly") as readonly:
        readonly.execute("select set_config('spectral.workspace_id', %s, false)", [workspace])
        assert blockers(readonly, 1) == [("pending", "platform", EVENT_TYPE, 1)]
