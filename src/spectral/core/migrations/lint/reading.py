"""A file unfolded: its statements, and the statements inside their schemas, functions and DO blocks.

SQL inside code obeys the same rules as SQL in the open; what cannot be read is reported, never skipped in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spectral.core.migrations.lint.dynamic import (
    Template,
    assigned_expression,
    literals_of,
    mentions_grant,
    parse_expression,
    read_template,
)
from spectral.core.migrations.lint.findings import Problem, Rule
from spectral.core.migrations.lint.parser import UnreadableSqlError
from spectral.core.migrations.lint.plpgsql import Code, CodeKind, read_plpgsql
from spectral.core.migrations.lint.session_rules import check_set_config, transaction_message
from spectral.core.migrations.lint.source import (
    Place,
    Source,
    Statement,
    read_statements,
    read_statements_around_errors,
)
from spectral.core.migrations.lint.waivers import Waiver, read_waivers

if TYPE_CHECKING:
    from spectral.core.migrations.lint.tree import Node

_DYNAMIC_ADVICE = "write the grant as a plain statement, or waive the rule and say who checks it"


@dataclass(frozen=True, slots=True)
class FoundStatement:
    """A statement to be checked; `template` is the dynamic SQL it was read from, if any."""

    statement: Statement
    template: Template | None = None


@dataclass(slots=True)
class Reading:
    """What was found in one file."""

    found: list[FoundStatement] = field(default_factory=list[FoundStatement])
    problems: list[Problem] = field(default_factory=list[Problem])
    waivers: list[Waiver] = field(default_factory=list[Waiver])
    complete: bool = True


def read_file(text: str) -> Reading:
    """Unfold the text of a migration file; a mistake in it becomes a problem, the rest is read all the same."""
    reading, source = Reading(), Source(text)
    try:
        statements = read_statements(source)
    except UnreadableSqlError as error:
        line = source.line_at(error.offset)
        advice = "correct it; psql commands that start with a backslash are no SQL"
        reading.problems.append(Problem(Rule.SYNTAX_ERROR, line, line, f"{error.message}; {advice}"))
        reading.complete = False
        statements = read_statements_around_errors(source)
    _read_comments(source, reading)
    for statement in statements:
        _unfold(statement, reading)
    return reading


def _read_comments(source: Source, reading: Reading) -> None:
    try:
        waivers, complaints = read_waivers(source)
    except UnreadableSqlError:
        return  # reported where the same text failed to parse
    reading.waivers += waivers
    reading.problems += complaints


def _unfold(statement: Statement, reading: Reading) -> None:
    reading.found.append(FoundStatement(statement))
    node = statement.node
    for element in node.nodes("schemaElts") if node.kind == "CreateSchemaStmt" else ():
        _unfold(Statement(element, statement.source, statement.line, node.text("schemaname")), reading)
    if node.kind == "DoStmt":
        _unfold_body(statement, node.nodes("args"), reading)
    elif node.kind == "CreateFunctionStmt":
        _unfold_body(statement, node.nodes("options"), reading)
        _unfold_atomic_body(statement, reading)


def _unfold_atomic_body(statement: Statement, reading: Reading) -> None:
    body = statement.node.node("sql_body")
    place = Source(statement.source.text, statement.source.first_line, Place.ROUTINE, statement.outermost_line)
    for block in body.nodes("items") if body else ():
        for inner in block.nodes("items"):
            _unfold(Statement(inner, place, statement.line), reading)


def _unfold_body(statement: Statement, options: list[Node], reading: Reading) -> None:
    by_name = {option.text("defname"): option for option in options}
    code = by_name.get("as")
    if code is None:
        return
    is_do = statement.node.kind == "DoStmt"
    language = "plpgsql" if is_do else "sql"
    if "language" in by_name:
        language = "".join(value.text("sval") for value in by_name["language"].nodes("arg")).lower()
    body = _body_source(statement, code, Place.DO_BLOCK if is_do else Place.ROUTINE)
    try:
        if language == "sql":
            for inner in read_statements(body):
                _unfold(inner, reading)
        elif language == "plpgsql":
            _unfold_plpgsql(body, None if is_do else statement.node, reading)
        else:
            return
    except UnreadableSqlError as error:
        message = f"the {language} body cannot be read, so it may hide a grant: {error.message}; correct it"
        reading.problems.append(Problem(Rule.UNREADABLE_CODE, statement.line, statement.outermost_line, message))
    _read_comments(body, reading)


def _body_source(statement: Statement, code: Node, place: Place) -> Source:
    source = statement.source
    quote = source.first_token_from(source.offset_of_byte(code.number("location")), "SCONST")
    line = source.line_at(quote.start) if quote else statement.line
    text = "".join(part.text("sval") for part in code.nodes("arg")[:1])
    if source.place is Place.ROUTINE:
        place = Place.ROUTINE  # a DO block in a function runs when the function does
    return Source(text, line, place, statement.outermost_line)


def _unfold_plpgsql(body: Source, routine: Node | None, reading: Reading) -> None:
    pieces = read_plpgsql(body.text, routine)
    templates = [(piece, read_template(piece.text)) for piece in pieces if piece.kind is CodeKind.DYNAMIC]
    for piece in pieces:
        where = Source(piece.text, body.first_line + piece.line - 1, body.place, body.outermost_line)
        if piece.kind is CodeKind.STATIC:
            for inner in read_statements(where):
                _unfold(inner, reading)
        elif piece.kind is CodeKind.EXPRESSION:
            _check_expression(where, reading)
        elif piece.kind is CodeKind.TRANSACTION and body.place is Place.DO_BLOCK:
            _report(Rule.TRANSACTION_CONTROL, where, transaction_message(piece.text.upper()), reading)
    for piece, template in templates:
        _unfold_dynamic(piece, template, body, reading)
    if any(template.raw for _, template in templates):
        _report_grants_in_values(pieces, body, reading)


def _report(rule: Rule, where: Source, message: str, reading: Reading) -> None:
    outermost = where.first_line if where.outermost_line is None else where.outermost_line
    reading.problems.append(Problem(rule, where.first_line, outermost, message))


def _check_expression(where: Source, reading: Reading) -> None:
    node = parse_expression(where.text) or parse_expression(assigned_expression(where.text))
    for rule, message in check_set_config(node) if node else ():
        _report(rule, where, message, reading)


def _unfold_dynamic(piece: Code, template: Template, body: Source, reading: Reading) -> None:
    where = Source(template.text, body.first_line + piece.line - 1, body.place, body.outermost_line)
    try:
        statements = read_statements(where)
    except UnreadableSqlError:
        statements = None
    if any(map(mentions_grant, template.unused_literals)) or (statements is None and template.mentions_grant()):
        message = f"executes a grant that the lint cannot put together from its parts; {_DYNAMIC_ADVICE}"
        _report(Rule.DYNAMIC_SQL_GRANT, where, message, reading)
        return
    for statement in statements or ():
        # The text was computed: all its statements stand on the line of the EXECUTE.
        placed = Statement(statement.node, where, where.first_line)
        inner = Reading()
        _unfold(placed, inner)
        first, *others = inner.found
        reading.found += [FoundStatement(first.statement, template), *others]
        reading.problems += inner.problems


def _report_grants_in_values(pieces: list[Code], body: Source, reading: Reading) -> None:
    # `q := 'grant ...'; execute q` hides its text from the EXECUTE, but not from the body.
    for piece in pieces:
        if piece.kind in {CodeKind.STATIC, CodeKind.EXPRESSION} and any(map(mentions_grant, literals_of(piece.text))):
            where = Source(piece.text, body.first_line + piece.line - 1, body.place, body.outermost_line)
            message = f"builds a grant in a value while the same code executes values as SQL; {_DYNAMIC_ADVICE}"
            _report(Rule.DYNAMIC_SQL_GRANT, where, message, reading)
