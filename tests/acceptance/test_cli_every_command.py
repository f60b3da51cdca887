"""Every command there is, on a database with something of everything: its own example, run; and the promises of all.

The examples come from the help. Those that are plain commands are run in this process, through `main`, for a process
costs half a second; those with shell syntax, and those that run until they are stopped, are run as processes.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import UUID

import psycopg
import pytest

from spectral.core.embedded import PostgresServer
from spectral.core.migrations import bundled_directory, up
from spectral.platform.agent_tasks.operations import MIGRATIONS
from tests.acceptance.cli_desk import PASSWORD, PAYLOAD, Desk, Ran, ask_for_approval, copied, prepared
from tests.acceptance.worker_process import PATIENCE
from tests.memory import place_for_data
from tests.migrations.schema import outbox_row
from tests.unit.test_cli_tree import ALL, COMMANDS, Command, of

UNKNOWN: Final = UUID("00000000-0000-7000-8000-000000000000")

# or the group's name
NEEDS_NO_DATABASE: Final = frozenset({"version", "demo", "dev", "migrate lint", "catalog", "metrics"})
WAITS_FOR_IT: Final = frozenset({"worker", "mcp", "relay run"})
UNTIL_STOPPED: Final = frozenset({"worker", "dev", "mcp", "relay run"})
ELSEWHERE: Final = {"demo": "tests/acceptance/test_demo.py runs the same line"}
LINES: Final = frozenset({"tail", "top"})  # one JSON document for each event, or look
SHOWS_PAYLOADS: Final = frozenset({"events show", "dlq show", "agent-tasks show"})
AGENT_TASKS: Final = "agent-tasks"  # they have migrations of their own
PARTITIONED: Final = "partitioned"
# Nobody is there, and nobody is asked: events are to be taken from Postgres.
BROKER: Final = {"SPECTRAL_RELAY": "nats", "SPECTRAL_BROKER_URL": f"nats://me:{PASSWORD}@127.0.0.1:1"}

# What has to be so before an example makes sense, where the common ground is not enough.
SCENES: Final = {
    "generations retire": (
        "select core.deployment_promote(2); select core.outbox_reap('0', '0'); select core.outbox_hand_over(1, 2)"
    ),
    "generations rollback": "select core.deployment_promote(2)",
    "generations hand-over": "select core.deployment_promote(2)",
    "partitions disable": PARTITIONED,
    "partitions maintain": PARTITIONED,
    "brake off": "select core.brake_pull('platform', 'ada', 'billing is down')",
}
# Where an example writes its document into a file.
INTO_A_FILE: Final = {"catalog snapshot": ("--output", "contracts.json")}
QUICKER: Final = {"top": ("--interval", "0.1")}
UNHEALTHY: Final = frozenset({"status", "doctor"})  # with dead letters about, they say so

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHELL: Final = re.compile(r"\s(&&|\|\||[|>;]).*")
_COLOUR: Final = re.compile(r"\x1b\[(?:\d+;)*(?:[34]\d|9\d|10\d)(?:;\d+)*m")
_APP: Final = """
from spectral.core.events import Consumer, EventEnvelope

billing = Consumer("billing")

@billing.on("shop.order.placed")
async def send_invoice(event: EventEnvelope) -> None: ...
"""


def run(desk: Desk, command: Command, *more: str, without: tuple[str, ...] = (), terminal: bool = False) -> Ran:
    """The command's own example, or that with options added or taken away."""
    words = shlex.split(_SHELL.sub("", command.example))[1:]
    kept = [word for word in words if word not in without]
    added = (*more, *QUICKER.get(command.name, ()))
    return desk.spectral(*kept, *(each for each in added if each not in kept), terminal=terminal)


