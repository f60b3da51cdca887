"""Reads source files without running them: which functions build an event, and who knows a protocol.

A function publishes an event when it passes the constant of its type as `event_type=`, and builds one when it calls the
payload's class. What a decorator names does not count: that is how a handler says what it wants.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.events.failure import ConfigurationError
from spectral_ops.catalogue.entry import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    _Judge = Callable[[ast.Call, dict[str, str]], bool]


@dataclass(frozen=True)
class Source:
    """One module: its name, its file, its text."""

    module: str
    file: Path

    @cached_property
    def tree(self) -> ast.Module:
        """The module, parsed."""
        return ast.parse(self.file.read_text(encoding="utf-8"), filename=str(self.file))


def sources_of(packages: Iterable[str]) -> tuple[Source, ...]:
    """Every module of these packages, in the order of their names.

    Raises:
        ConfigurationError: there is no such package.
    """
    found = {source.module: source for package in packages for source in _modules(package)}
    return tuple(found[name] for name in sorted(found))


def _modules(package: str) -> Iterator[Source]:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ConfigurationError(
            f"there is no package {package!r}; check the spelling, and run this where its name begins"
        )
    if spec.submodule_search_locations is None:
        if spec.origin is not None:
            yield Source(package, Path(spec.origin))
        return
    for location in spec.submodule_search_locations:
        root = Path(location)
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            inner = parts[:-1] if parts[-1] == "__init__" else parts
            yield Source(".".join((package, *inner)), file)


def producers_of(sources: Iterable[Source], module: str, payload: str, constant: str) -> tuple[Place, ...]:
    """The functions that publish this event, outside the contract's own package; failing these, that build it."""
    elsewhere = tuple(_outside(sources, _contracts_of(module)))
    return _callers(elsewhere, module, partial(_addresses, constant=constant)) or _callers(
        elsewhere, module, partial(_builds, payload=payload)
    )


def implementers_of(sources: Iterable[Source], module: str, name: str, methods: Iterable[str]) -> tuple[Place, ...]:
    """The classes that have every method of this protocol, or name it as their base, outside its own package."""
    wanted = frozenset(methods)
    found: list[Place] = []
    for source in _outside(sources, _contracts_of(module)):
        names = _known_as(source.tree, module)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                has = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                if any(_meaning(base, names) == name for base in node.bases) or (wanted and wanted <= has):
                    found.append(Place(f"{source.module}.{node.name}", source.file))
    return tuple(sorted(set(found)))


def users_of(sources: Iterable[Source], things: Iterable[tuple[str, str]], *, home: str) -> tuple[Place, ...]:
    """The modules outside the package `home` that import one of these things, each a module and a name in it."""
    wanted = tuple(things)
    found = (
        Place(source.module, source.file)
        for source in _outside(sources, home)
        if any(_imports(source.tree, module, name) for module, name in wanted)
    )
    return tuple(sorted(set(found)))


def _contracts_of(module: str) -> str:
    """The package `<package>.contracts` that a contract stands in."""
    return module.partition(".contracts.")[0] + ".contracts"


def _outside(sources: Iterable[Source], package: str) -> Iterator[Source]:
    return (source for source in sources if not f"{source.module}.".startswith(f"{package}."))


def _imports(tree: ast.Module, module: str, name: str) -> bool:
    names = _known_as(tree, module)
    return any(meaning in {name, module} for meaning in names.values())


def _known_as(tree: ast.Module, module: str) -> dict[str, str]:
    """What the file calls that module, and what it imports from it or from a package above that passes it on."""
    known: dict[str, str] = {}
    parent, _, last = module.rpartition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for each in node.names:
                if node.module == parent and each.name == last:
                    known[each.asname or each.name] = module
                elif node.module == module or f"{module}.".startswith(f"{node.module}."):
                    known[each.asname or each.name] = each.name
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name == module:
                    known[each.asname or each.name] = module
    return known


def _callers(sources: Iterable[Source], module: str, holds: _Judge) -> tuple[Place, ...]:
    found: list[Place] = []
    for source in sources:
        names = _known_as(source.tree, module)
        if names:
            functions = _functions_where(source.tree, lambda call: holds(call, names))  # noqa: B023  used up at once
            found.extend(Place(f"{source.module}.{each}", source.file) for each in functions)
    return tuple(sorted(set(found)))


def _addresses(call: ast.Call, names: dict[str, str], *, constant: str) -> bool:
    return any(each.arg == "event_type" and _meaning(each.value, names) == constant for each in call.keywords)


def _builds(call: ast.Call, names: dict[str, str], *, payload: str) -> bool:
    return _meaning(call.func, names) == payload


def _meaning(node: ast.expr, names: dict[str, str]) -> str | None:
    """What an expression names: an imported name, or an attribute of an imported module."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names:
        return node.attr
    return None


def _functions_where(tree: ast.AST, holds: Callable[[ast.Call], bool], inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The qualified names of functions with such a call in their body; an inner function counts as its outer one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions_where(node, holds, (*inside, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            calls = (each for line in node.body for each in ast.walk(line) if isinstance(each, ast.Call))
            if any(holds(call) for call in calls):
                yield ".".join((*inside, node.name))
