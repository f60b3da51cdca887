"""Which database a command talks to. The connection string comes from the environment and is never printed.

There is no `--dsn`: a password on a command line is readable by every user of the machine and ends up in its history.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """The process environment; every other function of the command line is handed a mapping."""
    return os.environ  # noqa: TID251  the command line is an app, and this is the one line that reads it


def resolve_dsn(variables: Mapping[str, str]) -> str:
    """The connection string that these variables name; empty when libpq is to read its own PG* variables.

    Raises:
        ConfigurationError: none of them is set.
    """
    from spectral.core.events.settings import DatabaseSettings  # noqa: PLC0415  pydantic comes with it

    return DatabaseSettings.from_environ(variables).dsn
