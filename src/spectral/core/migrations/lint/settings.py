"""Who belongs to which context: the one place that reads meaning into the names of schemas and roles."""

from __future__ import annotations

from dataclasses import dataclass

from spectral.core.events.failure import ConfigurationError

# Membership in one of these reads, writes or runs past every grant, whatever context it belongs to.
ALL_SEEING_ROLES = frozenset(
    {
        "pg_read_all_data",
        "pg_write_all_data",
        "pg_maintain",
        "pg_execute_server_program",
        "pg_read_server_files",
        "pg_write_server_files",
    }
)


@dataclass(frozen=True, slots=True)
class LintSettings:
    """The contexts of the system and how their schemas and roles are named.

    A context owns the schema of its name and the roles `<context>` and `<context>_<something>`. The substrate is
    the context that also owns the group roles: contexts join them instead of being granted its tables.
    """

    contexts: frozenset[str] = frozenset({"platform", "worlds", "core"})
    substrate: str = "core"
    group_prefix: str = "spectral_"
    owner_role: str = "spectral_owner"

    def __post_init__(self) -> None:
        wrong = sorted(name for name in self.contexts if not name or name != name.lower())
        if wrong or not self.contexts:
            raise ConfigurationError(f"contexts must be lower-case names, got {wrong or 'none'}; pass at least one")
        if self.substrate not in self.contexts:
            raise ConfigurationError(f"the substrate {self.substrate!r} is not one of the contexts; add it to them")

    def context_of_schema(self, schema: str | None) -> str | None:
        """The context that owns this schema; names that differ by case only count as the context's."""
        folded = (schema or "").lower()
        return folded if folded in self.contexts else None

    def context_of_role(self, role: str) -> str | None:
        """The context this role belongs to; group roles belong to the substrate, unknown roles to nobody."""
        folded = role.lower()
        if folded.startswith(self.group_prefix):
            return self.substrate
        owners = [name for name in self.contexts if folded == name or folded.startswith(f"{name}_")]
        # "game_store_app" belongs to "game_store", should both "game" and "game_store" be contexts.
        return max(owners, key=len, default=None)

    def is_group_role(self, role: str) -> bool:
        """Whether contexts are meant to join this role."""
        return role.startswith(self.group_prefix)

    def owner_prefix(self, name: str) -> str:
        """The part of a schema's or role's name that says who owns it."""
        context = self.context_of_schema(name) or self.context_of_role(name)
        if context is None:
            return ""
        return name[: len(self.group_prefix if name.lower().startswith(self.group_prefix) else context)]

    def differs_by_case(self, name: str) -> bool:
        """Whether a quoted name looks like a context's but is another object to Postgres."""
        prefix = self.owner_prefix(name)
        return prefix != prefix.lower()
