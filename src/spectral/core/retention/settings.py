"""Policies and options from outside. The environment is an argument; only the top of a program reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.failure import ConfigurationError
from spectral.core.retention.policy import (
    LONGEST,
    POLICY_REGISTRY,
    Registry,
    RetentionPolicy,
    Subject,
    policy_for,
    registry_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES: Final = {
    Subject.OUTBOX_ROW: ("SPECTRAL_RETENTION_OUTBOX_DAYS", "SPECTRAL_RETENTION_OUTBOX_GRACE_DAYS"),
    Subject.EVENT_HANDLED: ("SPECTRAL_RETENTION_HANDLED_DAYS", "SPECTRAL_RETENTION_HANDLED_GRACE_DAYS"),
}
"""For each subject the variables of its active time and of its grace, in whole days."""

LEASE: Final = timedelta(minutes=2)
_MAX_NAME: Final = 150
_MAX_BLOCKS: Final = 1_000_000


def policies_from(environ: Mapping[str, str]) -> Registry:
    """The default policies, with the times that these variables set.

    Raises:
        ConfigurationError: one is no number of days, or they do not go together; the message says what to set.
    """
    changed: list[RetentionPolicy] = []
    for subject, (active, grace) in VARIABLES.items():
        usual = policy_for(POLICY_REGISTRY, subject)
        changed.append(
            RetentionPolicy(
                subject=subject,
                active=_days(environ, active, usual.active, least=1),
                grace=_days(environ, grace, usual.grace, least=0),
            )
        )
    try:
        return registry_of(*changed)
    except ConfigurationError as refusal:
        names = ", ".join(name for pair in VARIABLES.values() for name in pair)
        raise ConfigurationError(f"{refusal} ({names})") from None


def _days(environ: Mapping[str, str], variable: str, usual: timedelta, *, least: int) -> timedelta:
    text = environ.get(variable, "").strip()
    if not text:
        return usual
    # isascii: int() would take other scripts' digits
    if not (text.isascii() and re.fullmatch(r"[0-9]{1,6}", text) and least <= int(text) <= LONGEST.days):
        raise ConfigurationError(
            f"{variable}={text[:40]!r} is no number of days: "
            f"set it to a whole number from {least} to {LONGEST.days}, such as {variable}={usual.days}"
        )
    return timedelta(days=int(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How a sweep goes about it. The defaults are meant for every size of table.

    by: on whose behalf, for the audit.
    batch: rows that one call puts away, and as many that it deletes, at most; each call is a transaction of its own.
    blocks: how much of a table one call looks at, at most.
    lease: how long a sweeper may be silent before another one takes over. A call has to take less.
    dry_run: count only, and need no election.
    """

    by: str = "retention"
    batch: int = 5000
    blocks: int = 2000
    lease: timedelta = LEASE
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name, most in (("batch", _MAX_BLOCKS), ("blocks", _MAX_BLOCKS)):
            given: object = getattr(self, name)
            if type(given) is not int or not 1 <= given <= most:
                raise ConfigurationError(f"{name} must be a whole number from 1 to {most}, not {given!r}")
        if self.lease <= timedelta(0):
            raise ConfigurationError("lease must be longer than nothing; leave it at two minutes")
        if not 1 <= len(self.by) <= _MAX_NAME or "\0" in self.by:
            raise ConfigurationError(f"by must be a name of 1 to {_MAX_NAME} characters")
