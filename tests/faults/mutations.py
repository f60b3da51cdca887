"""Tests of faults are tested: each rule of the protocol is taken out of a copy of the tree, and a test must go red.

    python -m tests.faults.mutations [words of a mutation's name]

First every such test must be green on the copy as it is; then each mutant runs its own. A mutant that survives, or
cannot be run, makes the exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.faults.crew import ROOT
from tests.faults.mutants import MUTATIONS, Edit, Function, Mutation, NoTrigger

AT_ONCE: Final = 2
MINUTES: Final = 5
PARTS: Final = ("src", "apps", "supabase", "tests", "pyproject.toml")
PASSED, FAILED = 0, 1  # pytest's exit codes; every other one says that nothing was tested
LAST_MIGRATION: Final = "supabase/migrations/29991231235959_mutation.sql"


def apply(mutation: Mutation, tree: Path) -> None:
    """Change the copy; raises an `AssertionError` if a text is not there exactly once."""
    statements: list[str] = []
    for change in mutation.changes:
        match change:
            case Edit(file, old, new):
                text = (tree / file).read_text()
                assert text.count(old) == 1, f"{mutation.name}: {file} has {old!r} {text.count(old)} times"
                (tree / file).write_text(text.replace(old, new))
            case Function():
                statements.append(replacement(change))
            case NoTrigger(name, table):
                statements.append(f"drop trigger {name} on {table};")
    if statements:
        (tree / LAST_MIGRATION).write_text("\n".join(statements))


def replacement(change: Function) -> str:
    """SQL that rewrites a function from its own definition, and fails if there is nothing to rewrite."""
    return _REWRITE.format(name=change.name, old=f"$text${change.old}$text$", new=f"$text${change.new}$text$")


_REWRITE: Final = """
do $mutate$
declare
    v_definition text;
begin
    select pg_get_functiondef(function.oid) into strict v_definition
    from pg_proc as function
    where function.pronamespace = 'core'::regnamespace
      and function.proname = '{name}'
      and strpos(pg_get_functiondef(function.oid), {old}) > 0;
    execute replace(v_definition, {old}, {new});
end
$mutate$;
"""


@contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of what the tests need, to be changed at will."""
    with tempfile.TemporaryDirectory(prefix="spectral-mutant-") as name:
        tree = Path(name)
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, tree / part)
        yield tree


def run_tests(tree: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run tests on the copy; answers pytest's exit code and what it said."""
    sources = [str(tree / each) for each in ("src", "apps/ops/src", "apps/workers/src")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sources, str(tree)]), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=60 * MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED, "did not end in time"
    return done.returncode, done.stdout + done.stderr


def try_mutation(mutation: Mutation) -> tuple[str, float, str]:
    """Answers what became of the mutant, after how many seconds, and what the test said."""
    started = time.monotonic()
    with copied_tree() as tree:
        apply(mutation, tree)
        code, said = run_tests(tree, [mutation.test])
    outcome = {FAILED: "killed", PASSED: "SURVIVED"}.get(code, f"BROKEN ({code})")
    return outcome, time.monotonic() - started, said


def main(words: list[str]) -> int:
    """Try them all, or those with these words in their name; prints a table."""
    chosen = [each for each in MUTATIONS if all(word in each.name for word in words)]
    with copied_tree() as tree:
        code, said = run_tests(tree, dict.fromkeys(each.test for each in chosen))
    if code != PASSED:
        _say(said[-5000:], "without any mutation the tests are not green")
        return 1
    failures = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutation, (outcome, seconds, said) in zip(chosen, pool.map(try_mutation, chosen), strict=True):
            _say(f"{mutation.name:36} {outcome:12} {seconds:5.0f} s  {mutation.test.rpartition('::')[2]}")
            if outcome != "killed":
                failures += 1
                _say(said[-3000:])
    return 1 if failures else 0


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201  a program for a terminal


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
