"""A server that keeps what it acknowledged, and can be brought down hard and up again under the same address."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spectral.core.embedded import EmbeddedPostgres, ServerOptions
from spectral.core.embedded.server import free_port


@contextmanager
def durable_server() -> Iterator[EmbeddedPostgres]:
    """One with fsync on, in a place and on a port that outlive a restart; all of it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="spectral-faults-", dir="/tmp") as name:
        Path(name).chmod(0o755)  # the server's user has to reach it when we are root
        options = ServerOptions(
            directory=Path(name) / "cluster",
            port=free_port(),
            settings={"max_connections": 120, "deadlock_timeout": "200ms"},
        )
        with EmbeddedPostgres(options=options) as server:
            yield server


def restart_at_once(server: EmbeddedPostgres) -> None:
    """`pg_ctl stop -m immediate`, and start: what was not on disk is gone."""
    os.kill(server.pid, signal.SIGQUIT)
    server.stop()
    server.start()
