"""Why a broker is lost, in words a person can act on, without an address or a secret."""

from __future__ import annotations

import os
import ssl
from typing import Final

import nats.errors

from spectral.core.events.broker_settings import BROKER_URL_VARIABLE

_REFUSED: Final = f"the broker refuses the user, password or token; correct {BROKER_URL_VARIABLE}"
_NOT_PERMITTED: Final = (
    "the broker does not permit this user what the relay needs; grant $JS.API.>, $JS.ACK.>, _INBOX.> and the subjects "
    "that begin with this database's spectral_ prefix"
)
_SAID: Final = {"authorization": _REFUSED, "authentication": _REFUSED, "permissions violation": _NOT_PERMITTED}


def reason_of(error: BaseException | None) -> str:
    """What to say of what the driver raised; none: the connection ended without a word."""
    said = "" if error is None else str(error).lower()
    for words, reason in _SAID.items():
        if words in said:
            return reason
    match error:
        case None:
            reason = "the connection to the broker was lost"
        case nats.errors.SecureConnWantedError():
            reason = f"the broker offers no TLS and the URL asks for it; correct {BROKER_URL_VARIABLE} or the server"
        case ssl.SSLError():
            reason = f"TLS with the broker failed ({error.reason}); SSL_CERT_FILE may name the authority to trust"
        case OSError(errno=int(number)) if number > 0:
            reason = f"the broker cannot be reached: {os.strerror(number)}"
        case TimeoutError():
            reason = "the broker did not answer in time"
        case _:
            reason = f"the broker is lost ({type(error).__name__})"
    return reason
