"""The heart of the lint: power never crosses from one context to another, and never hides its extent."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, assert_never

from spectral.core.migrations.lint.findings import Rule
from spectral.core.migrations.lint.privileges import (
    Access,
    DatabaseObject,
    DefaultAccess,
    Membership,
    Role,
    Superuser,
    read_facts,
    read_relation,
    read_role,
)
from spectral.core.migrations.lint.settings import ALL_SEEING_ROLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.migrations.lint.privileges import Fact
    from spectral.core.migrations.lint.settings import LintSettings
    from spectral.core.migrations.lint.source import Statement
    from spectral.core.migrations.lint.tree import Node

Verdict: TypeAlias = tuple[Rule, str]


def check_access(statement: Statement, settings: LintSettings) -> Iterator[Verdict]:
    """Everything a statement hands to the wrong role, or in a way that cannot be attributed."""
    seen: set[Verdict] = set()
    for fact in read_facts(statement):
        for verdict in _check_fact(fact, settings):
            if verdict not in seen:
                seen.add(verdict)
                yield verdict


def _check_fact(fact: Fact, settings: LintSettings) -> Iterator[Verdict]:
    match fact:
        case Access():
            yield from _check_target(fact, settings)
            yield from _check_pair(fact, settings)
        case DefaultAccess():
            yield from _check_default_access(fact, settings)
        case Membership():
            yield from _check_membership(fact, settings)
        case Superuser(role):
            if settings.context_of_role(role.name) is not None:
                yield (
                    Rule.CROSS_CONTEXT_GRANT,
                    f"makes {role} a superuser, to whom every context is open; grant what it needs instead",
                )
        case _:
            assert_never(fact)


def _check_target(access: Access, settings: LintSettings) -> Iterator[Verdict]:
    target, role = access.target, access.role
    if target.schema_wide:
        yield (
            Rule.SCHEMA_WIDE_GRANT,
            f"grants {target} to {role}: a snapshot that hides what is granted; name each object",
        )
    if target.lives_in_schema and target.schema is None:
        yield (
            Rule.UNQUALIFIED_GRANT,
            (
                f"{access.how} {target} to {role}, but which {target.kind} depends on the search_path; "
                f"write the schema: <context>.{target.name}"
            ),
        )
    for name in (target.schema or "", "" if role.is_public else role.name):
        yield from _check_case(name, settings)


def _check_case(name: str, settings: LintSettings) -> Iterator[Verdict]:
    if settings.differs_by_case(name):
        yield (
            Rule.MIXED_CASE_NAME,
            (
                f'"{name}" differs by case only from a name that begins with {settings.owner_prefix(name).lower()}, '
                "and to Postgres it is another name; write it in lower case"
            ),
        )


def _check_pair(access: Access, settings: LintSettings) -> Iterator[Verdict]:
    target, role = access.target, access.role
    owner = settings.context_of_schema(target.schema)
    if owner is None:
        return
    receiver = settings.context_of_role(role.name)
    sentence = f"{access.how} {target} of context {owner} to {role}"
    if role.is_public:
        advice = f"and so to every context; name a role of {owner}"
    elif receiver is None or receiver == owner:
        return
    elif owner == settings.substrate and access.how == "grants":
        advice = f"directly; grant it to a group role ({settings.group_prefix}...) and make {role} its member"
    else:
        advice = f"of context {receiver}; contexts meet through events, keep it with a role of {owner}"
    yield Rule.CROSS_CONTEXT_GRANT, f"{sentence} {advice}"


def _check_default_access(fact: DefaultAccess, settings: LintSettings) -> Iterator[Verdict]:
    where = f" in schema {', '.join(fact.schemas)}" if fact.schemas else ""
    yield (
        Rule.DEFAULT_PRIVILEGES,
        (
            f"grants objects that do not exist yet{where} to {fact.grantee}; "
            "grant each object in the migration that creates it"
        ),
    )
    for schema in fact.schemas:
        future = Access(DatabaseObject("object", "", schema, schema_wide=True), fact.grantee)
        yield from _check_pair(future, settings)
    for creator in fact.creators:
        contexts = {settings.context_of_role(creator.name), settings.context_of_role(fact.grantee.name)}
        if None not in contexts and len(contexts) > 1:
            yield (
                Rule.CROSS_CONTEXT_GRANT,
                f"grants whatever {creator} creates to {fact.grantee} of another context; remove the grant",
            )


def _check_membership(fact: Membership, settings: LintSettings) -> Iterator[Verdict]:
    group, member = fact.group, fact.member
    for name in (group.name, member.name):
        yield from _check_case(name, settings)
    owner, receiver = settings.context_of_role(group.name), settings.context_of_role(member.name)
    if receiver is None:
        return
    if group.name in ALL_SEEING_ROLES:
        advice = f"{group} reaches into every context; grant {member} the objects it needs"
    elif owner is None or owner == receiver or _may_join(fact, settings):
        return
    else:
        advice = f"{group} belongs to context {owner} and {member} to {receiver}; contexts meet through events"
    yield Rule.CROSS_CONTEXT_GRANT, f"{_describe(fact)}: {advice}"


def _describe(fact: Membership) -> str:
    if fact.reassigned:
        return f"hands what {fact.group} owns over to {fact.member}"
    return f"makes {fact.member} a member of {fact.group}"


def _may_join(fact: Membership, settings: LintSettings) -> bool:
    # Members of the owner could replace the very functions that guard the tables.
    is_open = settings.is_group_role(fact.group.name) and fact.group.name != settings.owner_role
    return is_open and not fact.reassigned


def check_references(statement: Statement, settings: LintSettings) -> Iterator[Verdict]:
    """Foreign keys, inheritance, views and policies that tie one context to another."""
    node, schema = statement.node, statement.default_schema
    match node.kind:
        case "CreatePolicyStmt" | "AlterPolicyStmt":
            table = read_relation(node.node("table"), schema)
            yield from _check_policy(table, [read_role(role) for role in node.nodes("roles")], settings)
        case "CreateStmt" | "AlterTableStmt" | "CreateForeignTableStmt":
            table_node = node.node("base") or node
            table = read_relation(table_node.node("relation"), schema)
            yield from _check_ties(table, _tables_tied_to(table_node), settings)
        case "ViewStmt":
            view = read_relation(node.node("view"), schema, "view")
            yield from _check_ties(view, _tables_read_by(node.node("query")), settings)
        case "CreateTableAsStmt" if node.text("objtype") == "OBJECT_MATVIEW":
            into = node.node("into")
            view = read_relation(into.node("rel") if into else None, schema, "view")
            yield from _check_ties(view, _tables_read_by(node.node("query")), settings)
        case _:
            return


def _check_policy(table: DatabaseObject, roles: list[Role], settings: LintSettings) -> Iterator[Verdict]:
    owner = settings.context_of_schema(table.schema)
    for role in roles:
        receiver = settings.context_of_role(role.name)
        # PUBLIC is what a policy without TO says; it opens nothing without a grant.
        if not role.is_public and None not in {owner, receiver} and owner != receiver:
            yield (
                Rule.CROSS_CONTEXT_REFERENCE,
                f"opens rows of {table} of context {owner} to {role} of context {receiver}; name a role of {owner}",
            )


def _tables_tied_to(node: Node) -> Iterator[tuple[str, DatabaseObject]]:
    for parent in node.nodes("inhRelations"):
        yield "inherits from", read_relation(parent)
    for below in node.walk():
        if below.text("contype") == "CONSTR_FOREIGN":
            yield "has a foreign key to", read_relation(below.node("pktable"))


def _tables_read_by(query: Node | None) -> Iterator[tuple[str, DatabaseObject]]:
    for below in query.walk() if query else ():
        if below.kind == "RangeVar":
            yield "reads", read_relation(below)


def _check_ties(
    origin: DatabaseObject, ties: Iterator[tuple[str, DatabaseObject]], settings: LintSettings
) -> Iterator[Verdict]:
    owner = settings.context_of_schema(origin.schema)
    for verb, other in ties:
        other_owner = settings.context_of_schema(other.schema)
        if None not in {owner, other_owner} and owner != other_owner:
            yield (
                Rule.CROSS_CONTEXT_REFERENCE,
                (
                    f"{origin} of context {owner} {verb} {other} of context {other_owner}; "
                    "keep the id without a constraint and a copy fed by events"
                ),
            )
