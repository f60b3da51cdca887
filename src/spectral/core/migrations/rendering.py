"""The same work as a script for a DBA: what `up` would do, to be read, signed off and run with psql.

The script does by itself what the runner does around each file: one transaction, the lock, the ledger row, the
fingerprint. It is safe even where psql is not told to stop at an error: each file first checks that the one before it
is in the ledger, and a transaction whose check failed can only end in a rollback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.migrations.fingerprint import RECORD_FINGERPRINT
from spectral.core.migrations.ledger import CREATE_LEDGER, Origin
from spectral.core.migrations.statements import split
from spectral.core.migrations.transaction import LOCK_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.migrations.files import Migration

_HEADER = """\
-- Spectral migrations, written by `spectral migrate sql`.
-- Run it with: psql --no-psqlrc --set ON_ERROR_STOP=1 --file <this file>
-- Afterwards `spectral migrate verify` is clean."""

_BEGIN = f"""\
begin isolation level read committed;
set local lock_timeout = '5s';
set local statement_timeout = 0;
select pg_catalog.pg_advisory_xact_lock({LOCK_KEY});"""

_COMMIT = "commit;"


def render(adoptable: Sequence[Migration], pending: Sequence[Migration], *, after: str | None) -> str:
    """Write the script for these files; `after` is the version that must be in the ledger before the first of them."""
    if not adoptable and not pending:
        return "-- Nothing is pending.\n"
    parts = [_HEADER, _ledger(adoptable)]
    for migration in pending:
        parts.append(_file(migration, after=after, last=migration is pending[-1]))
        after = migration.version
    return "\n\n".join(parts) + "\n"


def _ledger(adoptable: Sequence[Migration]) -> str:
    adopted = [
        # The Supabase CLI applied it; only the ledger has to learn of it.
        _row(each, Origin.SUPABASE, duration="interval '0'") + "\non conflict (version) do nothing;"
        for each in adoptable
    ]
    fingerprint = [RECORD_FINGERPRINT] if adopted else []
    return "\n\n".join([_BEGIN, CREATE_LEDGER, *adopted, *fingerprint, _COMMIT])


def _file(migration: Migration, *, after: str | None, last: bool) -> str:
    return "\n\n".join(
        [
            f"-- ===== {migration.filename}",
            _BEGIN,
            _guard(migration, after),
            _terminated(migration),
            _row(migration, Origin.SCRIPT, duration="pg_catalog.clock_timestamp() - pg_catalog.now()") + ";",
            *([RECORD_FINGERPRINT] if last else []),
            _COMMIT,
        ]
    )


def _guard(migration: Migration, after: str | None) -> str:
    conditions = [f"exists (select from spectral_migrations.history where version = '{migration.version}')"]
    if after is not None:
        conditions.append(f"not exists (select from spectral_migrations.history where version = '{after}')")
    return f"""\
do $spectral$
begin
    if {" or ".join(conditions)} then
        raise exception 'this script does not fit the database: {migration.filename} was not applied'
            using hint = 'Write it anew with: spectral migrate sql';
    end if;
end
$spectral$;"""


def _row(migration: Migration, origin: Origin, *, duration: str) -> str:
    # Safe as literals: digits, a name of letters, digits, _ and -, a checksum of hex digits.
    return f"""\
insert into spectral_migrations.history (version, name, checksum, duration, origin)
values ('{migration.version}', '{migration.name}', '{migration.checksum}', {duration}, '{origin}')"""  # noqa: S608  as said above


def _terminated(migration: Migration) -> str:
    text = migration.sql.rstrip("\n")
    # On a line of its own: the file may end in a comment.
    return text if split(migration.sql)[-1].terminated else f"{text}\n;"
