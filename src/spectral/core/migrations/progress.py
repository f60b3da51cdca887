"""What `up` reports while it works: a closed set of events for a callback, so that the library never prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from datetime import timedelta

    from spectral.core.migrations.files import Migration
    from spectral.core.migrations.fingerprint import ObjectDrift


@dataclass(frozen=True, slots=True)
class Adopted:
    """The Supabase CLI had applied this file; the ledger knows it now."""

    migration: Migration


@dataclass(frozen=True, slots=True)
class Overwriting:
    """These objects were changed by hand; the fingerprint about to be recorded will take them as they are."""

    objects: tuple[ObjectDrift, ...]


@dataclass(frozen=True, slots=True)
class Applying:
    """This file's transaction begins; it is number `position` of `total`."""

    migration: Migration
    position: int
    total: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A lock was not to be had; the subject (a file, or the ledger) was rolled back and is tried again later."""

    subject: str
    attempt: int
    attempts: int
    pause: timedelta


@dataclass(frozen=True, slots=True)
class Applied:
    """This file is committed."""

    migration: Migration
    duration: timedelta


@dataclass(frozen=True, slots=True)
class Skipped:
    """Another process applied this file in the meantime."""

    migration: Migration


Progress: TypeAlias = Adopted | Overwriting | Applying | Waiting | Applied | Skipped
OnProgress: TypeAlias = Callable[[Progress], None]
