"""`spectral agent-tasks` in the hands of a person: find, look, approve, reject, cancel, sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of
from spectral.core.migrations import bundled_directory, up
from spectral.platform.agent_tasks.operations import MIGRATIONS
from tests.acceptance.cli_desk import Desk
from tests.migrations.schema import role

SECRET: Final = "canary-input"


class Tasks(Desk):
    """A desk with a database that has tasks."""

    def execute(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def enqueue(self, kind: str = "research") -> UUID:
        query = "select id from platform.agent_task_enqueue(%s, jsonb_build_object('topic', %s::text), 'ada')"
        ((found,),) = self.execute(query, kind, SECRET)
        return UUID(str(found))

    def begin(self, task_id: UUID, ttl: str = "1 minute") -> UUID:
        token = uuid4()
        query = "select status from platform.agent_task_begin(%s, %s, 'worker-1', %s, %s)"
        assert self.execute(query, task_id, token, uuid4(), ttl) == [("running",)]
        return token

    def asking(self) -> UUID:
        task_id = self.enqueue()
        token = self.begin(task_id)
        self.execute(
            "select platform.agent_task_finish(%s, %s, 'waiting_for_approval', 'Delete 40 files?')", task_id, token
        )
        return task_id

    def state(self, task_id: UUID) -> str:
        ((status,),) = self.execute("select status from platform.agent_tasks where id = %s", task_id)
        return str(status)


@pytest.fixture
def tasks(database: str, tmp_path: Path) -> Tasks:
    up(database, directories=[bundled_directory(), MIGRATIONS])
    return Tasks(database, tmp_path)


@pytest.fixture
def bare(postgres: PostgresServer, tmp_path: Path) -> Iterator[Desk]:
    dsn = postgres.create_database()
    yield Desk(dsn, tmp_path)
    postgres.drop_database(database_of(dsn))


def test_tasks_are_listed_by_state_without_what_they_were_given(tasks: Tasks) -> None:
    asking, queued, stalled = tasks.asking(), tasks.enqueue("other"), tasks.enqueue()
    tasks.begin(stalled, "1 microsecond")
    everything = tasks.spectral("agent-tasks", "list")
    assert everything.code == 0
    assert [line.split()[0] for line in everything.out.splitlines()[1:]] == [str(stalled), str(queued), str(asking)]
    assert "stalled" in everything.out
    assert SECRET not in everything.out

    waiting = tasks.spectral("agent-tasks", "list", "--status", "waiting_for_approval", "--json")
    (item,) = json.loads(waiting.out)["items"]
    assert (item["id"], item["question"]) == (str(asking), "Delete 40 files?")

    first = tasks.spectral("agent-tasks", "list", "--limit", "2", "--json")
    cursor = json.loads(first.out)["next_cursor"]
    rest = tasks.spectral("agent-tasks", "list", "--cursor", cursor)
    assert str(asking) in rest.out
    assert str(queued) not in rest.out
    assert tasks.spectral("agent-tasks", "list", "--status", "sleeping").code == 2
    assert tasks.spectral("agent-tasks", "list", "--cursor", "x").code == 1


def test_one_task_is_shown_whole(tasks: Tasks) -> None:
    asking = tasks.asking()
    shown = tasks.spectral("agent-tasks", "show", str(asking))
    assert shown.code == 0
    for part in ("research, waiting for approval", "Delete 40 files?", SECRET, "worker-1", "by ada"):
        assert part in shown.out
    assert f"spectral agent-tasks approve {asking}" in shown.err
    document = json.loads(tasks.spectral("agent-tasks", "show", str(asking), "--json").out)
    assert document["input"] == {"topic": SECRET}
    assert [run["outcome"] for run in document["runs"]] == ["waiting_for_approval"]


def test_an_approval_is_asked_for_then_kept_on_the_task_and_told_to_the_workers(tasks: Tasks) -> None:
    asking = tasks.asking()
    unasked = tasks.spectral("agent-tasks", "approve", str(asking))
    assert (unasked.code, unasked.out) == (5, "")
    dry = tasks.spectral("agent-tasks", "approve", str(asking), "--dry-run")
    assert dry.code == 0
    assert "would go on" in dry.err
    assert tasks.state(asking) == "waiting_for_approval"

    words = ("agent-tasks", "approve", str(asking), "--by", "ada", "--reason", "looks right", "--yes", "--json")
    done = tasks.spectral(*words)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["status"] == "queued"
    assert tasks.execute("select id::text, generation from core.outbox where event_type like '%%resumed'") == [
        (document["event_id"], 1)
    ]
    assert tasks.execute("select decision, decided_by, decision_reason from platform.agent_tasks") == [
        ("approved", "ada", "looks right")
    ]
    again = tasks.spectral(*words)
    assert (again.code, again.out) == (1, "")
    assert again.err.endswith(f"  try: spectral agent-tasks show {asking}\n")


def test_a_rejection_ends_the_task(tasks: Tasks) -> None:
    asking = tasks.asking()
    done = tasks.spectral("agent-tasks", "reject", str(asking), "--reason", "too dear", "--by", "ada", "--yes")
    assert done.code == 0, done.err
    assert tasks.state(asking) == "rejected"
    ((login,),) = tasks.execute("select session_user")
    shown = tasks.spectral("agent-tasks", "show", str(asking)).out
    assert f"rejected by ada (login {login}) too dear" in shown


def test_what_runs_is_told_to_stop_and_what_waits_is_cancelled(tasks: Tasks) -> None:
    queued, running = tasks.enqueue(), tasks.enqueue()
    tasks.begin(running)
    for task_id, said, state in ((queued, "cancelled", "cancelled"), (running, "told to stop", "running")):
        done = tasks.spectral("agent-tasks", "cancel", str(task_id), "--reason", "not needed", "--yes")
        assert (done.code, done.err) == (0, f"{task_id}: {said}\n")
        assert tasks.state(task_id) == state
    assert "running, told to stop" in tasks.spectral("agent-tasks", "list").out
    assert tasks.spectral("agent-tasks", "cancel", str(queued), "--yes").code == 1


def test_what_ended_long_ago_is_swept_by_a_login_that_may_do_nothing_else(tasks: Tasks) -> None:
    old, young = tasks.enqueue(), tasks.enqueue()
    for each in (old, young):
        tasks.execute("select platform.agent_task_cancel(%s)", each)
    with psycopg.connect(tasks.dsn) as connection:
        connection.execute("set session_replication_role = replica")  # past the guard: time itself is moved
        connection.execute("update platform.agent_tasks set ended_at = now() - interval '91 days' where id = %s", [old])
    put_away = "select id from platform.agent_tasks where deleted_at is not null"
    with role(tasks.dsn, groups=("spectral_retention",)) as dsn:
        sweeper = Desk(dsn, tasks.directory)
        unasked = sweeper.spectral("agent-tasks", "sweep")
        assert (unasked.code, unasked.out) == (5, "")
        dry = sweeper.spectral("agent-tasks", "sweep", "--dry-run", "--json")
        assert (dry.code, json.loads(dry.out)) == (0, {"put_away": 1, "deleted": 0, "dry_run": True})
        assert tasks.execute(put_away) == []
        done = sweeper.spectral("agent-tasks", "sweep", "--yes")
        assert (done.code, done.err) == (0, "1 put away, 0 deleted\n")
    assert tasks.execute(put_away) == [(old,)]


@pytest.mark.parametrize("verb", ["show", "approve", "reject", "cancel"])
def test_a_task_that_does_not_exist_is_3(tasks: Tasks, verb: str) -> None:
    ran = tasks.spectral("agent-tasks", verb, str(UUID(int=7)), *(["--yes"] if verb != "show" else []))
    assert (ran.code, ran.out) == (3, "")
    assert str(UUID(int=7)) in ran.err
    assert ran.err.endswith("  try: spectral agent-tasks list\n")


def test_a_database_without_agent_tasks_is_told_which_migrations_it_lacks(
    database: str, tmp_path: Path, bare: Desk
) -> None:
    without = Desk(database, tmp_path).spectral("agent-tasks", "list")
    assert (without.code, without.out) == (2, "")
    assert without.err.endswith(f"spectral migrate up --directory {MIGRATIONS}\n")
    nothing = bare.spectral("agent-tasks", "list")
    assert (nothing.code, nothing.out) == (2, "")
    assert nothing.err.endswith("spectral migrate up\n")
