"""SECURITY DEFINER functions: a pinned search_path that ends in pg_temp, and no EXECUTE for PUBLIC.

Postgres grants EXECUTE to PUBLIC when a function is created and keeps its privileges when it is replaced. The ledger
follows both through the files in their order, so that replacing a function does not ask for a second REVOKE.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from spectral.core.migrations.lint.findings import Problem, Rule
from spectral.core.migrations.lint.privileges import read_role
from spectral.core.migrations.lint.source import Place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.migrations.lint.settings import LintSettings
    from spectral.core.migrations.lint.source import Statement
    from spectral.core.migrations.lint.tree import Node

ArgumentTypes: TypeAlias = "tuple[str, ...] | None"  # None: the statement names the function without arguments
_ROUTINE_TYPES = {"OBJECT_FUNCTION", "OBJECT_PROCEDURE", "OBJECT_ROUTINE"}


@dataclass(frozen=True, slots=True)
class Signature:
    """A routine by name; `with_outputs` is the spelling that Postgres accepts for procedures."""

    schema: str
    name: str
    arguments: ArgumentTypes
    with_outputs: ArgumentTypes = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def names(self, other: Signature) -> bool:
        """Whether a statement that says this signature means the other one."""
        if (self.schema, self.name) != (other.schema, other.name):
            return False
        return None in {self.arguments, other.arguments} or self.arguments in {other.arguments, other.with_outputs}


@dataclass(frozen=True, slots=True)
class Options:
    """What a CREATE or ALTER says about security; None where it says nothing."""

    definer: bool | None = None
    path_touched: bool = False
    search_path: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Routine:
    """What the files so far say about a routine; `definer` is None when its creation was not seen."""

    signature: Signature
    definer: bool | None = None
    search_path: tuple[str, ...] | None = None
    public_may_execute: bool = True


@dataclass(slots=True)
class RoutineLedger:
    """The routines seen so far, over all files of one run."""

    settings: LintSettings
    routines: list[Routine] = field(default_factory=list[Routine])
    _unrevoked: list[tuple[Statement, Signature]] = field(default_factory=list["tuple[Statement, Signature]"])

    def follow(self, statement: Statement) -> Iterator[Problem]:
        """Take note of a statement; complains about the search_path at once."""
        if statement.source.place is Place.ROUTINE:
            return
        node = statement.node
        match node.kind:
            case "CreateFunctionStmt":
                yield from self._create(statement)
            case "AlterFunctionStmt":
                yield from self._alter(statement)
            case "GrantStmt":
                self._change_execute(node)
            case "DropStmt" if node.text("removeType") in _ROUTINE_TYPES:
                dropped = [_named(target) for target in node.nodes("objects")]
                self.routines = [known for known in self.routines if not _any_names(dropped, known.signature)]
            case _:
                return

    def close_file(self) -> Iterator[Problem]:
        """Complain about the routines of this file that everybody may still execute."""
        for statement, signature in self._unrevoked:
            if any(known.public_may_execute for known in self.routines if signature.names(known.signature)):
                yield _problem(
                    statement,
                    Rule.DEFINER_PUBLIC_EXECUTE,
                    f"everybody may execute SECURITY DEFINER function {signature}; "
                    f"add below: revoke all on function {signature}(...) from public;",
                )
        self._unrevoked = []

    def _create(self, statement: Statement) -> Iterator[Problem]:
        node = statement.node
        signature, options = _created(node, statement.default_schema), _read_options(node.nodes("options"))
        before = [known for known in self.routines if signature.names(known.signature)]
        kept = node.flag("replace") and bool(before) and not before[0].public_may_execute
        created = Routine(signature, options.definer is True, options.search_path, public_may_execute=not kept)
        self.routines = [known for known in self.routines if known not in before] + [created]
        # An earlier creation in this file was dropped or replaced: only the last one can still be open.
        self._unrevoked = [(at, named) for at, named in self._unrevoked if not signature.names(named)]
        if created.definer:
            self._unrevoked.append((statement, signature))
            yield from self._check_path(statement, created)

    def _alter(self, statement: Statement) -> Iterator[Problem]:
        target = statement.node.node("func", "ObjectWithArgs")
        if target is None:
            return
        signature, options = _named(target), _read_options(statement.node.nodes("actions"))
        if not any(signature.names(known.signature) for known in self.routines):
            self.routines.append(Routine(signature))
        for index, known in enumerate(self.routines):
            if not signature.names(known.signature):
                continue
            changed = replace(
                known,
                definer=known.definer if options.definer is None else options.definer,
                search_path=options.search_path if options.path_touched else known.search_path,
            )
            self.routines[index] = changed
            if options.definer:
                self._unrevoked.append((statement, signature))
            # A function never seen may well be a definer: then losing its path is what must not happen.
            lost_path = options.path_touched and options.search_path is None and changed.definer is None
            if lost_path or (changed.definer and (options.definer or options.path_touched)):
                yield from self._check_path(statement, changed)

    def _check_path(self, statement: Statement, routine: Routine) -> Iterator[Problem]:
        complaint = _path_complaint(routine, self.settings)
        if complaint:
            yield _problem(
                statement,
                Rule.DEFINER_SEARCH_PATH,
                f"SECURITY DEFINER function {routine.signature} {complaint}; "
                "write: set search_path = pg_catalog, pg_temp",
            )

    def _change_execute(self, node: Node) -> None:
        granted = node.flag("is_grant")
        privileges = {privilege.text("priv_name") for privilege in node.nodes("privileges")}
        reaches_public = any(read_role(grantee).is_public for grantee in node.nodes("grantees"))
        only_the_option = not granted and node.flag("grant_option")
        about_execute = node.text("objtype") in _ROUTINE_TYPES and (not privileges or "execute" in privileges)
        if not (about_execute and reaches_public) or only_the_option:
            return
        objects = node.nodes("objects")
        if node.text("targtype") == "ACL_TARGET_ALL_IN_SCHEMA":
            schemas = {target.text("sval") for target in objects}
            named = [known.signature for known in self.routines if known.signature.schema in schemas]
        else:
            named = [_named(target) for target in objects]
        # Postgres refuses to revoke on a function that does not exist, so it does: remember what was done to it.
        known_already = [known.signature for known in self.routines]
        self.routines += [Routine(name) for name in named if not any(name.names(known) for known in known_already)]
        self.routines = [
            replace(known, public_may_execute=granted) if _any_names(named, known.signature) else known
            for known in self.routines
        ]


def _any_names(spelled: list[Signature], known: Signature) -> bool:
    return any(signature.names(known) for signature in spelled)


def _problem(statement: Statement, rule: Rule, message: str) -> Problem:
    return Problem(rule, statement.line, statement.outermost_line, message)


def _path_complaint(routine: Routine, settings: LintSettings) -> str | None:
    path = routine.search_path
    if path is None:
        return "has no pinned search_path, so its caller decides which objects it finds"
    own_schema = routine.signature.schema if settings.context_of_schema(routine.signature.schema) else "pg_catalog"
    strangers = [entry for entry in path if entry not in {"pg_catalog", "pg_temp", own_schema}]
    if strangers:
        return (
            f"has {', '.join(repr(entry) for entry in strangers)} in its search_path, where others may create objects"
        )
    if path[-1:] != ("pg_temp",):
        return "has a search_path without pg_temp at its end, so the caller's temporary tables are found first"
    return None


def _read_options(options: list[Node]) -> Options:
    said = Options()
    for option in options:
        values = option.nodes("arg")
        if option.text("defname") == "security":
            said = replace(said, definer=any(value.flag("boolval") for value in values))
        elif option.text("defname") == "set":
            for setting in values:
                if setting.text("kind") == "VAR_RESET_ALL" or setting.text("name").lower() == "search_path":
                    said = replace(said, path_touched=True, search_path=_path(setting))
    return said


def _path(setting: Node) -> tuple[str, ...] | None:
    if setting.text("kind") != "VAR_SET_VALUE":
        return None  # RESET, TO DEFAULT and FROM CURRENT leave it to whoever runs the migration or the function
    entries = [argument.node("sval") for argument in setting.nodes("args")]
    return tuple(entry.text("sval") for entry in entries if entry is not None)


def _created(node: Node, default_schema: str | None) -> Signature:
    parameters = [parameter for parameter in node.nodes("parameters") if parameter.text("mode") != "FUNC_PARAM_TABLE"]
    inputs = [parameter for parameter in parameters if parameter.text("mode") != "FUNC_PARAM_OUT"]
    spelled = [_type(parameter.node("argType")) for parameter in parameters]
    return _signature(
        node.strings("funcname"), [_type(each.node("argType")) for each in inputs], spelled, default_schema
    )


def _named(target: Node) -> Signature:
    arguments = None if target.flag("args_unspecified") else [_type(each) for each in target.nodes("objargs")]
    return _signature(target.strings("objname"), arguments)


def _signature(
    parts: list[str], arguments: list[str] | None, with_outputs: list[str] | None = None, schema: str | None = None
) -> Signature:
    *qualifier, name = parts or [""]
    return Signature(
        qualifier[-1] if qualifier else schema or "",
        name,
        None if arguments is None else tuple(arguments),
        None if with_outputs is None else tuple(with_outputs),
    )


def _type(node: Node | None) -> str:
    # The last part is enough: `core.state` and, with a search_path, `state` are one type to the reader.
    return "" if node is None else "".join(node.strings("names")[-1:]) + "[]" * len(node.nodes("arrayBounds"))
