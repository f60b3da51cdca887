"""The one error of this room: every way in which a server cannot be had, told to a person."""

from __future__ import annotations

from spectral.core.events.failure import SpectralError


class EmbeddedPostgresError(SpectralError):
    """No server: the message says why and ends with what to do next.

    It may quote the last lines of the server's log, and never carries a password or a connection string.
    """
