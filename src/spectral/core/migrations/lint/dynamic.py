"""What `execute` would run: the known parts of its expression put together, with holes where values come in.

Literals, `||`, `format()`, `concat()`, `quote_ident()` and `quote_literal()` of literals are computed. Everything else
is a hole. A quoted hole (`%I`, `%L`) can only be one name or one literal; a raw hole can be any SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral.core.migrations.lint.parser import UnreadableSqlError, parse_sql, scan
from spectral.core.migrations.lint.tree import Node, root

if TYPE_CHECKING:
    from collections.abc import Iterable

# No unquoted name contains this mark, and no quoted one that a sane schema has.
_HOLE = "?hole?"
# Whoever runs the migrations; a grant to it says the same as GRANT ... TO CURRENT_USER in the open.
_CURRENT_ROLE = {"SVFOP_CURRENT_USER", "SVFOP_CURRENT_ROLE", "SVFOP_SESSION_USER", "SVFOP_USER"}


@dataclass(frozen=True, slots=True)
class Template:
    """SQL text with holes; `unused_literals` are the strings inside expressions that became holes."""

    text: str
    raw: bool = False
    unused_literals: tuple[str, ...] = ()

    def as_identifier(self) -> Template:
        """The text as `%I` would print it."""
        if self.raw:
            return Template(f'"{_HOLE}"', unused_literals=self.unused_literals)
        return Template('"' + self.text.replace('"', '""') + '"', unused_literals=self.unused_literals)

    def as_literal(self) -> Template:
        """The text as `%L` would print it."""
        return Template("'" + self.text.replace("'", "''") + "'", unused_literals=self.unused_literals)

    def mentions_grant(self) -> bool:
        """Whether any known part of it contains the word GRANT, other than as REVOKE GRANT OPTION FOR."""
        return mentions_grant(self.text) or any(map(mentions_grant, self.unused_literals))


def is_hole(name: str | None) -> bool:
    """Whether a name in parsed SQL stands for a value unknown to the lint."""
    return name is not None and _HOLE in name


def read_template(expression: str) -> Template:
    """Compute what can be computed of an SQL expression."""
    node = parse_expression(expression)
    try:
        return _hole(literals_of(expression)) if node is None else _evaluate(node)
    except RecursionError:
        return _hole(literals_of(expression))


def assigned_expression(assignment: str) -> str:
    """The right side of a PL/pgSQL assignment, `:=` or `=`; empty when it is none."""
    try:
        tokens = scan(assignment)
    except UnreadableSqlError:
        return ""
    return next((assignment[each.end :] for each in tokens if each.name in {"COLON_EQUALS", "ASCII_61"}), "")


def parse_expression(expression: str) -> Node | None:
    """The tree of a PL/pgSQL expression; None when it does not parse."""
    try:
        statements = root(parse_sql(f"select {expression}")).nodes("stmts")
    except UnreadableSqlError:
        return None
    select = statements[0].node("stmt") if statements else None
    targets = select.nodes("targetList") if select else []
    return targets[0].node("val") if targets else None


def mentions_grant(text: str) -> bool:
    """Whether the SQL tokens of a text contain GRANT; works on fragments with unbalanced quotes too."""
    try:
        names = [token.name for token in scan(text) if not token.is_comment]
    except UnreadableSqlError as error:
        # Look on both sides of the quote that is not closed.
        quote = min(error.offset, len(text) - 1)
        return mentions_grant(text[:quote]) or mentions_grant(text[quote + 1 :])
    return any(
        name == "GRANT" and (position == 0 or names[position - 1] != "REVOKE") for position, name in enumerate(names)
    )


def literals_of(expression: str) -> tuple[str, ...]:
    """The string constants of an expression or statement, parsed or not."""
    try:
        tokens = [token for token in scan(expression) if token.name in {"SCONST", "USCONST"}]
    except UnreadableSqlError:
        return (expression,)
    nodes = (parse_expression(expression[token.start : token.end]) for token in tokens)
    return tuple(_constant(node) or "" for node in nodes if node is not None)


def _hole(unused_literals: Iterable[str] = ()) -> Template:
    return Template(f'"{_HOLE}"', raw=True, unused_literals=tuple(unused_literals))


def _constant(node: Node) -> str | None:
    if node.kind != "A_Const":
        return None
    text, number = node.node("sval"), node.node("ival")
    if text is not None:
        return text.text("sval")
    if number is not None:
        return str(number.number("ival"))
    return "" if node.flag("isnull") else None


def _evaluate(node: Node) -> Template:
    constant = _constant(node)
    if constant is not None:
        return Template(constant)
    if node.text("op") in _CURRENT_ROLE:
        return Template("current_user")
    if node.kind == "TypeCast":
        inner = node.node("arg")
        return _evaluate(inner) if inner else _hole()
    if node.kind == "A_Expr" and node.strings("name") == ["||"]:
        sides = [side for side in (node.node("lexpr"), node.node("rexpr")) if side]
        return _join([_evaluate(side) for side in sides])
    if node.kind == "FuncCall" and not node.flag("func_variadic"):
        computed = _call(node.strings("funcname"), [_evaluate(argument) for argument in node.nodes("args")])
        if computed is not None:
            return computed
    constants = (_constant(below) for below in node.walk())
    return _hole(text for text in constants if text)


def _join(parts: list[Template]) -> Template:
    return Template(
        "".join(part.text for part in parts),
        raw=any(part.raw for part in parts),
        unused_literals=tuple(literal for part in parts for literal in part.unused_literals),
    )


def _call(name: list[str], arguments: list[Template]) -> Template | None:
    if name[:-1] not in ([], ["pg_catalog"]) or not arguments:
        return None
    match name[-1]:
        case "format" if not arguments[0].raw:
            return _format(arguments[0].text, arguments[1:])
        case "concat":
            return _join(arguments)
        case "quote_ident":
            return arguments[0].as_identifier()
        case "quote_literal" | "quote_nullable":
            return arguments[0].as_literal()
        case _:
            return None


def _format(pattern: str, arguments: list[Template]) -> Template | None:
    parts: list[Template] = []
    upcoming = 0
    known, *directives = pattern.split("%")
    parts.append(Template(known))
    while directives:
        directive = directives.pop(0)
        if not directive:  # "%%": the text behind it is plain
            parts.append(Template("%" + (directives.pop(0) if directives else "")))
            continue
        position, _, after = directive.partition("$")
        if position.isdecimal() and after:
            upcoming, directive = int(position) - 1, after
        spec = directive.lstrip("-0123456789")
        if spec[:1] not in {"s", "I", "L"} or not 0 <= upcoming < len(arguments):
            return None
        argument = arguments[upcoming]
        upcoming += 1
        quoted = {"s": argument, "I": argument.as_identifier(), "L": argument.as_literal()}[spec[0]]
        parts += [quoted, Template(spec[1:])]
    return _join(parts)
