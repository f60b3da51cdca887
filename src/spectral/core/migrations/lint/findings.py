"""What the lint says: the closed list of rules, and one finding per broken rule, object and role.

The values of `Rule` are stable: waivers in migration files and suppressions in CI name them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Rule(StrEnum):
    """Every rule by its stable name."""

    CROSS_CONTEXT_GRANT = "cross-context-grant"
    SCHEMA_WIDE_GRANT = "schema-wide-grant"
    DEFAULT_PRIVILEGES = "default-privileges"
    UNQUALIFIED_GRANT = "unqualified-grant"
    MIXED_CASE_NAME = "mixed-case-name"
    CROSS_CONTEXT_REFERENCE = "cross-context-reference"
    DYNAMIC_SQL_GRANT = "dynamic-sql-grant"
    UNREADABLE_CODE = "unreadable-code"
    DEFINER_SEARCH_PATH = "definer-search-path"
    DEFINER_PUBLIC_EXECUTE = "definer-public-execute"
    TRANSACTION_CONTROL = "transaction-control"
    SESSION_ROLE = "session-role"
    FILE_NAME = "file-name"
    SYNTAX_ERROR = "syntax-error"
    BAD_WAIVER = "bad-waiver"
    UNUSED_WAIVER = "unused-waiver"

    @property
    def can_be_waived(self) -> bool:
        """Whether a comment may allow it: rules about a statement yes, rules about the file itself no."""
        return self not in _ABOUT_THE_FILE


_ABOUT_THE_FILE = frozenset({Rule.FILE_NAME, Rule.SYNTAX_ERROR, Rule.BAD_WAIVER, Rule.UNUSED_WAIVER})


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule; `line` is where the statement starts, the message ends with what to do instead."""

    rule: Rule
    path: Path
    line: int
    message: str

    def __str__(self) -> str:
        """The finding as compilers print it, so that editors can jump to it."""
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding before waivers: it also knows the outermost statement, where a waiver may stand too."""

    rule: Rule
    line: int
    outermost_line: int
    message: str
