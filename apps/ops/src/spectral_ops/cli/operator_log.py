"""What an operator changes, as JSON lines on stderr: for the log of a timer or a pipeline, not for a person.

On a terminal the command's own words say it already, and nobody collects them: the record of what a person did is the
audit, which the database keeps in the same transaction. Nothing is loaded before there is something to say.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from spectral.core.events.probe import NoteTaker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.events.infrastructure.observability.logs import LogTool
    from spectral.core.events.probe import Note, Probe


def operator_log(service: str, variables: Mapping[str, str]) -> Probe | None:
    """The log of a program of this name; none if a person looks on."""
    return None if sys.stderr.isatty() else _OperatorLog(service, variables)


class _OperatorLog(NoteTaker):
    """Implements `Probe`."""

    def __init__(self, service: str, variables: Mapping[str, str]) -> None:
        self._service = service
        self._variables = variables
        self._tool: LogTool | None = None

    def tell(self, note: Note) -> None:
        """Log it; what was changed stays changed if nobody reads the log any more."""
        with suppress(Exception):
            self._made().tell(note)

    def _made(self) -> LogTool:
        if self._tool is None:
            from spectral.core.events.infrastructure.observability.logs import LogTool  # noqa: PLC0415  structlog
            from spectral.core.events.settings import Identity  # noqa: PLC0415  as above
            from spectral_workers.logs import json_logger  # noqa: PLC0415  as above

            # Of no generation: what an operator changes says itself which one it is about.
            identity = Identity.from_environ(self._variables, 0, self._service)
            self._tool = LogTool(identity, logger=json_logger(identity, sys.stderr))
        return self._tool
