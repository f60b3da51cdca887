"""PL/pgSQL bodies: the static SQL, the expressions and the dynamic SQL in them, each with its line.

pglast knows no types of other schemas and refuses bodies that use one (`declare x core.outbox`). Types do not matter
here, so the routine is rebuilt around the body with types it knows, line for line.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from spectral.core.migrations.lint.parser import UnreadableSqlError, parse_plpgsql, scan
from spectral.core.migrations.lint.tree import Node, root

if TYPE_CHECKING:
    from spectral.core.migrations.lint.parser import Token


class CodeKind(StrEnum):
    """How a piece of code reaches the server."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    EXPRESSION = "expression"
    MESSAGE = "message"  # the text of an error: shown, never executed
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class Code:
    """A piece of a body; `line` counts from the first line of the body."""

    kind: CodeKind
    text: str
    line: int


_STATIC_SQL = 0  # the parse mode of whole statements; the others are expressions and assignments
_DYNAMIC_FIELDS = {("PLpgSQL_stmt_dynexecute", "query"), ("PLpgSQL_stmt_dynfors", "query")}
_MESSAGE_KINDS = {"PLpgSQL_stmt_raise", "PLpgSQL_stmt_assert"}
_RETURN_TYPES_WITH_A_MEANING = {"trigger", "event_trigger", "void"}
_END_OF_TYPE = {"COLON_EQUALS", "ASCII_61", "DEFAULT", "COLLATE", "NOT", "ASCII_59"}


def read_plpgsql(body: str, routine: Node | None) -> list[Code]:
    """Everything in a body that holds SQL; `routine` is its CREATE statement, None for a DO block.

    Raises:
        UnreadableSqlError: when the body does not parse.
    """
    quoted = "'" + _with_known_types(body).replace("'", "''") + "'"
    tree = parse_plpgsql(f"do {quoted}" if routine is None else f"{_header(routine)} language plpgsql as {quoted}")
    found: list[Code] = []
    try:
        for function in root(tree).nodes("items"):
            _collect(function, CodeKind.EXPRESSION, 1, found)
    except RecursionError:
        raise UnreadableSqlError("the code is nested too deeply to be read") from None
    return sorted(found, key=lambda code: code.line)


def _collect(node: Node, kind: CodeKind, line: int, found: list[Code]) -> None:
    line = node.number("lineno", absent=line)
    if node.kind in {"PLpgSQL_stmt_commit", "PLpgSQL_stmt_rollback"}:
        found.append(Code(CodeKind.TRANSACTION, node.kind.removeprefix("PLpgSQL_stmt_"), line))
    if node.kind == "PLpgSQL_expr":
        is_statement = kind is CodeKind.EXPRESSION and node.number("parseMode") == _STATIC_SQL
        found.append(Code(CodeKind.STATIC if is_statement else kind, node.text("query"), line))
    for field, child in node.children():
        below = CodeKind.EXPRESSION
        if (node.kind, field) in _DYNAMIC_FIELDS or field == "dynquery":
            below = CodeKind.DYNAMIC
        elif node.kind in _MESSAGE_KINDS or kind is CodeKind.MESSAGE:
            below = CodeKind.MESSAGE
        _collect(child, below, line, found)


def _header(routine: Node) -> str:
    outputs: list[str] = []
    parameters: list[str] = []
    for parameter in routine.nodes("parameters"):
        mode, type_name = parameter.text("mode").removeprefix("FUNC_PARAM_"), _known_type(parameter.node("argType"))
        if mode in {"OUT", "INOUT", "TABLE"}:
            outputs.append(type_name)
        # pglast takes no array for an array after VARIADIC; to the body it is an input like any other.
        mode = {"DEFAULT": "in", "VARIADIC": "in", "TABLE": "out"}.get(mode, mode.lower())
        name = parameter.text("name")
        parameters.append(f"{mode} {_quoted(name) if name else ''} {type_name}")
    kind = "procedure" if routine.flag("is_procedure") else "function"
    return f"create {kind} f({', '.join(parameters)}) {_returns(routine, outputs)}"


def _returns(routine: Node, outputs: list[str]) -> str:
    declared = routine.node("returnType")
    if declared is None:
        return ""
    set_of = "setof " if declared.flag("setof") else ""
    if outputs:
        return f"returns {set_of}{outputs[0] if len(outputs) == 1 else 'record'}"
    return f"returns {set_of}{_known_type(declared)}"


def _known_type(declared: Node | None) -> str:
    if declared is None:
        return "record"
    if declared.nodes("arrayBounds"):
        return "text[]"
    *schema, name = declared.strings("names") or [""]
    if name in _RETURN_TYPES_WITH_A_MEANING:
        return name
    return _quoted(name) if schema in ([], ["pg_catalog"]) and not declared.flag("pct_type") else "record"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _with_known_types(body: str) -> str:
    tokens = [token for token in scan(body) if not token.is_comment]
    changed = body
    # From the last to the first, so that earlier offsets stay true.
    for start, end, type_name in reversed(_unknown_types(body, tokens)):
        changed = changed[:start] + type_name + "\n" * body.count("\n", start, end) + changed[end:]
    return changed


def _unknown_types(body: str, tokens: list[Token]) -> list[tuple[int, int, str]]:
    unknown: list[tuple[int, int, str]] = []
    declaring = False
    position = 0
    while position < len(tokens):
        name = tokens[position].name
        if name in {"DECLARE", "BEGIN_P"}:
            declaring = name == "DECLARE"
        elif declaring:
            end = position
            while end < len(tokens) and tokens[end].name != "ASCII_59":
                end += 1
            unknown += _unknown_type(body, tokens[position:end])
            position = end
        position += 1
    return unknown


def _unknown_type(body: str, declaration: list[Token]) -> list[tuple[int, int, str]]:
    first = 1
    if len(declaration) > 1 and body[declaration[1].start : declaration[1].end].lower() == "constant":
        first = 2
    type_tokens = declaration[first:]
    for position, token in enumerate(type_tokens):
        if token.name in _END_OF_TYPE:
            type_tokens = type_tokens[:position]
            break
    names = {token.name for token in type_tokens}
    if not type_tokens or names & {"CURSOR", "SCROLL", "NO", "ALIAS"} or "ASCII_37" in names:
        return []
    start, end = type_tokens[0].start, type_tokens[-1].end
    if names & {"ASCII_91", "ARRAY"}:
        return [(start, end, "text[]")]
    return [(start, end, "record")] if "ASCII_46" in names else []
