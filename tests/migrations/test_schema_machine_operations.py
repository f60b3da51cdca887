"""The same machine with people at the controls: releases, rollbacks, hand-overs, the brake, and the sweep.

Ages do not have to pass: a sweep is told that every time is over. After each step the tables still say what the model
says, and a key takes effect once more only when its record and every event that had it were swept away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import LiteralString
from uuid import UUID

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from tests.migrations.schema import Connection
from tests.migrations.test_schema_machine import (
    BUSY,
    GENERATIONS,
    Delivery,
    is_any,
    mutate,
    prepare,
    run_machine,
)

# Twice as often, nothing stands in the way of deleting.
GRACES = st.sampled_from(["0 s", "0 s", "7 days"])

NOT_LIKE_THIS = psycopg.errors.ObjectNotInPrerequisiteState
NOT_THERE = psycopg.errors.NoDataFound
NOT_THIS_WAY = psycopg.errors.InvalidParameterValue

# Generation 1 is live, 2 allocated, 3 retired; whatever they were before, for one is live at a time.
RESET = b"""\
truncate core.brakes;
update core.deployments set status = 'draining', retired_at = null;
update core.deployments
set status = (array['live', 'allocated', 'retired'])[generation],
    retired_at = case generation when 3 then clock_timestamp() end"""


class Operation(Delivery):
    stamps: Sequence[int] = (1, 2, 3)
    splits_at_once = False

    def __init__(self) -> None:
        super().__init__()
        self.connection.execute(RESET)
        self.generations = {1: "live", 2: "allocated", 3: "retired"}
        self.brakes: set[str] = set()
        self.old_records: set[str] = set()  # keys whose records are put away
        self.swept: set[str] = set()  # keys whose records are gone

    # what the machine has to know of this

    def is_known(self, generation: int) -> bool:
        return generation in self.generations

    def takes(self, generation: int) -> bool:
        return self.generations.get(generation, "retired") != "retired"

    def splittable(self, generation: int) -> set[UUID]:
        return set() if "*" in self.brakes else super().splittable(generation)

    def claimable(self, generation: int) -> set[UUID]:
        return set() if self.brakes else super().claimable(generation)

    # events

    def publish_and_roll_back(self, key: str) -> None:
        """Not here: the other machine does it."""

    # releases

    @rule(step=st.sampled_from(["promote", "drain", "retire"]), generation=BUSY | GENERATIONS)
    def take_a_step(self, step: str, generation: int) -> None:
        match step:
            case "promote":
                self.promote(generation)
            case "drain":
                self.drain(generation)
            case _:
                self.retire(generation)

    def promote(self, generation: int) -> None:
        error = {None: NOT_THERE, "retired": NOT_LIKE_THIS}.get(self.generations.get(generation))
        live = next((each for each, status in self.generations.items() if status == "live"), None)
        before = self.ask("select core.deployment_promote(%s)", [generation], error)
        if error is None:
            assert before == (live,)
            if live is not None:
                self.generations[live] = "draining"
            self.generations[generation] = "live"

    def drain(self, generation: int) -> None:
        error = {None: NOT_THERE, "retired": NOT_LIKE_THIS}.get(self.generations.get(generation))
        self.ask("select core.deployment_drain(%s)", [generation], error)
        if error is None:
            self.generations[generation] = "draining"

    def retire(self, generation: int) -> None:
        status = self.generations.get(generation)
        is_open = any(
            row.generation == generation and row.status in {"pending", "in_flight"} for row in self.rows.values()
        )
        error = {None: NOT_THERE, "live": NOT_LIKE_THIS}.get(status)
        if is_open and status in {"allocated", "draining"}:
            error = NOT_LIKE_THIS
        self.ask("select core.deployment_retire(%s)", [generation], error)
        if error is None:
            self.generations[generation] = "retired"

    @rule(origin=BUSY, heir=GENERATIONS, limit=st.integers(1, 6), context=st.sampled_from([None, "platform"]))
    def hand_over(self, origin: int, heir: int, limit: int, context: str | None) -> None:
        error: type[psycopg.Error] | None = None if self.takes(heir) and origin != heir else NOT_THIS_WAY
        if error is None and self.generations.get(origin) == "live":
            error = NOT_LIKE_THIS
        asked = [origin, heir, context, limit]
        count = self.ask("select core.outbox_hand_over(%s, %s, %s, %s)", asked, error)
        if error is not None:
            return
        waiting = self.waiting(origin, broadcast=False)
        if context is None:
            waiting |= self.waiting(origin, broadcast=True)
        moved = self.connection.execute(
            "select id from core.outbox where generation = %s and id = any (%s)", [heir, list(waiting)]
        ).fetchall()
        assert count == (len(moved),) == (min(limit, len(waiting)),)
        for (event_id,) in moved:
            self.rows[event_id].generation = heir

    # the brake

    # Mostly it is let go: while it is pulled, little happens.
    @rule(context=st.sampled_from(["platform", "*"]), pull=st.sampled_from([True, False, False]))
    def brake(self, context: str, *, pull: bool) -> None:
        is_pulled = context in self.brakes
        if pull:
            assert self.ask("select core.brake_pull(%s, 'ada', 'r')", [context]) == (not is_pulled,)
            self.brakes.add(context)
        else:
            assert self.ask("select core.brake_release(%s)", [context]) == (is_pulled,)
            self.brakes.discard(context)
            for generation in self.stamps:
                self.split(generation)

    # the sweep

    @precondition(is_any("failed"))
    @rule(data=st.data())
    def take_back_a_discard(self, data: st.DataObject) -> None:
        event_id = self.some(data)
        row = self.rows[event_id]
        if row.status == "failed" and row.put_away:
            self.connection.execute("update core.outbox set deleted_at = null where id = %s", [event_id])
            row.put_away = False

    def sweep(self, statement: LiteralString, grace: str) -> tuple[int, int]:
        assert self.ask("select core.sweep_begin('machine')", []) == (True,)
        put_away, deleted, more = self.ask(statement, [grace])
        assert not more
        return put_away, deleted

    @precondition(lambda machine: bool(machine.rows))
    @rule(grace=GRACES)
    def sweep_outbox(self, grace: str) -> None:
        old = [row for row in self.rows.values() if row.status == "delivered" and not row.put_away]
        over = [event_id for event_id, row in self.rows.items() if row.put_away and grace == "0 s"]
        swept = self.sweep("select * from core.sweep_outbox('machine', 0, 999, '0 s', %s)", grace)
        assert swept == (len(old), len(over))
        for row in old:
            row.put_away = True
        for event_id in over:
            assert self.rows.pop(event_id).status in {"delivered", "failed"}

    @precondition(lambda machine: bool(machine.handled))
    @rule(grace=GRACES)
    def sweep_records(self, grace: str) -> None:
        free = self.handled.keys() - {row.key for row in self.rows.values()}
        old = free - self.old_records
        over = free & self.old_records if grace == "0 s" else set()
        swept = self.sweep("select * from core.sweep_handled('machine', 0, 999, '0 s', %s)", grace)
        assert swept == (len(old), len(over))
        self.old_records = (self.old_records | old) - over
        self.swept |= over
        for key in over:
            del self.handled[key]

    # what must hold

    @invariant()
    def no_key_took_effect_twice(self) -> None:
        """Unless its record was swept away, and every event that had it before."""
        assert {key for key, times in self.effects.items() if times > 1} <= self.swept
        assert self.effects.keys() <= self.handled.keys() | self.swept

    @invariant()
    def the_generations_are_those_of_the_model(self) -> None:
        found = self.connection.execute("select generation, status from core.deployments")
        assert dict(found.fetchall()) == self.generations


def prepare_releases(connection: Connection) -> None:
    prepare(connection)
    connection.execute("delete from core.deployments where generation = 0")
    connection.execute("insert into core.deployments (generation) values (3)")
    connection.execute(
        "insert into core.subscriptions (generation, context, event_type, handler_name, max_attempts)"
        " select n, context, event_type, handler_name, max_attempts"
        " from core.subscriptions cross join generate_series(2, 3) as n"
    )


@pytest.mark.timeout(300)
def test_people_at_the_controls_break_nothing_in_any_order(connection: Connection) -> None:
    prepare_releases(connection)
    run_machine(40, shrink=True, machine=Operation, steps=60)


MUTATIONS: dict[str, tuple[str, ...]] = {
    "what failed is put away": (
        "sweep_outbox_leaf",
        "and status = ''delivered'' and deleted_at is null",
        "and deleted_at is null",
        "and delivered_at < $3 limit",
        "and coalesce(delivered_at, first_failed_at) < $3 limit",
    ),
    "a record goes before its rows": (
        "sweep_handled_leaf",
        "and not core.outbox_key_lives(idempotency_key) limit",
        "limit",
    ),
    "a generation is retired with rows left": ("deployment_retire", "if v_blocking > 0 then", "if v_blocking < 0 then"),
    "broadcasts are not handed over": (
        "outbox_hand_over",
        "order by outbox.target, outbox.next_attempt_at",
        "and outbox.target is not null order by outbox.next_attempt_at",
    ),
    "rows are handed over to a retired one": (
        "outbox_hand_over",
        "if v_status is null or v_status = 'retired' then",
        "if v_status is null then",
    ),
    "the brake of all is not asked for": ("outbox_claim", "in (p_context, '*')", "in (p_context)"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_machine_notices_when_a_rule_of_operation_is_taken_out(connection: Connection, mutation: str) -> None:
    mutate(connection, *MUTATIONS[mutation])
    prepare_releases(connection)
    with pytest.raises((AssertionError, psycopg.Error)):
        run_machine(400, shrink=False, machine=Operation, steps=60)
