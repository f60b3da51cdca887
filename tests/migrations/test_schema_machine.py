"""The schema's functions against a plain model of what they promise, in whatever order Hypothesis thinks of.

Two workers that may stall, die and come back as zombies; rows that share keys; a reaper, an operator, broadcasts. After
every step the table says what the model says, and no effect happened twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.migrations.sql import EVENT_TYPE, Claim, channels, claim, publish, settle

Connection = psycopg.Connection[Any]
HANDLER = "platform.project_scan"
MAX_ATTEMPTS = 6

KEYS = st.sampled_from(["a", "b", "c"])
WORKERS = st.sampled_from(["worker-1", "worker-2"])
GENERATIONS = st.runner().flatmap(lambda machine: st.sampled_from(machine.stamps))
BUSY = st.runner().flatmap(lambda machine: st.sampled_from(machine.busy() or machine.stamps))


@dataclass(slots=True)
class Expected:
    """What the model knows of a row."""

    key: str
    status: str = "pending"
    attempts: int = 0
    token: UUID | None = None
    suspect: bool = False
    cycles: int = 0
    put_away: bool = False
    generation: int = 1
    broadcast: bool = False


@dataclass(slots=True)
class Hands:
    """Claims a worker believes to have, stale ones included."""

    claims: list[Claim] = field(default_factory=list)


def somebody_has_claims(machine: Delivery) -> bool:
    return any(hands.claims for hands in machine.hands.values())


def is_any(status: str) -> Callable[[Delivery], bool]:
    return lambda machine: any(row.status == status for row in machine.rows.values())


class Delivery(RuleBasedStateMachine):
    connection: Connection  # set by the test

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[UUID, Expected] = {}
        self.handled: dict[str, UUID] = {}
        self.effects: Counter[str] = Counter()
        self.hands = {"worker-1": Hands(), "worker-2": Hands()}
        self.connection.execute("truncate core.outbox, core.event_handled, public.effects")

    def ask(
        self, statement: LiteralString, parameters: Sequence[object], error: type[psycopg.Error] | None = None
    ) -> tuple[Any, ...]:
        """The one row it answers, or nothing if it fails with this error as it should."""
        if error is None:
            (answer,) = self.connection.execute(statement, parameters).fetchall()
            return tuple(answer)
        with suppress(error):
            self.connection.execute(statement, parameters)
            raise AssertionError(statement)
        return ()

    # producers

    @rule(key=KEYS, generation=GENERATIONS)
    def publish(self, key: str, generation: int) -> None:
        event_id = publish(self.connection, p_idempotency_key=key, p_generation=generation)
        self.rows[event_id] = Expected(key, generation=generation)

    @rule(key=KEYS)
    def publish_and_roll_back(self, key: str) -> None:
        with self.connection.transaction(force_rollback=True):
            publish(self.connection, p_idempotency_key=key)

    @rule(key=KEYS, generation=GENERATIONS)
    def broadcast(self, key: str, generation: int) -> None:
        parent = publish(self.connection, target=None, p_idempotency_key=key, p_generation=generation)
        self.rows[parent] = Expected(key, generation=generation, broadcast=True)
        if self.splits_at_once:
            self.split(generation)

    def busy(self) -> Sequence[int]:
        """The generations that have something to do."""
        return sorted({row.generation for row in self.rows.values() if row.status == "pending"})

    def waiting(self, generation: int, *, broadcast: bool) -> set[UUID]:
        rows = self.rows.items()
        pending = {event_id for event_id, row in rows if row.status == "pending" and row.generation == generation}
        return {event_id for event_id in pending if self.rows[event_id].broadcast == broadcast}

    def split(self, generation: int) -> None:
        rows = self.connection.execute(
            "select parent_id, child_id from core.outbox_fan_out(%s, %s)", [[generation], channels(generation)]
        ).fetchall()
        assert {parent for parent, _ in rows} == self.splittable(generation)
        for parent, child in rows:
            self.rows[parent].status = "delivered"
            assert (child is not None) == self.is_known(generation)  # otherwise nobody has subscribed
            if child is not None:
                self.rows[child] = Expected(self.rows[parent].key, generation=generation)

    # what people at the controls may change

    stamps: Sequence[int] = (1,)
    """The generations that publishers and workers say they are of."""

    splits_at_once = True

    def is_known(self, generation: int) -> bool:
        return generation == 1

    def takes(self, generation: int) -> bool:
        return self.is_known(generation)

    def splittable(self, generation: int) -> set[UUID]:
        return self.waiting(generation, broadcast=True)

    def claimable(self, generation: int) -> set[UUID]:
        return self.waiting(generation, broadcast=False)

    # workers

    @precondition(is_any("pending"))
    @rule(worker=WORKERS, limit=st.integers(1, 4), generation=BUSY)
    def claim(self, worker: str, limit: int, generation: int) -> None:
        claims = claim(self.connection, worker=worker, limit=limit, generation=generation)
        claimable = self.claimable(generation)
        assert bool(claims) == bool(claimable)
        assert {held.id for held in claims} <= claimable
        assert len(claims) <= limit
        if any(self.rows[held.id].suspect for held in claims):
            assert len(claims) == 1
        for held in claims:
            row = self.rows[held.id]
            assert (row.status, held.attempts) == ("pending", row.attempts + 1)
            row.status, row.attempts, row.token = "in_flight", held.attempts, held.token
        self.hands[worker].claims.extend(claims)

    def take(self, data: st.DataObject) -> Claim:
        worker = data.draw(st.sampled_from([name for name, hands in self.hands.items() if hands.claims]))
        claims = self.hands[worker].claims
        return claims.pop(data.draw(st.integers(0, len(claims) - 1)))

    def holds(self, held: Claim) -> bool:
        return held.id in self.rows and self.rows[held.id].token == held.token

    def begin(self, held: Claim) -> str:
        statement = "select verdict from core.outbox_begin(%s, %s, %s)"
        found = self.connection.execute(statement, [[held.id], [held.token], [HANDLER]]).fetchone()
        assert found is not None
        expected = "fenced"
        if self.holds(held):
            expected = "handled" if self.rows[held.id].key in self.handled else "run"
        assert found[0] == expected
        return expected

    def effect(self, held: Claim) -> None:
        self.connection.execute("insert into public.effects values (%s)", [self.rows[held.id].key])

    @precondition(somebody_has_claims)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.deliver_one(self.take(data))

    def deliver_one(self, held: Claim) -> None:
        with self.connection.transaction():
            verdict = self.begin(held)
            if verdict == "run":
                self.effect(held)
            settled = settle(self.connection, [held], "delivered")
        assert settled == ([] if verdict == "fenced" else [(held.id, "delivered")])
        if verdict != "fenced":
            self.end(held, "delivered")
            self.handled.setdefault(self.rows[held.id].key, held.id)
            self.effects[self.rows[held.id].key] += verdict == "run"

    @precondition(somebody_has_claims)
    @rule(data=st.data(), outcome=st.sampled_from(["retry", "dead_letter"]))
    def fail(self, data: st.DataObject, outcome: str) -> None:
        self.fail_one(self.take(data), outcome)

    def fail_one(self, held: Claim, outcome: str) -> None:
        with self.connection.transaction(force_rollback=True):
            if self.begin(held) == "run":
                self.effect(held)
        stands = self.holds(held)
        status = "pending" if outcome == "retry" else "failed"
        assert settle(self.connection, [held], outcome, "OSError: x") == ([(held.id, status)] if stands else [])
        if stands:
            self.end(held, status)

    @rule(key=KEYS, generation=GENERATIONS, outcome=st.sampled_from(["delivered", "dead_letter"]))
    def go_all_the_way(self, key: str, generation: int, outcome: str) -> None:
        """Publish, claim and settle in one step: the shortest way to a key that is known, or to the DLQ."""
        self.publish(key, generation)
        self.split(generation)
        self.claim("worker-1", 4, generation)
        claims = self.hands["worker-1"].claims
        while claims:
            self.deliver_one(claims.pop()) if outcome == "delivered" else self.fail_one(claims.pop(), outcome)

    @precondition(somebody_has_claims)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        held = self.take(data)
        stands = self.holds(held)
        statement = "select * from core.outbox_release(%s, %s)"
        found = self.connection.execute(statement, [[held.id], [held.token]]).fetchall()
        assert found == ([(held.id,)] if stands else [])
        if stands:
            row = self.rows[held.id]
            row.status, row.token, row.attempts = "pending", None, row.attempts - 1
            row.suspect = row.suspect and row.attempts > 0

    @precondition(somebody_has_claims)
    @rule(worker=WORKERS)
    def renew(self, worker: str) -> None:
        claims = list({held.id: held for held in self.hands[worker].claims}.values())
        statement = "select * from core.outbox_renew(%s, %s)"
        found = self.connection.execute(statement, [[held.id for held in claims], [held.token for held in claims]])
        assert {event_id for (event_id,) in found} == {held.id for held in claims if self.holds(held)}

    @precondition(somebody_has_claims)
    @rule(worker=WORKERS)
    def die(self, worker: str) -> None:
        self.hands[worker].claims.clear()

    @precondition(is_any("in_flight"))
    @rule()
    def reap_everything(self) -> None:
        """Every lease has run out; the workers that had them are zombies now."""
        rows = self.connection.execute("select id, status from core.outbox_reap('0 s', '0 s')").fetchall()
        in_flight = {event_id for event_id, row in self.rows.items() if row.status == "in_flight"}
        assert {event_id for event_id, _ in rows} == in_flight
        for event_id, status in rows:
            row = self.rows[event_id]
            assert status == ("failed" if row.attempts >= MAX_ATTEMPTS else "pending")
            row.status, row.token, row.suspect = status, None, True

    def end(self, held: Claim, status: str) -> None:
        row = self.rows[held.id]
        row.status, row.token, row.suspect = status, None, False

    # operators

    def some(self, data: st.DataObject) -> UUID:
        """Mostly one that is in the DLQ, sometimes one that an operator takes for it."""
        failed = [event_id for event_id, row in self.rows.items() if row.status == "failed"]
        return data.draw(st.sampled_from(sorted(failed)) | st.sampled_from(sorted(self.rows)))

    @precondition(is_any("failed"))
    @rule(data=st.data(), generation=GENERATIONS)
    def replay(self, data: st.DataObject, generation: int) -> None:
        event_id = self.some(data)
        row = self.rows[event_id]
        statement = "select cycle, refusal from core.outbox_replay_many(%s, %s, 'ada')"
        error = None if self.takes(generation) else psycopg.errors.InvalidParameterValue
        found = self.ask(statement, [[event_id], generation], error)
        if error is not None:
            return
        if row.status == "failed" and not row.put_away:
            row.status, row.attempts, row.cycles, row.suspect = "pending", 0, row.cycles + 1, False
            row.generation = generation
            assert found == (row.cycles, None)
        else:
            assert found == (None, "discarded" if row.put_away else row.status)

    @precondition(is_any("failed"))
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        event_id = self.some(data)
        row = self.rows[event_id]
        found = self.connection.execute("select refusal from core.outbox_discard(%s)", [[event_id]]).fetchone()
        if row.status == "failed" and not row.put_away:
            row.put_away = True
            assert found == (None,)
        else:
            assert found == ("discarded" if row.put_away else row.status,)

    # what must hold

    @invariant()
    def the_table_says_what_the_model_says(self) -> None:
        found = self.connection.execute(
            "select id, status, attempts, claim_token, jsonb_path_query_array(failure_history, '$[*].cycle'),"
            " deleted_at is not null, generation from core.outbox"
        ).fetchall()
        assert {event_id: tuple(rest) for event_id, *rest in found} == {
            event_id: (
                row.status,
                row.attempts,
                row.token,
                list(range(1, row.cycles + 1)),
                row.put_away,
                row.generation,
            )
            for event_id, row in self.rows.items()
        }

    @invariant()
    def every_effect_happened_once_and_has_its_record(self) -> None:
        effects = self.connection.execute("select key, count(*) from public.effects group by key").fetchall()
        assert dict(effects) == self.effects
        records = self.connection.execute("select idempotency_key, event_id from core.event_handled").fetchall()
        assert dict(records) == self.handled

    @invariant()
    def no_key_took_effect_twice(self) -> None:
        assert self.effects == dict.fromkeys(self.handled, 1)


def prepare(connection: Connection) -> None:
    connection.execute("create table public.effects (key text not null)")
    connection.execute(
        "insert into core.subscriptions (generation, context, event_type, handler_name, max_attempts)"
        " values (1, 'platform', %s, %s, %s)",
        [EVENT_TYPE, HANDLER, MAX_ATTEMPTS],
    )
    Delivery.connection = connection


def run_machine(examples: int, *, shrink: bool, machine: type[Delivery] = Delivery, steps: int = 40) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            # A mutant only has to be noticed, and always by the same examples.
            phases=tuple(Phase) if shrink else (Phase.generate,),
            derandomize=not shrink,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


@pytest.mark.timeout(300)
def test_the_functions_do_what_the_model_says_in_any_order(connection: Connection) -> None:
    prepare(connection)
    run_machine(50, shrink=True)


# The function, what is taken out of it, and what is put there instead: with it, the machine must notice.
MUTATIONS = {
    "settle without the fence": (
        "outbox_settle",
        "where outbox.claim_token = given.token",
        "where given.token = given.token",
    ),
    "begin without the fence": (
        "outbox_begin",
        "where outbox.claim_token = claim.token",
        "where claim.token = claim.token",
    ),
    "release without the fence": (
        "outbox_release",
        "where outbox.claim_token = given.token",
        "where given.token = given.token",
    ),
    "no gate": ("outbox_begin", "when passed.event_id is null then 'handled'", ""),
    "attempts not counted at the claim": ("outbox_claim", "attempts = outbox.attempts + 1,", ""),
    "suspects among others": (
        "outbox_claim",
        "and (outbox.attempts = 0 or outbox.last_error is null or outbox.last_error not like 'WorkerLostError:%')",
        "",
    ),
    "release keeps the attempt": ("outbox_release", "attempts = outbox.attempts - 1,", ""),
}


def mutate(connection: Connection, name: str, *words: str) -> None:
    """Put something else for these words of a function: what is said, what instead, and so on."""
    row = connection.execute(
        "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'core'::regnamespace and proname = %s", [name]
    ).fetchone()
    assert row is not None
    definition = str(row[0])
    for rule_text, instead in zip(words[::2], words[1::2], strict=True):
        assert rule_text in definition
        definition = definition.replace(rule_text, instead)
    connection.execute(definition.encode())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_machine_notices_when_a_rule_is_taken_out(connection: Connection, mutation: str) -> None:
    mutate(connection, *MUTATIONS[mutation])
    prepare(connection)
    with pytest.raises((AssertionError, psycopg.Error)):
        run_machine(400, shrink=False)  # most are noticed within a few
