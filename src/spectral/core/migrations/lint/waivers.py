"""Waivers: `-- spectral-lint: allow <rule> because <reason>` on the line above a statement.

A waiver that gives no reason, names no rule or allows nothing is a finding itself: exceptions stay argued and alive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral.core.migrations.lint.findings import Problem, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.migrations.lint.parser import Token
    from spectral.core.migrations.lint.source import Source

_MARK = "spectral-lint:"
_FORM = f"write on the line above the statement: -- {_MARK} allow <rule> because <reason>"


@dataclass(frozen=True, slots=True)
class Waiver:
    """One allowed rule for the statement that starts on `covered_line`; None when none starts below the comment."""

    rule: Rule
    line: int
    covered_line: int | None

    def covers(self, problem: Problem) -> bool:
        """Whether it stands above the statement with the problem, or above the one that contains it."""
        return self.rule is problem.rule and self.covered_line in {problem.line, problem.outermost_line}


def read_waivers(source: Source) -> tuple[list[Waiver], list[Problem]]:
    """The waivers among the comments of a text, and the complaints about those that are not well formed."""
    waivers: list[Waiver] = []
    problems: list[Problem] = []
    for position, token in enumerate(source.tokens):
        if not token.is_comment or not _comment_text(source, token).startswith(_MARK):
            continue
        line = source.line_at(token.start)
        read = _read_waiver(source, position)
        if isinstance(read, Waiver):
            waivers.append(read)
        else:
            problems.append(Problem(Rule.BAD_WAIVER, line, line, f"{read}; {_FORM}"))
    return waivers, problems


def apply_waivers(problems: list[Problem], waivers: list[Waiver]) -> Iterator[Problem]:
    """The problems that no waiver allows, and the waivers that allow no problem."""
    for problem in problems:
        if not any(waiver.covers(problem) for waiver in waivers):
            yield problem
    for waiver in waivers:
        if not any(waiver.covers(problem) for problem in problems):
            message = f"nothing on the next line breaks {waiver.rule}; remove the waiver or move it above the statement"
            yield Problem(Rule.UNUSED_WAIVER, waiver.line, waiver.line, message)


def _comment_text(source: Source, token: Token) -> str:
    return source.text[token.start : token.end].lstrip("-/* \t").rstrip()


def _read_waiver(source: Source, position: int) -> Waiver | str:
    token = source.tokens[position]
    line_start = source.text.rfind("\n", 0, token.start) + 1
    if token.name != "SQL_COMMENT" or source.text[line_start : token.start].strip():
        return "a waiver is a comment line of its own"
    words = _comment_text(source, token).removeprefix(_MARK).split()
    if words[:1] != ["allow"] or len(words) < 2:  # noqa: PLR2004  the verb and the rule
        return "the waiver does not say what it allows"
    rule = next((known for known in Rule if known == words[1]), None)
    if rule is None:
        return f"there is no rule {words[1]!r}"
    if not rule.can_be_waived:
        return f"{rule} is about the file and cannot be waived"
    if words[2:3] != ["because"] or not words[3:]:
        return f"the waiver of {rule} gives no reason"
    return Waiver(rule, source.line_at(token.start), _line_covered_from(source, position))


def _line_covered_from(source: Source, position: int) -> int | None:
    line = source.line_at(source.tokens[position].start)
    for token in source.tokens[position + 1 :]:
        if source.line_at(token.start) != line + 1:
            return None
        if not token.is_comment:
            return line + 1
        line = source.line_at(token.end)  # further comments may stand between a waiver and its statement
    return None
