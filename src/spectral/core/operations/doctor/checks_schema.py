"""The schema and who may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import grant, listed, psql, several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.doctor.facts import Facts
    from spectral.core.operations.verdict_values import Limits

_ENABLED: Final = "O"
_OUR_TRIGGER: Final = "outbox_notify on core.outbox"


def find_migrations(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Files that were not applied, or are not what was applied."""
    schema = facts.schema
    if schema is None:
        return
    if schema.drift:
        yield Finding(
            "migrations",
            Level.UNHEALTHY,
            f"{several(len(schema.drift), 'migration file is', 'migration files are')} not what was applied:"
            f" {listed(schema.drift)}",
            "No migration is applied until they agree",
            "spectral migrate status",
        )
    if schema.unknown:
        yield Finding(
            "migrations",
            Level.NOTICE,
            f"{several(len(schema.unknown), 'migration')} applied that this installation does not know:"
            f" {listed(schema.unknown)}",
            "They are your own, or a newer Spectral has migrated this database",
            "spectral migrate status",
        )
    waiting = [*schema.adoptable, *schema.pending]
    if waiting:
        yield Finding(
            "migrations",
            Level.UNHEALTHY,
            f"{several(len(waiting), 'migration is', 'migrations are')} pending: {listed(waiting)}"
            if facts.has_schema
            else "This database has no Spectral schema",
            "This version of Spectral calls functions that may not be there",
            "spectral migrate up",
        )


def find_hand_made_changes(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Objects of the schema that are not as a migration left them."""
    # A disabled trigger has a finding of its own, which says more.
    disabled = facts.access is not None and facts.access.notify_trigger != _ENABLED
    changed = [each for each in facts.schema.changed if not (disabled and _OUR_TRIGGER in each)] if facts.schema else []
    if changed:
        yield Finding(
            "schema_drift",
            Level.ATTENTION,
            f"{several(len(changed), 'object')} of the schema changed by hand: {listed(changed)}",
            "What the schema promises holds for what the migrations made, and for nothing else",
            "spectral migrate verify",
        )


def find_silenced_trigger(facts: Facts, _: Limits) -> Iterator[Finding]:
    """The bell is off."""
    if facts.access is None or not facts.has_schema:
        return
    trigger = facts.access.notify_trigger
    if trigger not in {_ENABLED, "A"}:
        yield Finding(
            "notify_trigger",
            Level.UNHEALTHY,
            f"Trigger outbox_notify on core.outbox is {'missing' if trigger is None else 'disabled'}",
            "No worker is woken by a publish: events are found by polling only, up to 15 s late",
            psql("alter table core.outbox enable trigger outbox_notify") if trigger else "spectral migrate verify",
        )
    elif facts.access.bell == "off":
        yield Finding(
            "notify_trigger",
            Level.ATTENTION,
            "The bell is off: publishers notify nobody",
            "Events are found by polling only, up to 15 s late; somebody has set it so, and the audit says why",
            "spectral bell set bell --reason 'no longer needed' --yes",
        )


def find_missing_roles(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Groups that are gone, or that lost what they need."""
    access = facts.access
    if access is None or not facts.has_schema:
        return
    if access.missing_groups:
        yield Finding(
            "roles",
            Level.UNHEALTHY,
            f"Missing: {listed((f'role {name}' for name in access.missing_groups), 6)}",
            "Logins that are members of them may do nothing",
            psql(*(f"create role {name} nologin" for name in access.missing_groups)) + ", then again: spectral doctor",
        )
    if access.missing_grants:
        yield Finding(
            "grants",
            Level.UNHEALTHY,
            f"{several(len(access.missing_grants), 'grant is', 'grants are')} missing: {listed(access.missing_grants)}",
            "Members of these groups are refused where they work",
            psql(*access.missing_grants),
        )


def find_foreign_objects(facts: Facts, _limits: Limits) -> Iterator[Finding]:
    """Objects that somebody else owns: the functions, which run as the owner, cannot work on them."""
    foreign = facts.access.foreign if facts.access is not None else ()
    if foreign:
        named = listed(f"{name} ({owner})" for name, owner in foreign)
        yield Finding(
            "ownership",
            Level.UNHEALTHY,
            f"{several(len(foreign), 'object')} of schema core not owned by spectral_owner: {named}",
            "Functions run as spectral_owner and are refused, or run with somebody else's rights",
            psql(*(f"alter {name} owner to spectral_owner" for name, _ in foreign)),
        )


def find_powerless_login(facts: Facts, _: Limits) -> Iterator[Finding]:
    """A login that may look at nothing, so that nothing was looked at."""
    access = facts.access
    if access is None or facts.snapshot is not None or access.superuser:
        return
    if not {"spectral_operator", "spectral_owner"}.intersection(access.member_of) and not access.missing_groups:
        member = f"a member of {listed(access.member_of)} only" if access.member_of else "in none of Spectral's groups"
        yield Finding(
            "login",
            Level.ATTENTION,
            f"Login {facts.server.login} is {member}",
            "It may not look at the outbox, so nothing of delivery was examined",
            grant("spectral_operator", facts.server.login),
        )
