"""Finds the protocols that contexts own: classes in the modules under `<package>.contracts.protocols`.

They are read from their sources, so that signatures stand on the page as they were written.
"""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING

from spectral_ops.catalogue.entry import Method, Place, ProtocolEntry
from spectral_ops.catalogue.sources import implementers_of, users_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spectral_ops.catalogue.sources import Source


def protocols_of(packages: Sequence[str], sources: Sequence[Source]) -> tuple[ProtocolEntry, ...]:
    """Every protocol of these packages, in the order of owner and name."""
    found = [entry for package in packages for entry in _protocols(package, sources)]
    return tuple(sorted(found, key=lambda entry: entry.title))


def _protocols(package: str, sources: Sequence[Source]) -> Iterator[ProtocolEntry]:
    room = f"{package}.contracts.protocols"
    for source in sources:
        if source.module == room or source.module.startswith(f"{room}."):
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef) and any(_is_protocol(base) for base in node.bases):
                    yield _entry(node, source, package, sources)


def _is_protocol(base: ast.expr) -> bool:
    """`Protocol`, `typing.Protocol`, `Protocol[T]`."""
    bare = base.value if isinstance(base, ast.Subscript) else base
    return ast.unparse(bare).rpartition(".")[2] == "Protocol"


def _entry(node: ast.ClassDef, source: Source, package: str, sources: Sequence[Source]) -> ProtocolEntry:
    methods = tuple(_methods(node))
    own = [each for each in sources if f"{each.module}.".startswith(f"{package}.")]
    implementers = implementers_of(own, source.module, node.name, [method.name for method in methods])
    things = [(source.module, node.name)]
    for each in implementers:
        module, _, name = each.name.rpartition(".")
        things.append((module, name))
    return ProtocolEntry(
        name=node.name,
        owner=package.rpartition(".")[2],
        text="\n\n".join(filter(None, (_docstring(source.tree), _docstring(node)))),
        place=Place(f"{source.module}.{node.name}", source.file),
        methods=methods,
        implementers=implementers,
        composers=users_of(sources, things, home=package),
    )


def _methods(node: ast.ClassDef) -> Iterator[Method]:
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
            yield Method(name=each.name, signature=_signature(each), text=_docstring(each))


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    head = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    return f"{head} {function.name}({ast.unparse(function.args)}){returns}"


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")
