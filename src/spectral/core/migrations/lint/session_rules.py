"""The runner owns the transaction and the session: a migration neither ends the one nor changes who the other is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.migrations.lint.findings import Rule
from spectral.core.migrations.lint.source import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.migrations.lint.access_rules import Verdict
    from spectral.core.migrations.lint.settings import LintSettings
    from spectral.core.migrations.lint.source import Statement
    from spectral.core.migrations.lint.tree import Node

# Postgres refuses these inside a transaction block whatever their options.
_NEVER_IN_A_TRANSACTION = {
    "AlterSystemStmt": "ALTER SYSTEM",
    "CreatedbStmt": "CREATE DATABASE",
    "DropdbStmt": "DROP DATABASE",
    "CreateTableSpaceStmt": "CREATE TABLESPACE",
    "DropTableSpaceStmt": "DROP TABLESPACE",
    "CreateSubscriptionStmt": "CREATE SUBSCRIPTION",
    "DropSubscriptionStmt": "DROP SUBSCRIPTION",
}
_MANY_TABLES_REINDEX = {"REINDEX_OBJECT_SCHEMA", "REINDEX_OBJECT_SYSTEM", "REINDEX_OBJECT_DATABASE"}
_ROLE_SETTINGS = {"role", "session_authorization"}
_HAS_STATEMENTS_OF_ITS_OWN = {"CreateFunctionStmt", "CreateSchemaStmt", "DoStmt"}


def check_transaction(statement: Statement, _: LintSettings) -> Iterator[Verdict]:
    """Transaction control, and statements that cannot be part of a transaction."""
    if statement.source.place is Place.ROUTINE:
        return  # a procedure may commit when it is called outside a migration
    node = statement.node
    if node.kind == "TransactionStmt":
        verb = node.text("kind").removeprefix("TRANS_STMT_").replace("_", " ")
        yield Rule.TRANSACTION_CONTROL, transaction_message(verb)
        return
    refused = _refused_in_a_transaction(node)
    if refused:
        yield (
            Rule.TRANSACTION_CONTROL,
            (
                f"{refused} cannot run inside the transaction that the runner opens around each file; "
                "use the form without CONCURRENTLY, or run it by hand outside the migrations"
            ),
        )


def transaction_message(verb: str) -> str:
    """What to say about a transaction command."""
    return f"{verb} interferes with the transaction that the runner opens around each file; remove it"


def _refused_in_a_transaction(node: Node) -> str | None:
    conditional = {
        "IndexStmt": (node.flag("concurrent"), "CREATE INDEX CONCURRENTLY"),
        "DropStmt": (node.flag("concurrent"), "DROP INDEX CONCURRENTLY"),
        "ReindexStmt": (_reindex_commits(node), "REINDEX CONCURRENTLY or of more than one table"),
        "VacuumStmt": (node.flag("is_vacuumcmd"), "VACUUM"),
        "ClusterStmt": (node.node("relation") is None, "CLUSTER of all tables"),
        "DiscardStmt": (node.text("target") == "DISCARD_ALL", "DISCARD ALL"),
        "AlterDatabaseStmt": ("tablespace" in _option_names(node, "options"), "ALTER DATABASE SET TABLESPACE"),
        "AlterTableStmt": (_detaches_concurrently(node), "DETACH PARTITION CONCURRENTLY"),
    }
    refused, name = conditional.get(node.kind, (False, ""))
    return name if refused else _NEVER_IN_A_TRANSACTION.get(node.kind)


def _reindex_commits(node: Node) -> bool:
    return node.text("kind") in _MANY_TABLES_REINDEX or "concurrently" in _option_names(node, "params")


def _detaches_concurrently(node: Node) -> bool:
    return any(below.kind == "PartitionCmd" and below.flag("concurrent") for below in node.walk())


def _option_names(node: Node, field: str) -> set[str]:
    return {
        option.text("defname")
        for option in node.nodes(field)
        if not any(value.text("sval") in {"false", "off"} for value in option.nodes("arg"))
    }


def check_session_role(statement: Statement, _: LintSettings) -> Iterator[Verdict]:
    """Role changes that outlive the transaction, or that fall back to a role the caller did not choose."""
    node = statement.node
    if node.kind == "VariableSetStmt" and node.text("name").lower() in _ROLE_SETTINGS:
        name = node.text("name").lower()
        transaction_only = node.flag("is_local") and not node.text("kind").startswith("VAR_RESET")
        if name != "role" or not transaction_only:
            verb = "RESET" if node.text("kind").startswith("VAR_RESET") else "SET"
            yield Rule.SESSION_ROLE, _session_message(f"{verb} {name.replace('_', ' ').upper()}")
    if node.kind not in _HAS_STATEMENTS_OF_ITS_OWN:
        yield from check_set_config(node)


def check_set_config(node: Node) -> Iterator[Verdict]:
    """The same change written as a function call: `set_config('role', ..., false)`."""
    for call in node.walk():
        if call.kind == "FuncCall" and call.strings("funcname")[-1:] == ["set_config"]:
            arguments = call.nodes("args")
            name = _constant(arguments[0]).lower() if arguments else ""
            is_local = len(arguments) > 2 and _is_true(arguments[2])  # noqa: PLR2004  its third argument
            if name in _ROLE_SETTINGS and not (name == "role" and is_local):
                yield Rule.SESSION_ROLE, _session_message(f"set_config('{name}', ...)")


def _constant(node: Node) -> str:
    value = node.node("sval")
    return value.text("sval") if value else ""


def _is_true(node: Node) -> bool:
    value = node.node("boolval")
    return value is not None and value.flag("boolval")


def _session_message(what: str) -> str:
    return f"{what} changes who the session is beyond this transaction; use SET LOCAL ROLE"
