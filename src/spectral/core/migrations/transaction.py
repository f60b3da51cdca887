"""One file, one transaction: lock, look again, run, record, commit.

    begin                                  read committed, so that the look after the lock sees the last commit
    set local lock_timeout                 nobody queues behind a migration that itself waits for a lock
    pg_advisory_xact_lock                  one runner at a time; ends with the transaction, so poolers do not matter
    ledger says applied? -> skip           another process was faster
    the file's statements
    ledger row, fingerprint
    commit

A lock that cannot be had rolls the whole file back and is tried again after a growing pause: on a busy table the
short lock timeout is what keeps traffic flowing, and patience is what gets the migration through.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg

from spectral.core.migrations import fingerprint, ledger
from spectral.core.migrations.failure import MigrationFailedError, MigrationLockError
from spectral.core.migrations.progress import Adopted, Applied, Skipped, Waiting
from spectral.core.migrations.statements import Statement, line_of, split

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spectral.core.migrations.files import Migration
    from spectral.core.migrations.progress import OnProgress

# "SPECTRAL" in ASCII: one constant for every database, unlikely to be anybody else's advisory lock.
LOCK_KEY = 0x535045435452414C

# For this transaction only: a bound on every wait for a lock, none on how long a statement may work.
_LIMITS = """\
select pg_catalog.set_config('lock_timeout', %s, true), pg_catalog.set_config('statement_timeout', '0', true)"""

_LOCK = "select pg_catalog.pg_advisory_xact_lock(%s)"

# Who holds the migration lock in this database.
_HOLDER = """\
select a.pid, a.application_name, extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8
from pg_catalog.pg_locks l
join pg_catalog.pg_database d on d.oid = l.database and d.datname = pg_catalog.current_database()
join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.classid = (%(key)s::int8 >> 32)::oid and l.objid = (%(key)s::int8 & 4294967295)::oid
order by a.xact_start
limit 1"""

# Whose transactions in this database have been open longest: the ones a table lock usually waits for.
_OLDEST = """\
select a.pid, a.application_name, extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8
from pg_catalog.pg_stat_activity a
where a.datname = pg_catalog.current_database() and a.pid <> pg_catalog.pg_backend_pid()
    and a.xact_start is not null and a.backend_type = 'client backend'