@pytest.fixture(scope="module")
def template(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The name of a database to copy for each test."""
    with prepared(postgres, migrated_template) as name:
        yield name


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A directory with the app of the examples; short and open, as `spectral dev` keeps its server there."""
    with TemporaryDirectory(prefix="spectral-cli-", dir=place_for_data()) as directory:
        Path(directory).chmod(0o711)
        (Path(directory) / "shop").mkdir()
        (Path(directory) / "shop/events.py").write_text(_APP)
        (Path(directory) / "supabase").mkdir()
        (Path(directory) / "supabase/migrations").symlink_to(Path(__file__).parents[2] / "supabase/migrations")
        yield Path(directory)


@pytest.fixture(scope="module")
def still_desks(postgres: PostgresServer, template: str, project: Path) -> Iterator[Callable[[str], Desk]]:
    """One for each scene, for all tests that leave it as it is, and make sure that they do."""
    with ExitStack() as stack:

        @functools.cache
        def desk_of(scenery: str) -> Desk:
            found = Desk(stack.enter_context(copied(postgres, template)), project)
            set_scene(found, scenery)
            return found

        yield desk_of


@pytest.fixture
def still_desk(still_desks: Callable[[str], Desk], command: Command) -> Desk:
    """What the command's example speaks of exists; it is others' too, and nothing is to be changed."""
    found = still_desks(scene_of(command))
    provide(found, command)
    return found


@pytest.fixture
def desk(postgres: PostgresServer, template: str, project: Path, command: Command) -> Iterator[Desk]:
    """The same, to do with as one likes."""
    with copied(postgres, template) as dsn:
        found = Desk(dsn, project)
        set_scene(found, scene_of(command))
        provide(found, command)
        yield found


def desk_for(command: Command, request: pytest.FixtureRequest) -> Desk:
    changes = command.changes or command.is_group
    found: Desk = request.getfixturevalue("desk" if changes else "still_desk")
    return found


def scene_of(command: Command) -> str:
    return AGENT_TASKS if command.path[:1] == (AGENT_TASKS,) else SCENES.get(command.name, "select 1")


def set_scene(desk: Desk, scenery: str) -> None:
    """What SCENES says, or the tables of agent tasks, or an outbox in months."""
    if scenery == AGENT_TASKS:
        up(desk.dsn, directories=[bundled_directory(), MIGRATIONS])
        return
    if scenery == PARTITIONED:
        assert desk.spectral("partitions", "enable", "--yes").code == 0
        return
    with psycopg.connect(desk.dsn, autocommit=True) as connection:
        connection.execute(scenery.encode())


def provide(desk: Desk, command: Command) -> None:
    """The event, or the task, whose id stands in the example."""
    with psycopg.connect(desk.dsn, autocommit=True) as connection:
        for found in map(UUID, _UUID.findall(command.example)):
            if scene_of(command) == AGENT_TASKS:
                ask_for_approval(connection, found)
            elif not connection.execute("select 1 from core.outbox where id = %s", [found]).fetchone():
                outbox_row(connection, "failed", id=found, payload={"note": PAYLOAD})


def expected(command: Command) -> set[int]:
    return {0, 4} if command.name in UNHEALTHY else {0}


def check_discretion(command: Command, ran: Ran) -> None:
    assert PASSWORD not in ran.out + ran.err
    if command.name not in SHOWS_PAYLOADS:
        assert PAYLOAD not in ran.out + ran.err


READS: Final = [each for each in COMMANDS if not each.changes and each.name not in {*UNTIL_STOPPED, *ELSEWHERE}]
CHANGES: Final = [each for each in COMMANDS if each.changes]
EXAMPLES: Final = [each for each in ALL if each.name not in {*UNTIL_STOPPED, *ELSEWHERE}]
NEEDS_DATABASE: Final = [
    each for each in COMMANDS if not {each.name, each.path[0]} & (NEEDS_NO_DATABASE | WAITS_FOR_IT)
]


@pytest.mark.parametrize("command", EXAMPLES, ids=of)
def test_the_example_in_the_help_runs(request: pytest.FixtureRequest, command: Command) -> None:
    desk = desk_for(command, request)
    ran = desk.shell(command.example) if _SHELL.search(command.example) else run(desk, command)
    if ran.code == 5 and command.asks:  # a person would be asked
        ran = run(desk, command, "--yes")
    assert ran.code in expected(command), ran.err
    check_discretion(command, ran)


@pytest.mark.parametrize("command", READS, ids=of)
def test_what_reads_changes_nothing(still_desk: Desk, command: Command) -> None:
    before = still_desk.fingerprint()
    assert run(still_desk, command).code in expected(command)
    assert still_desk.fingerprint() == before


@pytest.mark.parametrize("command", [each for each in COMMANDS if "--json" in each.options], ids=of)
def test_json_is_one_document_on_stdout(request: pytest.FixtureRequest, command: Command) -> None:
    if command.name in ELSEWHERE:
        assert command.example == "spectral demo --json"
        return
    desk = desk_for(command, request)
    elsewhere = INTO_A_FILE.get(command.name, ())
    ran = run(desk, command, "--json", *(["--yes"] if command.changes else []), without=elsewhere)
    assert ran.code in expected(command), ran.err
    documents = ran.out.splitlines() if command.name in LINES else [ran.out]
    assert documents
    for document in documents:
        assert isinstance(json.loads(document), dict)
    check_discretion(command, ran)


@pytest.mark.parametrize("command", CHANGES, ids=of)
def test_a_dry_run_changes_nothing_and_asks_nothing(still_desk: Desk, command: Command) -> None:
    before = still_desk.fingerprint()
    ran = run(still_desk, command, "--dry-run", without=("--yes", "-y"))
    assert ran.code == 0, ran.err
    assert ran.out + ran.err
    assert still_desk.fingerprint() == before


@pytest.mark.parametrize("command", [each for each in CHANGES if each.asks], ids=of)
def test_without_a_terminal_a_change_needs_a_yes(still_desk: Desk, command: Command) -> None:
    before = still_desk.fingerprint()
    ran = run(still_desk, command, without=("--yes", "-y", "--dry-run"))
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.endswith("say it with --yes\n")
    assert still_desk.fingerprint() == before


@pytest.mark.parametrize("command", NEEDS_DATABASE, ids=of)
def test_a_database_that_is_down_is_75_and_says_what_to_run(project: Path, command: Command) -> None:
    away = Desk(f"postgresql://me:{PASSWORD}@127.0.0.1:1/app", project)
    ran = run(away, command, *(["--yes"] if command.changes else []), without=("--all",))
    assert (ran.code, ran.out) == (75, "")
    assert "no connection to 127.0.0.1:1/app" in ran.err
    assert ran.err.splitlines()[-1].startswith("  try: ")
    check_discretion(command, ran)


@pytest.mark.parametrize(
    "command", [each for each in NEEDS_DATABASE if each.path[0] not in {"migrate", "doctor"}], ids=of
)
def test_a_database_without_the_schema_is_told_to_be_migrated(
    postgres: PostgresServer, project: Path, command: Command
) -> None:
    bare = Desk(postgres.dsn, project)
    ran = run(bare, command, *(["--yes"] if command.changes else []))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("spectral migrate up\n")


@pytest.mark.parametrize("command", NEEDS_DATABASE, ids=of)
def test_no_colour_is_shown_to_whoever_wants_none(still_desk: Desk, command: Command) -> None:
    plain = Desk(still_desk.dsn, still_desk.directory, {"NO_COLOR": "1", "TERM": "xterm-256color"})
    ran = run(plain, command, *(["--dry-run"] if command.changes else []), without=("--yes", "--json"), terminal=True)
    assert ran.code in expected(command), ran.err
    assert not _COLOUR.search(ran.out + ran.err)


@pytest.mark.parametrize("command", [each for each in COMMANDS if _UUID.search(each.example)], ids=of)
def test_an_event_or_a_task_that_does_not_exist_is_3(still_desk: Desk, command: Command) -> None:
    before = still_desk.fingerprint()
    words = [_UUID.sub(str(UNKNOWN), word) for word in shlex.split(command.example)[1:]]
    ran = still_desk.spectral(*words, *(["--yes"] if command.changes else []))
    assert (ran.code, ran.out) == (3, ""), ran.err
    assert str(UNKNOWN) in ran.err
    assert still_desk.fingerprint() == before


@pytest.mark.parametrize("command", [each for each in COMMANDS if "generation" in each.arguments], ids=of)
def test_a_generation_that_does_not_exist_is_3(still_desk: Desk, command: Command) -> None:
    ran = still_desk.spectral(*command.path, "4711", "--yes")
    assert (ran.code, ran.out) == (3, ""), ran.err
    assert ran.err.splitlines()[-1].startswith("  try: spectral ")


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.name in UNTIL_STOPPED], ids=of)
def test_the_example_of_what_runs_until_it_is_stopped_runs(still_desk: Desk, command: Command) -> None:
    line = command.example.replace("8080", "0")  # any free port: this one may be taken
    said_when_up = {"worker": "listening", "dev": "listening", "mcp": "writes are allowed", "relay run": "listening"}
    alive = said_when_up[command.name]
    with subprocess.Popen(
        shlex.split(line),
        cwd=still_desk.directory,
        env={**still_desk.environment, **(BROKER if command.name == "relay run" else {})},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        try:
            for said in process.stderr:
                assert PASSWORD not in said
                if alive in said:
                    break
            process.stdin.close()
            if command.name != "mcp":  # which ends when nobody talks to it any more
                process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
