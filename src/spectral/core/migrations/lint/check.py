"""The lint itself: read a file, ask every rule about every statement, let waivers speak, sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.migrations.lint.access_rules import check_access, check_references
from spectral.core.migrations.lint.dynamic import is_hole
from spectral.core.migrations.lint.files import check_names, find_files
from spectral.core.migrations.lint.findings import Finding, Problem, Rule
from spectral.core.migrations.lint.privileges import Access, DefaultAccess, Membership, read_facts
from spectral.core.migrations.lint.reading import FoundStatement, read_file
from spectral.core.migrations.lint.routines import RoutineLedger
from spectral.core.migrations.lint.session_rules import check_session_role, check_transaction
from spectral.core.migrations.lint.settings import LintSettings
from spectral.core.migrations.lint.waivers import apply_waivers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_RULES = (check_access, check_references, check_transaction, check_session_role)


def lint_files(paths: Iterable[Path], settings: LintSettings | None = None) -> list[Finding]:
    """Lint migration files together, in the order of their names; a directory stands for the `.sql` files in it.

    Functions are followed from file to file. The findings are sorted by file, line and rule.

    Raises:
        ConfigurationError: pglast is not installed.
        OSError: a file cannot be read.
    """
    files = find_files(paths)
    ledger = RoutineLedger(settings or LintSettings())
    findings = list(check_names(files))
    for path in files:
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            findings.append(Finding(Rule.SYNTAX_ERROR, path, line, "the file is not UTF-8; save it as UTF-8"))
            continue
        findings += _lint_text(text, path, ledger)
    return _sorted(findings)


def lint_sql(text: str, *, path: Path, settings: LintSettings | None = None) -> list[Finding]:
    """Lint the text of one migration; `path` is only what the findings show.

    Raises:
        ConfigurationError: pglast is not installed.
    """
    return _sorted(_lint_text(text, path, RoutineLedger(settings or LintSettings())))


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: (finding.path.name, finding.path, finding.line, finding.rule))


def _lint_text(text: str, path: Path, ledger: RoutineLedger) -> Iterator[Finding]:
    reading = read_file(text)
    problems = reading.problems
    for found in reading.found:
        problems += _check(found, ledger)
    problems += ledger.close_file()
    for problem in apply_waivers(problems, reading.waivers):
        # Where the text did not parse, a waiver may belong to the very statement that was not seen.
        if reading.complete or problem.rule is not Rule.UNUSED_WAIVER:
            yield Finding(problem.rule, path, problem.line, problem.message)


def _check(found: FoundStatement, ledger: RoutineLedger) -> list[Problem]:
    statement = found.statement
    problems = [
        Problem(rule, statement.line, statement.outermost_line, message)
        for check in _RULES
        for rule, message in check(statement, ledger.settings)
    ]
    problems += ledger.follow(statement)
    if not problems and _grants_the_unknown(found):
        message = (
            "executes a grant whose object or role is only known when it runs; "
            "write the grant as a plain statement, or waive the rule and say who checks it"
        )
        problems.append(Problem(Rule.DYNAMIC_SQL_GRANT, statement.line, statement.outermost_line, message))
    return problems


def _grants_the_unknown(found: FoundStatement) -> bool:
    if found.template is None:
        return False
    for fact in read_facts(found.statement):
        match fact:
            case Access(target, role):
                names = {target.schema, role.name}
            case Membership(group, member):
                names = {group.name, member.name}
            case DefaultAccess() | _:
                names = set[str | None]()
        if any(map(is_hole, names)) or (found.template.raw and found.statement.node.kind.startswith("Grant")):
            return True
    return False
