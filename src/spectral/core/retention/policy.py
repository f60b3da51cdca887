"""How long things are kept: the policies, and the one rule that binds them.

A delivered event is *active* first, then put away (it can still be read, for as long as its *grace*), then deleted. The
same holds for the dedup record of each handler, which has to outlive the event: while an event is there it can be
replayed or taken up again, and without its record the handler would take effect twice. Hence

    event_handled.active > outbox_row.active + outbox_row.grace

which is checked before any policies are used. The database holds to it too, row by row: a record stays while any event
has its key. The rule is what makes that the exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

from spectral.core.events.failure import ConfigurationError
from spectral.core.partitions import Keep

EVERY_CLASS: Final = "*"
LONGEST: Final = timedelta(days=36_500)
"""A century: beyond it a time is a mistake, and far beyond it no date."""


class Subject(StrEnum):
    """What is kept, in the order in which it is swept: records go when their events are gone."""

    OUTBOX_ROW = "outbox_row"
    EVENT_HANDLED = "event_handled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """How long one kind of thing is kept.

    subject: what; content_class: which of them, `*` for all.
    active: how long after its end it stays as it is (an event ends when it is delivered, a record is written at once).
    grace: how long it is put away before it is deleted; a discarded event has this time too.
    hard_delete: whether it is deleted at all, or stays put away.
    """

    subject: Subject
    content_class: str = EVERY_CLASS
    active: timedelta
    grace: timedelta
    hard_delete: bool = True

    def __post_init__(self) -> None:
        for name in ("active", "grace"):
            given: object = getattr(self, name)
            if not isinstance(given, timedelta) or not timedelta(0) <= given <= LONGEST:
                raise ConfigurationError(
                    f"{self.subject}: {name} must be a timedelta between nothing and {LONGEST.days} days, not {given!r}"
                )
        if not self.active:
            raise ConfigurationError(f"{self.subject}: active must be longer than nothing; set a day at least")

    @property
    def key(self) -> tuple[Subject, str]:
        """Where it stands in a registry."""
        return self.subject, self.content_class


Registry: TypeAlias = Mapping[tuple[Subject, str], RetentionPolicy]


def registry_of(*policies: RetentionPolicy) -> Registry:
    """These policies, and the default ones for what they say nothing of.

    Raises:
        ConfigurationError: they do not go together; the message says what to set.
    """
    return checked_registry({**_DEFAULTS, **{policy.key: policy for policy in policies}})


def checked_registry(registry: Registry) -> Registry:
    """The same registry, known to be one that may be swept by.

    Raises:
        ConfigurationError: it lacks a policy or has one that nothing follows, or a dedup record would be deleted while
            its event is still there.
    """
    for (subject, content_class), policy in registry.items():
        if (subject, content_class) != policy.key:
            raise ConfigurationError(
                f"the policy of {policy.subject} for {policy.content_class!r} stands under "
                f"({subject}, {content_class!r}); build the registry with registry_of(...)"
            )
        if content_class != EVERY_CLASS:
            raise ConfigurationError(
                f"{subject}: the sweep knows no content classes; set one policy for {EVERY_CLASS!r}"
                f" instead of {content_class[:40]!r}"
            )
    missing = [subject for subject in Subject if (subject, EVERY_CLASS) not in registry]
    if missing:
        raise ConfigurationError(f"no policy for {', '.join(missing)}; build the registry with registry_of(...)")
    _require_outliving(policy_for(registry, Subject.OUTBOX_ROW), policy_for(registry, Subject.EVENT_HANDLED))
    return registry


def policy_for(registry: Registry, subject: Subject) -> RetentionPolicy:
    """The policy that every thing of this kind follows."""
    return registry[subject, EVERY_CLASS]


def keep_of(registry: Registry) -> Keep:
    """How long events are kept, as the partitions of the outbox are dropped by it."""
    policy = policy_for(registry, Subject.OUTBOX_ROW)
    return Keep(policy.active, policy.grace if policy.hard_delete else None)


def _require_outliving(outbox: RetentionPolicy, handled: RetentionPolicy) -> None:
    if not handled.active > outbox.active + outbox.grace:
        least = outbox.active + outbox.grace + timedelta(days=1)
        raise ConfigurationError(
            f"dedup records would not outlive their events: event_handled is active for {_days(handled.active)}, "
            f"outbox_row for {_days(outbox.active)} and {_days(outbox.grace)} of grace; "
            f"set event_handled.active to {_days(least)} or more, or keep events for a shorter time"
        )
    if handled.hard_delete and not outbox.hard_delete:
        raise ConfigurationError(
            "dedup records would not outlive their events: events stay put away for ever; "
            "set hard_delete=False for event_handled too"
        )


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):g} days"


_DEFAULTS: Final = {
    policy.key: policy
    for policy in (
        RetentionPolicy(subject=Subject.OUTBOX_ROW, active=timedelta(days=45), grace=timedelta(days=7)),
        RetentionPolicy(subject=Subject.EVENT_HANDLED, active=timedelta(days=60), grace=timedelta(days=7)),
    )
}

POLICY_REGISTRY: Final[Registry] = MappingProxyType(checked_registry(_DEFAULTS))
"""The policies that hold unless a project passes its own."""
