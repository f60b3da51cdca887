"""An error as it is kept in `last_error`: `ErrorClass: handler: message`, one line, at most 4 kB, nothing of the row.

Exceptions quote what they were given: pydantic the input, Postgres the row (DETAIL), drivers the connection string.
What is kept here is read by operators and tools, so those parts are left out, and whatever looks like a credential.
Whoever describes the failure of a handler gives the payload along: what the message quotes of it is left out too.
Beside a payload too large to be looked through at once the message is withheld; class, handler, constraint and the
server's code stay.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final, cast

from pydantic import ValidationError

from spectral.core.events.conceal import MAX_PAYLOAD, conceal, one_line, printed
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ERROR_BYTES: Final = 4_000
WITHHELD: Final = "[withheld beside a large payload]"
_MAX_SHOWN_ERRORS: Final = 5
_MAX_SHOWN_DEPTH: Final = 3
_BAD_DATA: Final = "22"

# What servers add in lines of their own, and SQLAlchemy: the statement and its parameters.
_DETAIL: Final = re.compile(
    r"\n((DETAIL|CONTEXT|LINE \d+|HINT|QUERY|STATEMENT|WHERE):|\[(SQL|parameters): ).*", re.DOTALL
)
_QUOTED: Final = re.compile(r'\s*"[^"]*"?')
# Each pattern starts at the beginning of a word: tried at every letter of a long one, it would take its square in time.
_KEY: Final = (
    r"(?<![\w.-])[\w.-]{0,64}(?:password|passwd|pwd|passphrase|secret|token|api[_-]?key|authorization)[\w.-]{0,64}"
)
_SECRETS: Final = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 ***"),
    # postgresql://user:secret@host; the secret may contain an @, and the text may end before the host
    (re.compile(r"(?<!\w)(\w+://[^\s:/@]*):\S+@"), r"\1:***@"),
    (re.compile(r"(?<!\w)(\w+://[^\s:/@]*):[^\s@/]+$"), r"\1:***"),
    # password=x, PGPASSWORD=x, 'client_secret': 'x', "access_token": "x"
    (
        re.compile(rf"(?i)({_KEY})(['\"]?\s*[=:]\s*)('(?:\\.|[^'\\])*'?|\"(?:\\.|[^\"\\])*\"?|[^\s,;&}}]+)"),
        r"\1\2***",
    ),
)


def describe(error: BaseException, handler_name: str | None = None, payload: str | None = None) -> str:
    """The error in one line, fit to be kept and shown, without what it quotes of a payload; never raises."""
    where = f"{handler_name}: " if handler_name else ""
    message = _message(error)
    if payload is not None and len(payload) > MAX_PAYLOAD:
        message = _withheld(error, message, payload)
    elif payload is not None:
        message = conceal(message, payload, keep=_constraint(error))
    return _cut(f"{_name(error)}: {where}{message}")


def describe_many(failures: Iterable[tuple[str, BaseException]], payload: str | None = None) -> str:
    """The first of several handlers' errors, and who else failed with what."""
    (name, first), *others = failures
    if not others:
        return describe(first, name, payload)
    more = _cut(", ".join(f"{other} {_name(error)}" for other, error in others), MAX_ERROR_BYTES // 4)
    return f"{_cut(describe(first, name, payload), MAX_ERROR_BYTES - len(more.encode()) - 10)} (also: {more})"


def _name(error: BaseException) -> str:
    return _clean(type(error).__name__)


def _message(error: BaseException, depth: int = 0) -> str:
    try:
        if isinstance(error, ValidationError):
            return _clean(_validation(error))
        if isinstance(error, BaseExceptionGroup):
            return _clean(_group(cast("BaseExceptionGroup[BaseException]", error), depth))
        if sqlstate_of(error) is not None:
            return _clean(_database(error))
        return _clean(str(error))
    except BaseException as broken:  # noqa: BLE001  an error whose __str__ raises must not keep its row from settling
        return f"(its message cannot be read: {_name(broken)})"


def _withheld(error: BaseException, message: str, payload: str) -> str:
    """What is known of an error without its words: the constraint and the server's code, or where the payload is wrong.

    To look a large payload through would stop the event loop for as long as hundreds of events take.
    """
    if isinstance(error, ValidationError):
        # It quotes nothing but keys, which are looked for alone: that of a field may be named, not one made of a value.
        keys, lowered = _keys(error), payload.lower()
        made = [key for key in keys if f'"{key}":' not in payload and key.lower() in lowered]
        return conceal(message, json.dumps([dict.fromkeys(keys), made]))
    constraint, state = _constraint(error), sqlstate_of(error)
    return " ".join(filter(None, [WITHHELD, constraint and f'"{constraint}"', state and f"({state})"]))


def _validation(error: ValidationError) -> str:
    """Where it does not fit and why, without what was given: neither values nor the payload's own keys."""
    found = error.errors(include_input=False, include_context=False, include_url=False)
    shown = "; ".join(f"{_place(each['loc'])}: {each['type']}" for each in found[:_MAX_SHOWN_ERRORS])
    more = f"; and {len(found) - _MAX_SHOWN_ERRORS} more" if len(found) > _MAX_SHOWN_ERRORS else ""
    return f"{error.error_count()} of {error.title}: {shown}{more}"


def _keys(error: ValidationError) -> list[str]:
    """What the places that are shown begin with."""
    try:
        found = error.errors(include_input=False, include_context=False, include_url=False)
    except Exception:  # noqa: BLE001  as for the message, which then says so
        return []
    return [str(each["loc"][0]) for each in found[:_MAX_SHOWN_ERRORS] if each["loc"]]


def _place(steps: tuple[int | str, ...]) -> str:
    """The field, named by the model; whatever lies deeper may be a key of the payload."""
    first, *rest = steps or ("payload",)
    return ".".join([str(first), *("*" if isinstance(step, str) else str(step) for step in rest)])


def _group(error: BaseExceptionGroup[BaseException], depth: int) -> str:
    if depth >= _MAX_SHOWN_DEPTH:
        return f"{error.message} [...]"
    members = "; ".join(f"{_name(each)}: {_message(each, depth + 1)}" for each in error.exceptions[:_MAX_SHOWN_ERRORS])
    return f"{error.message} [{members}]"


def _database(error: BaseException) -> str:
    """The server's first line: DETAIL and CONTEXT quote rows. Complaints about bad data quote the datum in theirs."""
    state = sqlstate_of(error) or ""
    first, *_ = str(error).splitlines() or [""]
    if state.startswith(_BAD_DATA):
        first = _QUOTED.sub("", first).rstrip(" :")
    return f"{first} ({state})"


def _constraint(error: BaseException) -> str | None:
    """Which constraint refused, if the driver says: the name is the schema's, whatever words the payload has."""
    try:
        # psycopg and asyncpg; what SQLAlchemy wraps; what Django raises from it.
        for each in (error, getattr(error, "orig", None), error.__cause__):
            told: object = getattr(getattr(each, "diag", each), "constraint_name", None)
            if isinstance(told, str):
                return told
    except Exception:  # noqa: BLE001  as for the message
        return None
    return None


def _clean(text: str) -> str:
    # Cut with some room to spare: what a cut leaves of a secret has to be recognised still.
    text = printed(_DETAIL.sub("", text[: 2 * MAX_ERROR_BYTES]))
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return one_line(text)


def _cut(text: str, limit: int = MAX_ERROR_BYTES) -> str:
    data = text.encode()
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "..."
