"""Any grant, however it is spelled, is found exactly when an object and a role belong to different contexts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from spectral.core.migrations.lint import Rule, lint_sql

CONTEXTS = ("platform", "worlds", "core")
GAPS = st.sampled_from(
    [" ", "  ", "\n", "\t", " /* to public */ ", " -- to platform_app\n", " /* a /* nested */ b */ "]
)
KINDS = {
    "table": ("select, insert", "table "),
    "plain table": ("select", ""),
    "columns": ("select (id), update (id, name)", ""),
    "sequence": ("usage", "sequence "),
    "function": ("execute", "function "),
    "type": ("usage", "type "),
    "everything": ("all privileges", "table "),
}


@dataclass(frozen=True)
class Name:
    """What the model knows of a schema or role: its spelling and whom it belongs to (None: nobody)."""

    spelling: str
    owner: str | None


@st.composite
def spelled(draw: st.DrawFn, name: str) -> str:
    if draw(st.booleans()):
        return f'"{name}"'
    return "".join(draw(st.sampled_from([letter, letter.upper()])) for letter in name)


@st.composite
def schemas(draw: st.DrawFn) -> Name:
    schema = draw(st.sampled_from([*CONTEXTS, "audit", "worlds_archive", "public"]))
    return Name(draw(spelled(schema)), schema if schema in CONTEXTS else None)


@st.composite
def roles(draw: st.DrawFn) -> Name:
    if draw(st.integers(0, 9)) == 0:
        return Name(draw(spelled("public")), "everybody")
    prefix = draw(st.sampled_from([*CONTEXTS, "spectral", "auditor", "worldsmith"]))
    suffix = draw(st.sampled_from(["_app", "_worker", "_x_y"] if prefix == "spectral" else ["", "_app", "_x_y"]))
    owner = "core" if prefix == "spectral" else prefix
    return Name(draw(spelled(prefix + suffix)), owner if owner in CONTEXTS else None)


def crosses(objects: list[Name], grantees: list[Name]) -> bool:
    return any(
        target.owner is not None and role.owner is not None and target.owner != role.owner
        for target in objects
        for role in grantees
    )


@st.composite
def separated(draw: st.DrawFn, words: list[str]) -> str:
    return "".join(word + draw(GAPS) for word in words)


@st.composite
def grants(draw: st.DrawFn) -> tuple[str, int, bool]:
    objects = draw(st.lists(schemas(), min_size=1, max_size=4))
    grantees = draw(st.lists(roles(), min_size=1, max_size=4))
    privileges, kind = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    arguments = draw(st.sampled_from(["", "()", "(int, text[])"])) if kind == "function " else ""
    dot = draw(st.sampled_from([".", " . "]))
    listed = f",{draw(GAPS)}".join(f"{schema.spelling}{dot}{draw(spelled('card'))}{arguments}" for schema in objects)
    receivers = f"{draw(GAPS)},".join(f"{draw(st.sampled_from(['', 'group ']))}{role.spelling}" for role in grantees)
    option = draw(st.sampled_from(["", "with grant option"]))
    words = ["grant", privileges, "on", kind + listed, draw(st.sampled_from(["to", "TO"])), receivers, option]
    before = draw(st.sampled_from(["", "select 'ü; grant';\n", "-- é\n\n"]))
    return before + draw(separated(words)) + ";", before.count("\n") + 1, crosses(objects, grantees)


@settings(max_examples=120, deadline=None)
@given(grants())
def test_a_grant_is_found_exactly_when_it_crosses_contexts(case: tuple[str, int, bool]) -> None:
    sql, line, crossing = case
    findings = lint_sql(sql, path=Path("m.sql"))
    assert {finding.rule for finding in findings} == ({Rule.CROSS_CONTEXT_GRANT} if crossing else set())
    assert {finding.line for finding in findings} <= {line}


@settings(max_examples=100, deadline=None)
@given(grants())
def test_the_same_grant_is_found_inside_code(case: tuple[str, int, bool]) -> None:
    sql, _, crossing = case
    expected = {Rule.CROSS_CONTEXT_GRANT} if crossing else set[Rule]()
    body = f"create function audit.f() returns void language sql as $body$ {sql} $body$"
    executed = f"do $do$ begin execute $sql$ {sql} $sql$; end $do$"
    for hidden in (body, executed):
        assert {finding.rule for finding in lint_sql(hidden, path=Path("m.sql"))} == expected


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("grant selcto\n;'\"$-/*%\\()é\0|:=."), max_size=60))
def test_no_text_makes_the_lint_fail(text: str) -> None:
    lint_sql(text, path=Path("m.sql"))
    lint_sql(f"do $outer$ begin {text} end $outer$", path=Path("m.sql"))
    lint_sql("do $outer$ begin execute '" + text.replace("'", "''") + "' || x; end $outer$", path=Path("m.sql"))
