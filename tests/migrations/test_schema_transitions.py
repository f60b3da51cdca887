"""The state machine stands on the table itself: whoever writes, and by whatever path, takes only the allowed steps.

Every UPDATE here is a superuser's, who is bound neither by privileges nor by row-level security.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from spectral.core.embedded import PostgresServer
from tests.migrations.schema import STATES, Connection, outbox_row, prepared_database, undone, update, value

MOMENT = "2026-02-02T00:00Z"
ONE, TWO = {"cycle": 1, "last_error": "ValueError: one"}, {"cycle": 2, "last_error": "ValueError: two"}

# What a row needs, beside its status, to be whole after each step.
COHERENT: Mapping[str, Mapping[str, object]] = {
    "pending": {"claim_token": None},
    "in_flight": {"claim_token": uuid4(), "claimed_by": "worker-2", "claimed_at": MOMENT},
    "delivered": {"claim_token": None, "delivered_at": MOMENT},
    "failed": {"claim_token": None, "last_error": "ValueError: no", "first_failed_at": MOMENT},
}

STEP = "outbox_status_transition"
# The whole matrix for a row with a target: None where the step is allowed, otherwise who refuses it.
MATRIX: Mapping[tuple[str, str], str | None] = {
    ("pending", "pending"): None,
    ("pending", "in_flight"): None,
    ("pending", "delivered"): STEP,
    ("pending", "failed"): STEP,
    ("in_flight", "pending"): None,
    ("in_flight", "in_flight"): None,
    ("in_flight", "delivered"): None,
    ("in_flight", "failed"): None,
    ("delivered", "pending"): STEP,
    ("delivered", "in_flight"): STEP,
    ("delivered", "delivered"): None,
    ("delivered", "failed"): STEP,
    ("failed", "pending"): STEP,
    ("failed", "in_flight"): STEP,
    ("failed", "delivered"): STEP,
    ("failed", "failed"): None,
}

WHAT_HAPPENED: Mapping[str, object] = {
    "id": uuid4(),
    "event_type": "worlds.scan.started",
    "event_version": 2,
    "occurred_at": MOMENT,
    "source": "core",
    "target": "worlds",
    "content_class": "agent_task",
    "workspace_id": uuid4(),
    "payload": Jsonb({"forged": True}),
    "idempotency_key": "another",
    "trace_context": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "parent_id": uuid4(),
    "created_at": MOMENT,
}
"""Another value for each column that never changes."""

INCOHERENT: list[tuple[str, str, Mapping[str, object]]] = [
    ("status", "in_flight", {"status": "lost", "claim_token": None}),
    ("attempts", "in_flight", {**COHERENT["pending"], "status": "pending", "attempts": -1}),
    ("generation", "pending", {"generation": -1}),
    ("channel", "pending", {"channel": "outbox_gen_9"}),
    ("channel", "pending", {"generation": 2}),
    ("channel", "pending", {"channel": "outbox_gen_1_" + "x" * 33}),
    ("claim", "in_flight", {"claim_token": None}),
    ("claim", "in_flight", {"claimed_by": None}),
    ("claim", "in_flight", {"claimed_at": None}),
    ("claim", "pending", {"claim_token": uuid4()}),
    ("delivered", "in_flight", {"status": "delivered", "claim_token": None}),
    ("delivered", "in_flight", {"delivered_at": MOMENT}),
    ("failed", "in_flight", {**COHERENT["failed"], "status": "failed", "last_error": None}),
    ("failed", "in_flight", {**COHERENT["failed"], "status": "failed", "first_failed_at": None}),
    ("last_error", "in_flight", {"last_error": "e" * 4097}),
    ("times", "pending", {"next_attempt_at": "infinity"}),
    ("times", "pending", {"next_attempt_at": "1899-12-31T23:59Z"}),
    ("deleted", "pending", {"deleted_at": "now"}),
]
"""What no row may be like, by the rule that says so, the status it is tried from, and how."""

HOW_FAR_IT_GOT = {
    *("channel", "generation", "status", "attempts", "next_attempt_at", "claim_token", "claimed_by", "claimed_at"),
    *("delivered_at", "last_error", "first_failed_at", "failure_history", "deleted_at", "relayed_at"),
}


@pytest.fixture(scope="module")
def module_database(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    with prepared_database(postgres, migrated_template) as dsn:
        yield dsn


@pytest.fixture
def session(module_database: str) -> Iterator[Connection]:
    """Every test here starts from no rows and leaves none."""
    with undone(module_database) as connection:
        yield connection


def refused_by(connection: Connection, event_id: UUID, **columns: object) -> str | None:
    """The name of what refuses this UPDATE, which must be a check or a trigger; the row stays as it is."""
    before = row_text(connection)
    with pytest.raises(psycopg.errors.CheckViolation) as refused, connection.transaction():
        update(connection, event_id, **columns)
    assert row_text(connection) == before
    assert (refused.value.diag.schema_name, refused.value.diag.table_name) == ("core", "outbox")
    return refused.value.diag.constraint_name


def row_text(connection: Connection) -> str:
    return str(value(connection, "select outbox::text from core.outbox"))


def in_status(connection: Connection, status: str, **columns: object) -> UUID:
    """A row of that status; one in flight keeps the token it will be asked for again."""
    token = {"claim_token": COHERENT["in_flight"]["claim_token"]} if status == "in_flight" else {}
    return outbox_row(connection, status, **token, **columns)


def test_the_matrix_is_whole() -> None:
    assert set(MATRIX) == set(product(STATES, STATES))


@pytest.mark.parametrize(("before", "after"), [step for step, refusal in MATRIX.items() if refusal is None])
def test_an_allowed_step_is_taken(session: Connection, before: str, after: str) -> None:
    event_id = in_status(session, before)
    columns = {} if before == after else COHERENT[after]
    assert update(session, event_id, status=after, **columns) == 1
    assert value(session, "select status from core.outbox") == after


@pytest.mark.parametrize(("before", "after"), [step for step, refusal in MATRIX.items() if refusal is not None])
def test_any_other_step_is_refused(session: Connection, before: str, after: str) -> None:
    event_id = in_status(session, before)
    error: dict[str, object] = {"last_error": "ValueError: no"} if after == "failed" else {}
    # Attempts are looked at first, and starting anew they are none.
    attempts: dict[str, object] = {"attempts": 0} if (before, after) == ("failed", "pending") else {}
    assert refused_by(session, event_id, status=after, **error, **attempts) == MATRIX[before, after]


@pytest.mark.parametrize(("before", "after"), [step for step, refusal in MATRIX.items() if refusal is not None])
def test_any_other_step_is_refused_however_coherent_its_row_would_be(
    session: Connection, before: str, after: str
) -> None:
    event_id = in_status(session, before)
    delivered: dict[str, object] = {"delivered_at": None} if before == "delivered" else {}
    attempts: dict[str, object] = {"attempts": 0} if (before, after) == ("failed", "pending") else {}
    refusal = refused_by(session, event_id, status=after, **{**COHERENT[after], **delivered, **attempts})
    assert refusal == ("outbox_end_transition" if delivered else STEP)


def test_a_broadcast_is_delivered_without_a_claim(session: Connection) -> None:
    broadcast = in_status(session, "pending", target=None)
    assert update(session, broadcast, status="delivered", delivered_at=MOMENT) == 1


def test_a_row_nobody_handles_fails_without_a_claim_and_says_so(session: Connection) -> None:
    event_id = in_status(session, "pending")
    failed: dict[str, object] = {"status": "failed", "first_failed_at": MOMENT}
    assert refused_by(session, event_id, **failed) == "outbox_failed_check"
    assert refused_by(session, event_id, **failed, last_error="no NoHandlerError: x") == STEP
    assert update(session, event_id, **failed, last_error="NoHandlerError: x") == 1


def test_a_replay_by_hand_files_exactly_one_cycle(session: Connection) -> None:
    event_id = in_status(session, "failed", failure_history=Jsonb([ONE]))
    replay: dict[str, object] = {"status": "pending", "attempts": 0, "last_error": None, "first_failed_at": None}
    assert refused_by(session, event_id, **replay) == STEP
    too_many = Jsonb([ONE, TWO, TWO])
    assert refused_by(session, event_id, **replay, failure_history=too_many) in {STEP, "outbox_history_transition"}
    moved: dict[str, object] = {"generation": 2, "channel": "outbox_gen_2"}
    assert update(session, event_id, **replay, **moved, failure_history=Jsonb([ONE, TWO])) == 1


def test_a_discarded_row_is_not_replayed(session: Connection) -> None:
    event_id = in_status(session, "failed", deleted_at=MOMENT)
    replay = {"status": "pending", "attempts": 0, "failure_history": Jsonb([ONE])}
    assert refused_by(session, event_id, **replay) == "outbox_deleted_check"


# attempts


@pytest.mark.parametrize(
    ("before", "columns"),
    [
        ("pending", {"attempts": 2}),
        ("pending", {"attempts": 0}),
        ("pending", {"attempts": 2, "status": "in_flight", **COHERENT["in_flight"]}),
        ("in_flight", {"attempts": 2}),
        ("in_flight", {"attempts": 1, "status": "pending", **COHERENT["pending"]}),
        ("in_flight", {"attempts": 2, "status": "delivered", **COHERENT["delivered"]}),
        ("in_flight", {"attempts": 2, "status": "failed", **COHERENT["failed"]}),
        ("delivered", {"attempts": 0}),
        ("failed", {"attempts": 0}),
        ("failed", {"attempts": 1, "status": "pending", "failure_history": Jsonb([ONE])}),
    ],
)
def test_attempts_are_given_back_by_release_and_replay_alone(
    session: Connection, before: str, columns: dict[str, object]
) -> None:
    event_id = in_status(session, before, attempts=3)
    assert refused_by(session, event_id, **columns) == "outbox_attempts_transition"


def test_release_gives_one_attempt_back(session: Connection) -> None:
    event_id = in_status(session, "in_flight", attempts=3)
    assert update(session, event_id, status="pending", claim_token=None, attempts=2) == 1


# the claim


def test_a_claim_is_never_taken_over_in_flight(session: Connection) -> None:
    event_id = in_status(session, "in_flight")
    assert refused_by(session, event_id, claim_token=uuid4()) == "outbox_claim_transition"
    taken = {"status": "in_flight", "claim_token": uuid4(), "claimed_by": "thief"}
    assert refused_by(session, event_id, **taken) == "outbox_claim_transition"


def test_a_claim_does_not_end_while_the_row_stays_in_flight(session: Connection) -> None:
    assert refused_by(session, in_status(session, "in_flight"), claim_token=None) == "outbox_claim_check"


# the generation


@pytest.mark.parametrize("columns", [{"generation": 2, "channel": "outbox_gen_2"}, {"channel": "outbox_gen_1_hot"}])
@pytest.mark.parametrize("status", ["in_flight", "delivered", "failed"])
def test_a_row_does_not_move_once_it_is_on_its_way(
    session: Connection, status: str, columns: dict[str, object]
) -> None:
    assert refused_by(session, in_status(session, status), **columns) == "outbox_generation_transition"


@pytest.mark.parametrize(
    ("before", "after"), [("pending", "in_flight"), ("in_flight", "pending"), ("in_flight", "delivered")]
)
def test_a_row_does_not_move_in_a_step_of_delivery(session: Connection, before: str, after: str) -> None:
    event_id = in_status(session, before)
    moved = {"status": after, "generation": 2, "channel": "outbox_gen_2", **COHERENT[after]}
    assert refused_by(session, event_id, **moved) == "outbox_generation_transition"


def test_a_pending_row_is_handed_over_to_another_generation(session: Connection) -> None:
    event_id = in_status(session, "pending")
    assert update(session, event_id, generation=2, channel="outbox_gen_2") == 1


def test_a_row_is_not_handed_over_without_its_channel(session: Connection) -> None:
    assert refused_by(session, in_status(session, "pending"), generation=2) == "outbox_channel_check"


# the history


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("history", [[], [TWO], [ONE, TWO]])
def test_the_history_changes_by_replay_alone(
    session: Connection, status: str, history: list[dict[str, object]]
) -> None:
    event_id = in_status(session, status, failure_history=Jsonb([ONE]))
    assert refused_by(session, event_id, failure_history=Jsonb(history)) == "outbox_history_transition"


@pytest.mark.parametrize(
    "history",
    [
        pytest.param([TWO, TWO, TWO], id="every entry rewritten"),
        pytest.param([{**ONE, "last_error": "x"}, TWO, TWO], id="an entry rewritten"),
        pytest.param([{**ONE, "replayed_by": "mallory"}, TWO, TWO], id="an entry embellished"),
        pytest.param([TWO, ONE, TWO], id="two entries exchanged"),
        pytest.param([{"cycle": 3}, ONE, TWO], id="put in front"),
    ],
)
def test_a_replay_does_not_rewrite_the_history(session: Connection, history: list[dict[str, object]]) -> None:
    event_id = in_status(session, "failed", failure_history=Jsonb([ONE, TWO]))
    forged: dict[str, object] = {"status": "pending", "attempts": 0, "failure_history": Jsonb(history)}
    assert refused_by(session, event_id, **forged) == "outbox_history_transition"


def test_a_replay_does_not_hide_a_cycle_that_looked_like_another(session: Connection) -> None:
    event_id = in_status(session, "failed", failure_history=Jsonb([ONE, ONE]))
    forged: dict[str, object] = {"status": "pending", "attempts": 0, "failure_history": Jsonb([ONE, TWO, TWO])}
    assert refused_by(session, event_id, **forged) == "outbox_history_transition"


# the end


@pytest.mark.parametrize("moment", [None, MOMENT])
def test_the_moment_of_delivery_stays(session: Connection, moment: str | None) -> None:
    assert refused_by(session, in_status(session, "delivered"), delivered_at=moment) == "outbox_end_transition"


def test_a_delivered_row_that_was_put_away_stays_away(session: Connection) -> None:
    event_id = in_status(session, "delivered")
    assert update(session, event_id, deleted_at="now") == 1
    assert refused_by(session, event_id, deleted_at=None) == "outbox_end_transition"


def test_a_discard_can_be_taken_back(session: Connection) -> None:
    event_id = in_status(session, "failed")
    for deleted_at in ("now", None):
        assert update(session, event_id, deleted_at=deleted_at) == 1


@pytest.mark.parametrize("status", ["pending", "in_flight"])
def test_what_is_still_to_be_delivered_is_not_put_away(session: Connection, status: str) -> None:
    assert refused_by(session, in_status(session, status), deleted_at="now") == "outbox_deleted_check"


@pytest.mark.parametrize("status", ["delivered", "failed"])
@pytest.mark.parametrize("moment", ["-infinity", "2020-01-01", "2999-01-01", "infinity"])
def test_a_tombstone_is_set_now(session: Connection, status: str, moment: str) -> None:
    assert refused_by(session, in_status(session, status), deleted_at=moment) == "outbox_end_transition"


@pytest.mark.parametrize("status", ["delivered", "failed"])
def test_a_tombstone_is_not_moved(session: Connection, status: str) -> None:
    event_id = in_status(session, status)
    assert update(session, event_id, deleted_at="now") == 1
    moved = refused_by(session, event_id, deleted_at=datetime.now(UTC) + timedelta(minutes=1))
    assert moved == "outbox_end_transition"


# what happened


@pytest.mark.parametrize("status", STATES)
@pytest.mark.parametrize("column", WHAT_HAPPENED)
def test_what_happened_never_changes(session: Connection, column: str, status: str) -> None:
    refusal = refused_by(session, in_status(session, status), **{column: WHAT_HAPPENED[column]})
    assert refusal == "outbox_immutable"


def test_every_column_is_either_for_ever_or_part_of_the_state_machine(session: Connection) -> None:
    found = session.execute(
        "select attname from pg_attribute where attrelid = 'core.outbox'::regclass and attnum > 0 and not attisdropped"
    ).fetchall()
    assert {name for (name,) in found} == HOW_FAR_IT_GOT | set(WHAT_HAPPENED)


# what a row may be like


@pytest.mark.parametrize(("rule", "status", "columns"), INCOHERENT)
def test_a_row_that_does_not_make_sense_is_refused_by_name(
    session: Connection, rule: str, status: str, columns: Mapping[str, object]
) -> None:
    event_id = in_status(session, status, attempts=0)
    assert refused_by(session, event_id, **columns) == f"outbox_{rule}_check"


def test_every_rule_of_the_update_is_shown_broken_here(session: Connection) -> None:
    source = value(session, "select pg_get_functiondef('core.outbox_check_update'::regproc)")
    rules = set(re.findall(r"'outbox_(\w+)_check'", source))
    assert rules == {rule for rule, _, _ in INCOHERENT}
