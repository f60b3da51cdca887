"""What the server is told: the caller's settings, and the few that the launcher keeps to itself.

Invariant: the server listens on a private Unix socket and, if at all, on 127.0.0.1 with a password; no setting of the
caller can change where it listens, whom it lets in or where its files are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SettingValue = str | int | float | bool

FAST_AND_UNSAFE: Mapping[str, SettingValue] = {"fsync": False, "synchronous_commit": False, "full_page_writes": False}
"""For data that nobody will miss: a crash of the machine may corrupt it, a crash of the server does not."""

LOOPBACK = "127.0.0.1"

HOST_BASED_ACCESS = f"""\
# Written at every start. The socket lies in a directory that only this user can enter; TCP is open to every local user.
local all         all                trust
local replication all                trust
host  all         all {LOOPBACK}/32  scram-sha-256
"""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "include",
        "include_dir",
        "include_if_exists",
        "listen_addresses",
        "password_encryption",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)


def checked_settings(settings: Mapping[str, SettingValue]) -> dict[str, str]:
    """The caller's settings as text.

    Raises:
        EmbeddedPostgresError: a name is no name, or is the launcher's; a value cannot be written down.
    """
    return {_checked_name(name): _checked_value(name, value) for name, value in settings.items()}


def configuration_file(
    *, data: Path, sockets: Path, access: Path, port: int, tcp: bool, settings: Mapping[str, str]
) -> str:
    """The text of `postgresql.conf`: initdb's file, our defaults, the caller's settings, then what is not negotiable.

    The last line that names a setting wins.
    """
    defaults = {"timezone": "UTC", "log_timezone": "UTC", "lc_messages": "C"}
    fixed = {
        "listen_addresses": LOOPBACK if tcp else "",
        "port": str(port),
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
        "hba_file": str(access),
    }
    lines = [f"include {_quoted(str(data / 'postgresql.conf'))}"]
    lines += [f"{name} = {_quoted(value)}" for name, value in (defaults | dict(settings) | fixed).items()]
    return "\n".join(["# Written at every start; settings are given to the launcher.", *lines, ""])


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise EmbeddedPostgresError(f"{name!r} is not the name of a server setting; write it like work_mem")
    if name.lower() in _RESERVED:
        raise EmbeddedPostgresError(
            f"the setting {name} belongs to the launcher; leave it out (port and tcp are options of their own)"
        )
    return name.lower()


def _checked_value(name: str, value: SettingValue) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value)
    if not text.isprintable():
        raise EmbeddedPostgresError(
            f"the value of the setting {name} has a line break or a control character; remove it"
        )
    return text


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
