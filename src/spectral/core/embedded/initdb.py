"""A new data directory: UTF-8, ordered by code point on every machine, with a random password for TCP.

Invariant: `data/` is complete or absent. initdb works in `data.partial/`, which is renamed when it is whole and thrown
away by the next start when it never became so.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from spectral.core.embedded.binaries import Binaries
    from spectral.core.embedded.home import Home
    from spectral.core.embedded.leash import Leash

_FIRST_WITH_BUILTIN_LOCALES = 17
_INITDB_SECONDS = 300.0


def initialise(home: Home, leash: Leash, binaries: Binaries, *, superuser: str) -> None:
    """Make `home.data`.

    Raises:
        EmbeddedPostgresError: initdb cannot run here, or failed; its own words are in the message.
    """
    if not home.account.has_passwd_entry:
        raise EmbeddedPostgresError(
            f"initdb needs a user with an entry in /etc/passwd, and {home.account.name} has none; add one, "
            "run as another user, open a directory that was initialised before, or use any DSN instead"
        )
    home.make_for_account(home.partial_data)
    home.renew_password()
    # initdb runs as the account, which may not read the password's own file: it gets one of its own for a moment.
    password_file = home.write("password-for-initdb", home.password(), mode=0o600)
    try:
        home.account.own(password_file)
        leash.start(home.order(_command(home, binaries, password_file, superuser), stop_signal=signal.SIGTERM))
        code = leash.wait_for_exit(_INITDB_SECONDS)
    finally:
        password_file.unlink()
    if code != 0:
        full = "No space left on device" in home.log_tail()
        advice = "make room on that disk" if full else "see what initdb says"
        raise EmbeddedPostgresError(
            f"initdb could not make a data directory in {home.path}; {advice} and start again. "
            f"It ends with:\n{home.log_tail()}"
        )
    home.partial_data.rename(home.data)


def _command(home: Home, binaries: Binaries, password_file: Path, superuser: str) -> Sequence[str]:
    return [
        str(binaries.initdb),
        f"--pgdata={home.partial_data}",
        f"--username={superuser}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",  # what its own pg_hba.conf says if somebody starts the directory by hand
        "--encoding=UTF8",
        *_locale(binaries.major),
        "--no-instructions",
        *(["--no-sync"] if home.throw_away else []),
    ]


def _locale(major: int) -> Sequence[str]:
    """The same order of text everywhere: Postgres's own C.UTF-8 where it has one, the C library's before that."""
    if major >= _FIRST_WITH_BUILTIN_LOCALES:
        return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    return ["--locale=C.UTF-8"]
