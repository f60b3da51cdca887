"""What a worker asks beside its claims: who ran already, when to come again, and whether it may start at all."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from tests.migrations.schema import logged_in, value
from tests.migrations.sql import (
    CHANNELS,
    EVENT_TYPE,
    begin,
    claim,
    held_by,
    lose,
    publish,
    settle,
    waits_for,
)

Connection = psycopg.Connection[Any]

OTHER_TYPE = "worlds.scan.started"
HANDLER, OTHER_HANDLER = "platform.project_scan", "platform.count_scans"


class Claimed(NamedTuple):
    """What a claim says of a row to a worker that runs handlers."""

    id: UUID
    token: UUID
    attempts: int
    suspect: bool
    handled: list[str]


def claim_for(
    connection: Connection, handlers: Sequence[str] = (), event_types: Sequence[str] | None = (EVENT_TYPE,)
) -> list[Claimed]:
    rows = connection.execute(
        "select id, claim_token, attempts, suspect, handled"
        " from core.outbox_claim('worker-1', 'platform', '{1}', %s, %s::text[], 10, null, %s::text[])",
        [CHANNELS, event_types and list(event_types), list(handlers)],
    )
    return [Claimed(*row) for row in rows]


def take_effect(connection: Connection, key: str, handler: str = HANDLER) -> None:
    """Have the handler handle an event with this key."""
    publish(connection, p_idempotency_key=key)
    claims = claim(connection)
    assert begin(connection, claims, handler) == ["run"]
    settle(connection, claims, "delivered")


# of a claim: which handlers ran already


def test_a_claim_names_the_handlers_that_hold_the_rows_key(connection: Connection) -> None:
    take_effect(connection, "same")
    publish(connection, p_idempotency_key="same")
    (row,) = claim_for(connection, [OTHER_HANDLER, HANDLER])
    assert row.handled == [HANDLER]


def test_a_claim_says_nothing_of_handlers_it_was_not_asked_about(connection: Connection) -> None:
    take_effect(connection, "same")
    publish(connection, p_idempotency_key="same")
    (row,) = claim_for(connection, [OTHER_HANDLER])
    assert row.handled == []


def test_a_claim_that_names_no_handlers_answers_none(connection: Connection) -> None:
    take_effect(connection, "same")
    publish(connection, p_idempotency_key="same")
    rows = connection.execute(
        "select handled from core.outbox_claim('w', 'platform', '{1}', %s, %s)", [CHANNELS, [EVENT_TYPE]]
    ).fetchall()
    assert rows == [([],)]


def test_each_row_of_a_claim_is_looked_up_by_its_own_key(connection: Connection) -> None:
    take_effect(connection, "same")
    known, fresh = publish(connection, p_idempotency_key="same"), publish(connection, p_idempotency_key="another")
    rows = claim_for(connection, [HANDLER])
    assert {row.id: row.handled for row in rows} == {known: [HANDLER], fresh: []}


def test_a_key_that_is_not_committed_does_not_count_as_handled_and_is_not_waited_for(
    connection: Connection, database: str
) -> None:
    publish(connection, p_idempotency_key="same")
    claims = claim(connection)
    with psycopg.connect(database) as handler:
        assert begin(handler, claims) == ["run"]
        publish(connection, p_idempotency_key="same")
        connection.execute("set lock_timeout = '1ms'")
        assert [row.handled for row in claim_for(connection, [HANDLER])] == [[]]


def test_a_retried_row_names_the_handler_that_succeeded_before_another_failed(connection: Connection) -> None:
    publish(connection)
    claims = claim(connection)
    begin(connection, claims, HANDLER)
    settle(connection, claims, "retry", "OSError: the other one")
    (row,) = claim_for(connection, [HANDLER, OTHER_HANDLER])
    assert (row.attempts, row.handled) == (2, [HANDLER])


# of a claim: is it a suspect


def test_a_row_that_was_never_tried_is_no_suspect(connection: Connection) -> None:
    publish(connection)
    assert [row.suspect for row in claim_for(connection)] == [False]


def test_a_row_whose_last_worker_was_lost_is_a_suspect(connection: Connection) -> None:
    lose(connection, publish(connection))
    assert [(row.attempts, row.suspect) for row in claim_for(connection)] == [(2, True)]


def test_a_row_whose_handler_failed_in_an_orderly_way_is_no_suspect(connection: Connection) -> None:
    publish(connection)
    settle(connection, claim(connection), "retry", "OSError: x")
    assert [row.suspect for row in claim_for(connection)] == [False]


def test_a_suspect_that_then_failed_in_an_orderly_way_is_cleared(connection: Connection) -> None:
    lose(connection, publish(connection))
    settle(connection, claim(connection), "retry", "OSError: x")
    assert [row.suspect for row in claim_for(connection)] == [False]


def test_a_suspect_that_was_given_back_unstarted_stays_one(connection: Connection) -> None:
    suspect = publish(connection)
    lose(connection, suspect)
    assert held_by(connection, "outbox_release", claim(connection)) == [suspect]
    assert [row.suspect for row in claim_for(connection)] == [True]


# of a claim: which types


def test_a_claim_without_event_types_takes_every_type(connection: Connection) -> None:
    published = [publish(connection), publish(connection, p_event_type=OTHER_TYPE)]
    assert [row.id for row in claim_for(connection, event_types=None)] == published


def test_a_claim_of_no_event_types_takes_none(connection: Connection) -> None:
    publish(connection)
    assert claim_for(connection, event_types=[]) == []


def test_a_claim_of_some_event_types_leaves_the_others(connection: Connection) -> None:
    publish(connection)
    wanted = publish(connection, p_event_type=OTHER_TYPE)
    assert [row.id for row in claim_for(connection, event_types=[OTHER_TYPE])] == [wanted]


# next due

HOUR = timedelta(hours=1)


def next_due(connection: Connection, contexts: Sequence[str] = ("platform",)) -> timedelta | None:
    """As a worker of generation 1."""
    found = value(connection, "select core.outbox_next_due(%s, '{1}', %s)", [list(contexts), CHANNELS])
    assert found is None or isinstance(found, timedelta)
    return found


def is_within_a_minute_of(due: timedelta | None, expected: timedelta) -> bool:
    return due is not None and expected - timedelta(minutes=1) < due <= expected


def test_nothing_is_next_where_nothing_waits(connection: Connection) -> None:
    assert next_due(connection) is None


def test_a_delayed_row_is_next_when_its_delay_is_over(connection: Connection) -> None:
    publish(connection, p_delay=HOUR)
    assert is_within_a_minute_of(next_due(connection), HOUR)


def test_a_row_that_waits_for_its_retry_is_next_when_that_is_due(connection: Connection) -> None:
    publish(connection)
    settle(connection, claim(connection), "retry", "OSError: x", delay="1 hour")
    assert is_within_a_minute_of(next_due(connection), HOUR)


def test_a_delayed_broadcast_is_next_whatever_the_context(connection: Connection) -> None:
    publish(connection, target=None, p_delay=HOUR)
    assert is_within_a_minute_of(next_due(connection), HOUR)


@pytest.mark.parametrize(
    "targets", [("platform", "worlds"), ("worlds", "platform"), (None, "platform"), ("core", None)]
)
def test_the_earliest_of_all_contexts_and_broadcasts_is_next(
    connection: Connection, targets: tuple[str | None, str | None]
) -> None:
    earlier, later = targets
    publish(connection, target=earlier, p_delay=HOUR)
    publish(connection, target=later, p_delay=2 * HOUR)
    assert is_within_a_minute_of(next_due(connection, ["worlds", "platform", "core"]), HOUR)


def test_the_earliest_of_all_channels_is_next(connection: Connection) -> None:
    publish(connection, p_delay=2 * HOUR)
    connection.execute(
        "insert into core.outbox (event_type, source, target, generation, next_attempt_at)"
        " values (%s, 'worlds', 'platform', 1, now() + interval '1 hour')",
        [EVENT_TYPE],
    )
    assert is_within_a_minute_of(next_due(connection), HOUR)


def test_rows_that_are_due_already_are_not_next(connection: Connection) -> None:
    publish(connection)
    publish(connection, target=None)
    assert next_due(connection) is None


def test_rows_that_are_due_already_do_not_hide_the_next(connection: Connection) -> None:
    publish(connection)
    publish(connection, p_delay=HOUR)
    assert is_within_a_minute_of(next_due(connection), HOUR)


@pytest.mark.parametrize(
    "elsewhere", [{"p_generation": 2}, {"p_class": "cold"}, {"target": "worlds"}], ids=lambda where: next(iter(where))
)
def test_rows_of_others_are_not_next(connection: Connection, elsewhere: dict[str, Any]) -> None:
    publish(connection, p_delay=HOUR, **elsewhere)
    assert next_due(connection) is None


@pytest.mark.parametrize("elsewhere", [{"p_generation": 2}, {"p_class": "cold"}], ids=lambda where: next(iter(where)))
def test_broadcasts_of_others_are_not_next(connection: Connection, elsewhere: dict[str, Any]) -> None:
    publish(connection, target=None, p_delay=HOUR, **elsewhere)
    assert next_due(connection) is None


def test_what_has_ended_is_not_next(connection: Connection) -> None:
    publish(connection)
    settle(connection, claim(connection), "delivered")
    connection.execute("update core.outbox set next_attempt_at = now() + interval '1 hour'")
    assert next_due(connection) is None


def test_asking_for_the_next_waits_for_nobody(connection: Connection, database: str) -> None:
    publish(connection, p_delay=HOUR)
    with psycopg.connect(database) as other:
        other.execute("select from core.outbox for update")
        connection.execute("set lock_timeout = '1ms'")
        assert is_within_a_minute_of(next_due(connection), HOUR)


# subscribe


class Subscription(NamedTuple):
    context: str = "platform"
    event_type: str = EVENT_TYPE
    handler_name: str = HANDLER
    max_attempts: int = 6


ONE = Subscription()
TWO = Subscription(handler_name=OTHER_HANDLER)


def subscribe(
    connection: Connection, *given: Subscription, generation: int = 1, replace: bool | None = False
) -> list[tuple[str, str, str]]:
    """Answers the handlers that are on record and were not given."""
    columns = [[each[number] for each in given] for number in range(4)]
    return connection.execute(
        "select context, event_type, handler_name"
        " from core.outbox_subscribe(%s, %s::text[], %s::text[], %s::text[], %s::integer[], %s)",
        [generation, *columns, replace],
    ).fetchall()


def recorded(connection: Connection, generation: int = 1) -> set[Subscription]:
    rows = connection.execute(
        "select context, event_type, handler_name, max_attempts from core.subscriptions where generation = %s",
        [generation],
    )
    return {Subscription(*row) for row in rows}


def deployments(connection: Connection) -> dict[int, str]:
    return dict(connection.execute("select generation, status from core.deployments").fetchall())


def without_generations(connection: Connection) -> None:
    connection.execute("delete from core.deployments")


def test_a_worker_records_what_it_subscribes_to(database: str, connection: Connection) -> None:
    given = [ONE, TWO, Subscription("worlds", OTHER_TYPE, "worlds.index", 3)]
    with logged_in(database, "spectral_worker") as worker:
        assert subscribe(worker, *given) == []
    assert recorded(connection) == set(given)


def test_subscribing_again_changes_nothing(connection: Connection) -> None:
    subscribe(connection, ONE)
    before = connection.execute("select *, xmin from core.subscriptions").fetchall()
    assert subscribe(connection, ONE) == []
    assert connection.execute("select *, xmin from core.subscriptions").fetchall() == before


def test_each_generation_has_subscriptions_of_its_own(connection: Connection) -> None:
    subscribe(connection, ONE, generation=1)
    assert subscribe(connection, TWO, generation=2) == []
    assert (recorded(connection, 1), recorded(connection, 2)) == ({ONE}, {TWO})


def test_the_first_generation_of_a_database_is_live_at_once(connection: Connection) -> None:
    without_generations(connection)
    subscribe(connection, ONE, generation=7)
    rows = connection.execute("select generation, status, promoted_at is not null from core.deployments").fetchall()
    assert rows == [(7, "live", True)]


def test_a_later_generation_is_allocated(connection: Connection) -> None:
    subscribe(connection, ONE, generation=7)
    assert deployments(connection) == {0: "retired", 1: "live", 2: "allocated", 7: "allocated"}


def test_a_later_generation_is_allocated_even_if_none_is_live(connection: Connection) -> None:
    connection.execute("update core.deployments set status = 'draining' where status = 'live'")
    subscribe(connection, ONE, generation=7)
    assert deployments(connection)[7] == "allocated"


def test_subscribing_leaves_a_known_generation_as_it_is(connection: Connection) -> None:
    connection.execute("update core.deployments set status = 'draining' where generation = 1")
    subscribe(connection, ONE, generation=1)
    assert deployments(connection)[1] == "draining"


def test_a_retired_generation_is_refused(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="generation 0 is retired"):
        subscribe(connection, ONE, generation=0)
    assert recorded(connection, 0) == set()


def test_a_worker_that_lacks_a_handler_is_told_which_and_nothing_is_recorded(connection: Connection) -> None:
    subscribe(connection, ONE, TWO)
    third = Subscription(handler_name="platform.third")
    assert subscribe(connection, ONE, third) == [TWO[:3]]
    assert recorded(connection) == {ONE, TWO}


@pytest.mark.parametrize("elsewhere", [TWO._replace(event_type=OTHER_TYPE), TWO._replace(context="worlds")])
def test_a_handler_that_the_worker_has_for_something_else_is_lacking_nevertheless(
    connection: Connection, elsewhere: Subscription
) -> None:
    subscribe(connection, ONE, TWO)
    assert subscribe(connection, ONE, elsewhere) == [TWO[:3]]
    assert recorded(connection) == {ONE, TWO}


@pytest.mark.parametrize(
    "other", [Subscription(event_type=OTHER_TYPE), Subscription("worlds", EVENT_TYPE, "worlds.index")]
)
def test_a_worker_need_not_have_the_handlers_of_types_and_contexts_it_does_not_take(
    connection: Connection, other: Subscription
) -> None:
    subscribe(connection, other)
    assert subscribe(connection, ONE) == []
    assert recorded(connection) == {ONE, other}


def test_replacing_strikes_off_what_the_worker_lacks(connection: Connection) -> None:
    removed = Subscription(event_type=OTHER_TYPE)  # the only handler of its type
    subscribe(connection, ONE, TWO, removed)
    third = Subscription(handler_name="platform.third")
    assert subscribe(connection, ONE, third, replace=True) == []
    assert recorded(connection) == {ONE, third}


def test_replacing_leaves_other_contexts_and_generations_alone(connection: Connection) -> None:
    other = Subscription("worlds", EVENT_TYPE, "worlds.index")
    subscribe(connection, TWO, other)
    subscribe(connection, TWO, generation=2)
    subscribe(connection, ONE, replace=True)
    assert (recorded(connection, 1), recorded(connection, 2)) == ({ONE, other}, {TWO})


def test_whether_to_replace_left_open_means_no(connection: Connection) -> None:
    subscribe(connection, ONE, TWO)
    assert subscribe(connection, ONE, replace=None) == [TWO[:3]]


def test_a_changed_number_of_attempts_is_recorded(connection: Connection) -> None:
    subscribe(connection, ONE, TWO)
    more = ONE._replace(max_attempts=12)
    assert subscribe(connection, more, TWO) == []
    assert recorded(connection) == {more, TWO}


def test_a_worker_that_lacks_a_handler_changes_no_number_of_attempts(connection: Connection) -> None:
    subscribe(connection, ONE, TWO)
    subscribe(connection, ONE._replace(max_attempts=12))
    assert recorded(connection) == {ONE, TWO}


def test_subscribing_refuses_arrays_that_are_not_parallel(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="parallel"):
        connection.execute("select core.outbox_subscribe(1, '{platform}', '{}', '{}', '{}')")


def test_two_subscribers_at_once_make_their_generation_once(connection: Connection, database: str) -> None:
    without_generations(connection)
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(database, autocommit=True) as second,
        psycopg.connect(database) as first,
    ):
        subscribe(first, ONE, generation=7)  # not committed yet
        waiting = pool.submit(subscribe, second, ONE, generation=7)
        waits_for(connection, second, first)
        first.commit()
        assert waiting.result() == []
    assert deployments(connection) == {7: "live"}
    assert recorded(connection, 7) == {ONE}


def test_of_two_first_generations_at_once_one_is_live(connection: Connection, database: str) -> None:
    without_generations(connection)
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(database, autocommit=True) as second,
        psycopg.connect(database) as first,
    ):
        subscribe(first, ONE, generation=8)  # not committed yet
        waiting = pool.submit(subscribe, second, ONE, generation=7)
        waits_for(connection, second, first)
        first.commit()
        assert waiting.result() == []
    assert deployments(connection) == {8: "live", 7: "allocated"}


def test_of_two_subscribers_at_once_the_second_is_told_what_it_lacks_of_the_first(
    connection: Connection, database: str
) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(database, autocommit=True) as second,
        psycopg.connect(database) as first,
    ):
        subscribe(first, ONE)  # not committed yet
        waiting = pool.submit(subscribe, second, TWO)
        waits_for(connection, second, first)
        first.commit()
        assert waiting.result() == [ONE[:3]]
    assert recorded(connection) == {ONE}


def test_a_generation_is_not_retired_under_a_worker_that_subscribes(connection: Connection, database: str) -> None:
    with psycopg.connect(database) as worker:
        subscribe(worker, ONE, generation=2)
        connection.execute("set lock_timeout = '1ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(
                "update core.deployments set status = 'retired', retired_at = now() where generation = 2"
            )


def test_subscribing_holds_up_neither_publishing_nor_replay(connection: Connection, database: str) -> None:
    publish(connection)
    claims = claim(connection)
    settle(connection, claims, "dead_letter", "ValueError: no")
    with psycopg.connect(database) as worker:
        subscribe(worker, ONE)
        connection.execute("set lock_timeout = '1ms'")
        publish(connection, p_generation=None)
        assert value(connection, "select core.outbox_replay(%s, 1)", [claims[0].id]) == 1
