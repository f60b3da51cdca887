"""Who acts, for the audit: the agent as its client calls itself, and the person it acts for.

The client's name is what the client says. The database records its own login beside it.
"""

from __future__ import annotations

import re
from typing import Final

_UNTOLD: Final = "unknown"
_NAME: Final = 60
_VERSION: Final = 20
_PERSON: Final = 100
_STRANGE: Final = re.compile(r"[^\w.@+:-]+")


def acting(client: str | None, version: str | None, person: str) -> str:
    """Such as `agent:desk-agent/2.1 for ada@ops`; it fits the audit's column whatever the client is called."""
    name = _plain(client, _NAME) or _UNTOLD
    release = _plain(version, _VERSION)
    return f"agent:{name}{'/' if release else ''}{release} for {person.strip()[:_PERSON] or _UNTOLD}"


def _plain(text: str | None, length: int) -> str:
    """One word of it: what a client says of itself must not look like something else in the audit."""
    return _STRANGE.sub("_", (text or "").strip())[:length]
