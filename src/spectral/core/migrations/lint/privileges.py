"""Statements read as facts about power: who gets access to what, who joins which role, who must own what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.migrations.lint.source import Statement
    from spectral.core.migrations.lint.tree import Node


@dataclass(frozen=True, slots=True)
class DatabaseObject:
    """A table, function, schema, ... named by a statement."""

    kind: str
    name: str
    schema: str | None = None
    schema_wide: bool = False
    lives_in_schema: bool = True

    def __str__(self) -> str:
        if self.schema_wide:
            return f"all {self.kind}s in schema {self.schema}"
        name = self.name if self.schema is None or self.kind == "schema" else f"{self.schema}.{self.name}"
        return f"{self.kind} {name}"


@dataclass(frozen=True, slots=True)
class Role:
    """A role as a statement names it."""

    name: str
    is_public: bool = False

    def __str__(self) -> str:
        return "PUBLIC" if self.is_public else self.name


@dataclass(frozen=True, slots=True)
class Access:
    """A role gets access to an object; `how` completes the sentence "<how> <object> to <role>"."""

    target: DatabaseObject
    role: Role
    how: str = "grants"


@dataclass(frozen=True, slots=True)
class DefaultAccess:
    """Whatever will be created later in a schema, or by a role, is granted to a role."""

    grantee: Role
    schemas: tuple[str, ...]
    creators: tuple[Role, ...]


@dataclass(frozen=True, slots=True)
class Membership:
    """A role gets everything that another has: as its member, or because what it owns is reassigned."""

    group: Role
    member: Role
    reassigned: bool = False


@dataclass(frozen=True, slots=True)
class Superuser:
    """A role is made a superuser."""

    role: Role


Fact = Access | DefaultAccess | Membership | Superuser


def read_role(node: Node | None) -> Role:
    """A RoleSpec; CURRENT_USER and the like become names that belong to no context."""
    if node is None:
        return Role("")
    kind = node.text("roletype")
    if kind == "ROLESPEC_PUBLIC":
        return Role("public", is_public=True)
    return Role(node.text("rolename") or kind.removeprefix("ROLESPEC_").lower())


def read_relation(node: Node | None, default_schema: str | None = None, kind: str = "table") -> DatabaseObject:
    """A RangeVar."""
    if node is None:
        return DatabaseObject(kind, "")
    return DatabaseObject(kind, node.text("relname"), node.text("schemaname") or default_schema)


def read_facts(statement: Statement) -> Iterator[Fact]:
    """Everything a statement hands to somebody; REVOKE and its relatives hand out nothing."""
    node = statement.node
    match node.kind:
        case "GrantStmt" if node.flag("is_grant"):
            yield from _grant(node, statement.default_schema)
        case "GrantRoleStmt" if node.flag("is_grant"):
            for granted in node.nodes("granted_roles"):
                for member in node.nodes("grantee_roles"):
                    yield Membership(Role(granted.text("priv_name")), read_role(member))
        case "AlterDefaultPrivilegesStmt":
            yield from _default_privileges(node)
        case "CreateRoleStmt":
            yield from _role_options(Role(node.text("role")), node)
        case "AlterRoleStmt" if node.number("action") == 1:  # -1 is ALTER GROUP ... DROP USER
            yield from _role_options(read_role(node.node("role")), node)
        case "AlterOwnerStmt" | "AlterTableStmt" | "CreateSchemaStmt" | "ReassignOwnedStmt":
            yield from _ownership(node, statement.default_schema)
        case _:
            return


def _grant(node: Node, default_schema: str | None) -> Iterator[Access]:
    kind = _kind(node.text("objtype"))
    schema_wide = node.text("targtype") == "ACL_TARGET_ALL_IN_SCHEMA"
    for target in node.nodes("objects"):
        if schema_wide:
            granted = DatabaseObject(kind, "", target.text("sval"), schema_wide=True)
        else:
            granted = read_object(target, kind, default_schema)
        for grantee in node.nodes("grantees"):
            yield Access(granted, read_role(grantee))


def _kind(object_type: str) -> str:
    return object_type.removeprefix("OBJECT_").replace("_", " ").lower()


def read_object(node: Node, kind: str, default_schema: str | None = None) -> DatabaseObject:
    """An object in any of the shapes the grammar has for them."""
    match node.kind:
        case "RangeVar":
            return read_relation(node, default_schema, kind)
        case "ObjectWithArgs":
            parts = node.strings("objname")
        case "List":
            parts = node.strings("items")
            if kind in {"opclass", "opfamily"}:
                parts = parts[1:]  # the first part is the access method
        case "String" if kind == "schema":
            return DatabaseObject(kind, node.text("sval"), node.text("sval"))
        case _:  # databases, languages, servers, large objects: no schema to speak of
            return DatabaseObject(kind, node.text("sval") or str(node.number("ival")), lives_in_schema=False)
    *qualifier, name = parts or [""]
    return DatabaseObject(kind, name, qualifier[-1] if qualifier else default_schema)


def _default_privileges(node: Node) -> Iterator[DefaultAccess]:
    action = node.node("action", "GrantStmt")
    if action is None or not action.flag("is_grant"):
        return
    options = {option.text("defname"): option for option in node.nodes("options")}
    schemas = options["schemas"].strings("arg") if "schemas" in options else []
    creators = options["roles"].nodes("arg") if "roles" in options else []
    for grantee in action.nodes("grantees"):
        yield DefaultAccess(read_role(grantee), tuple(schemas), tuple(read_role(creator) for creator in creators))


def _role_options(role: Role, node: Node) -> Iterator[Fact]:
    for option in node.nodes("options"):
        match option.text("defname"):
            case "addroleto":
                yield from (Membership(read_role(group), role) for group in option.nodes("arg"))
            case "rolemembers" | "adminmembers":
                yield from (Membership(role, read_role(member)) for member in option.nodes("arg"))
            case "superuser" if any(value.flag("boolval") for value in option.nodes("arg")):
                yield Superuser(role)
            case _:
                continue


def _ownership(node: Node, default_schema: str | None) -> Iterator[Fact]:
    how = "gives ownership of"
    match node.kind:
        case "AlterOwnerStmt":
            target = node.node("object")
            if target is not None:
                owned = read_object(target, _kind(node.text("objectType")), default_schema)
                yield Access(owned, read_role(node.node("newowner")), how)
        case "AlterTableStmt":
            owned = read_relation(node.node("relation"), default_schema, _kind(node.text("objtype")))
            for command in node.nodes("cmds"):
                if command.text("subtype") == "AT_ChangeOwner":
                    yield Access(owned, read_role(command.node("newowner")), how)
        case "CreateSchemaStmt":
            schema, owner = node.text("schemaname"), node.node("authrole")
            if owner is not None:
                yield Access(DatabaseObject("schema", schema, schema or None), read_role(owner), how)
        case _:  # REASSIGN OWNED
            for former in node.nodes("roles"):
                yield Membership(read_role(former), read_role(node.node("newrole")), reassigned=True)
