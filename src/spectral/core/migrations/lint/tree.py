"""Typed access to the JSON trees: a node has a kind and fields, and absent fields read as empty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.migrations.lint.parser import Json


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a parse tree: `{"GrantStmt": {...}}` is the node of kind GrantStmt."""

    kind: str
    fields: dict[str, Json]

    def text(self, name: str) -> str:
        """A string or enumeration field; empty when absent."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str, *, absent: int = 0) -> int:
        """An integer field."""
        value = self.fields.get(name)
        return value if isinstance(value, int) else absent

    def flag(self, name: str) -> bool:
        """A boolean field; the trees leave false ones out."""
        return self.fields.get(name) is True

    def node(self, name: str, kind: str = "") -> Node | None:
        """A field that holds one node; `kind` names it where the tree leaves the type out."""
        value = self.fields.get(name)
        return _as_node(value, kind) if isinstance(value, dict) else None

    def nodes(self, name: str) -> list[Node]:
        """A field that holds a list of nodes, bare or wrapped in a List node."""
        value = self.fields.get(name)
        if isinstance(value, dict):
            wrapped = _as_node(value)
            return wrapped.nodes("items") if wrapped.kind == "List" else [wrapped]
        return [_as_node(item) for item in value if isinstance(item, dict)] if isinstance(value, list) else []

    def strings(self, name: str) -> list[str]:
        """A field that holds a list of String nodes: the parts of a qualified name."""
        return [part.text("sval") for part in self.nodes(name) if part.kind == "String"]

    def children(self) -> Iterator[tuple[str, Node]]:
        """Every node one step below, with the field it hangs on."""
        for name, value in self.fields.items():
            if isinstance(value, dict):
                yield name, _as_node(value)
            elif isinstance(value, list):
                yield from ((name, _as_node(item)) for item in value if isinstance(item, dict))

    def walk(self) -> Iterator[Node]:
        """This node and everything below it; without recursion, since trees may be deep."""
        waiting: list[Node] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(child for _, child in node.children())


def _as_node(value: dict[str, Json], kind: str = "") -> Node:
    if len(value) == 1:
        ((name, inner),) = value.items()
        # Type names start with a capital, field names never do.
        if name[:1].isupper() and isinstance(inner, dict):
            return Node(name, inner)
    return Node(kind, value)


def root(tree: Json) -> Node:
    """The whole answer of the parser as one node."""
    return Node("", tree if isinstance(tree, dict) else {"items": tree})