order by a.xact_start
limit 3"""

_RETRIED = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """How `up` behaves: how long one wait for a lock may be, how often it is tried, the first pause in between."""

    lock_timeout: timedelta = timedelta(seconds=5)
    attempts: int = 5
    pause: timedelta = timedelta(milliseconds=500)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.lock_timeout < timedelta(milliseconds=1):
            raise ValueError("lock_timeout has to be a millisecond or more: zero would wait for ever")
        if self.attempts < 1:
            raise ValueError("attempts has to be one or more")


class _LockBusyError(Exception):
    """A lock was not to be had in this attempt: the migration lock, or one that the statement on this line needs."""

    def __init__(self, line: int | None) -> None:
        super().__init__()
        self.line = line


@dataclass(frozen=True, slots=True)
class Session:
    """What every transaction of one `up` shares."""

    connection: psycopg.Connection[Any]
    files: tuple[Migration, ...]
    options: UpOptions
    on_progress: OnProgress


def apply_file(session: Session, migration: Migration) -> bool:
    """Apply one file, or find that another process has; True when this call applied it.

    Raises:
        MigrationFailedError: a statement failed.
        MigrationLockError: a lock was not to be had in any attempt.
    """
    duration = _patiently(session, migration.filename, lambda: _apply_once(session, migration))
    session.on_progress(Skipped(migration) if duration is None else Applied(migration, duration))
    return duration is not None


def prepare_ledger(session: Session, adoptable: Sequence[Migration]) -> None:
    """Create the ledger where there is none, and enter the files that the Supabase CLI has applied."""
    _patiently(session, "the ledger", lambda: _prepare_once(session, adoptable))
    for migration in adoptable:
        session.on_progress(Adopted(migration))


def _apply_once(session: Session, migration: Migration) -> timedelta | None:
    connection = session.connection
    with connection.transaction():
        _lock(session)
        # What the Supabase CLI had applied is in the ledger by now, so the ledger alone decides.
        found = ledger.compare(session.files, ledger.read_applied(connection), supabase=())
        found.require_no_drift()
        if migration not in found.pending:
            return None
        started = time.monotonic()
        for statement in split(migration.sql):
            _run(connection, migration, statement)
        duration = timedelta(seconds=time.monotonic() - started)
        ledger.record(connection, migration, duration=duration, origin=ledger.Origin.RUNNER)
        connection.execute(fingerprint.RECORD_FINGERPRINT.encode())
    return duration


def _prepare_once(session: Session, adoptable: Sequence[Migration]) -> None:
    connection = session.connection
    with connection.transaction():
        _lock(session)
        connection.execute(ledger.CREATE_LEDGER.encode())
        known = {row.version for row in ledger.read_applied(connection)}
        missing = [each for each in adoptable if each.version not in known]
        for migration in missing:
            ledger.record(connection, migration, duration=timedelta(0), origin=ledger.Origin.SUPABASE)
        if missing:
            connection.execute(fingerprint.RECORD_FINGERPRINT.encode())


def _lock(session: Session) -> None:
    milliseconds = round(session.options.lock_timeout / timedelta(milliseconds=1))
    session.connection.execute(_LIMITS, (f"{milliseconds}ms",))
    try:
        session.connection.execute(_LOCK, (LOCK_KEY,))
    except _RETRIED:
        raise _LockBusyError(None) from None


def _run(connection: psycopg.Connection[Any], migration: Migration, statement: Statement) -> None:
    try:
        # Bytes without parameters: the simple protocol, and no placeholder is looked for in the text.
        connection.execute(statement.text.encode())
    except _RETRIED:
        raise _LockBusyError(statement.line) from None
    except psycopg.Error as error:
        if connection.broken:
            raise
        position = int(error.diag.statement_position or 1)
        raise MigrationFailedError(
            migration.filename,
            line=statement.line + line_of(statement.text, position - 1) - 1,
            sqlstate=error.sqlstate,
            reason=error.diag.message_primary or type(error).__name__,
        ) from None


def _patiently(session: Session, subject: str, work: Callable[[], timedelta | None]) -> timedelta | None:
    """Do this work; when a lock is not to be had, pause and do it again, a few times."""
    options, pause = session.options, session.options.pause
    for attempt in range(1, options.attempts):
        try:
            return work()
        except _LockBusyError:
            session.on_progress(Waiting(subject, attempt, options.attempts, pause))
            time.sleep(pause.total_seconds())
            pause *= 2
    try:
        return work()
    except _LockBusyError as busy:
        raise MigrationLockError(_waited_in_vain(session, subject, busy.line)) from None


def _waited_in_vain(session: Session, subject: str, line: int | None) -> str:
    options = session.options
    waited = f"waited {options.lock_timeout.total_seconds():g} s, {options.attempts} time(s),"
    if line is None:
        rows = session.connection.execute(_HOLDER, {"key": LOCK_KEY}).fetchall()
        held = f"held by {_sessions(rows)}" if rows else "which has just been released"
        return f"{waited} for the migration lock, {held}; {subject} was not applied: run up again when it is free"
    rows = session.connection.execute(_OLDEST).fetchall()
    open_since = f"the longest open transactions are {_sessions(rows)}" if rows else "it may be free by now"
    return (
        f"{waited} for a lock that {subject} needs on line {line}; {open_since}; "
        "the file was rolled back whole: run up again when they have ended"
    )


def _sessions(rows: Sequence[tuple[int, str | None, float | None]]) -> str:
    return ", ".join(
        f"pid {pid} ({application or 'unnamed'}{'' if seconds is None else f', open for {seconds:.0f} s'})"
        for pid, application, seconds in rows
    )
