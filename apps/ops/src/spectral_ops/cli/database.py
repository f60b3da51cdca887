"""Which database a command talks to. The connection string comes from the environment and is never printed.

There is no `--dsn`: a password on a command line is readable by every user of the machine and ends up in its history.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_URLS = ("SPECTRAL_DATABASE_URL", "DATABASE_URL")
_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")


def environment() -> Mapping[str, str]:
    """The process environment; every other function of the command line is handed a mapping."""
    return os.environ  # noqa: TID251  the command line is an app, and this is the one line that reads it


def resolve_dsn(variables: Mapping[str, str]) -> str:
    """The connection string that these variables name; empty when libpq is to read its own PG* variables.

    Raises:
        ConfigurationError: none of them is set.
    """
    for variable in _URLS:
        if url := variables.get(variable):
            # SQLAlchemy names its driver in the scheme; libpq does not know such a scheme.
            return re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", url)
    if any(variables.get(variable) for variable in _LIBPQ):
        return ""
    from spectral.core.events.failure import ConfigurationError  # noqa: PLC0415  pydantic comes with it

    raise ConfigurationError("no database is named; set SPECTRAL_DATABASE_URL, DATABASE_URL or the PG* variables")
