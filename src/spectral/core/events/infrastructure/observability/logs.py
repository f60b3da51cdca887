"""What a worker tells, as log lines: the message is a constant, the data are fields. Payloads are never among them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

import structlog

from spectral.core.events import probe
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry

if TYPE_CHECKING:
    from spectral.core.events.lease import Delivery
    from spectral.core.events.protocols import Logger


def handler_logger(delivery: Delivery, handler_name: str) -> Logger:
    """The logger a handler is given: every line says which event it is about."""
    bound: Logger = structlog.get_logger("spectral.handler").bind(**_fields(delivery), handler_name=handler_name)
    return bound


class LogProbe:
    """Implements `Probe` with structlog."""

    def __init__(self, worker: str, generation: int) -> None:
        self._log: Any = structlog.get_logger("spectral.worker").bind(worker=worker, generation=generation)

    def tell(self, note: probe.Note) -> None:
        """Log it; a log that cannot be written must not end the worker."""
        with suppress(Exception):  # there is nobody left to tell
            self._tell(note)

    def _tell(self, note: probe.Note) -> None:
        match note:
            case probe.Finished():
                self._finished(note)
            case probe.LeaseWasLost(delivery):
                self._log.warning("lease lost", **_fields(delivery))
            case probe.SettleGivenUp(delivery, error):
                self._log.error("settle given up", **_fields(delivery), error=error)
            case probe.Reaped(row_id, status, reason, worker, attempts):
                log = self._log.error if status == "failed" else self._log.warning
                log(
                    "reaped",
                    event_id=str(row_id),
                    status_result=status,
                    reason=reason,
                    lost_worker=worker,
                    attempts=attempts,
                )
            case probe.Unhandled(context, rows):
                for row_id, event_type in rows:
                    self._log.error("nobody handles", target=context, event_id=str(row_id), event_type=event_type)
            case probe.FannedOut(parent_id, contexts):
                log = self._log.info if contexts else self._log.warning
                log("fanned out" if contexts else "broadcast without subscribers", event_id=str(parent_id), to=contexts)
            case probe.HandlerRanAway(delivery, handler_name):
                self._log.error("handler ran away", **_fields(delivery), handler_name=handler_name)
            case probe.Quarantined(delivery):
                self._log.warning("running alone", **_fields(delivery))
            case _:
                self._tell_of_the_worker(note)

    def _tell_of_the_worker(self, note: probe.WorkerNote) -> None:
        match note:
            case probe.EarOpened(channels):
                self._log.info("listening", channels=channels)
            case probe.EarLost(error, retry_in):
                self._log.warning("ear lost", error=error, retry_seconds=retry_in.total_seconds())
            case probe.SubstrateLost(doing, error, retry_in):
                self._log.warning("database lost", doing=doing, error=error, retry_seconds=retry_in.total_seconds())
            case probe.LoopBlocked(seconds):
                self._log.error("event loop blocked", seconds=round(seconds, 1))
            case probe.Started(_, _, contexts):
                self._log.info("started", contexts=contexts)
            case probe.Stopping(held, grace):
                self._log.info("stopping", held=held, grace_seconds=grace.total_seconds())
            case probe.Stopped():
                self._log.info("stopped")
            case probe.Crashed(error):
                self._log.critical("crashed", error=error)
            case _:
                assert_never(note)

    def _finished(self, note: probe.Finished) -> None:
        result, error = _result(note.outcome)
        level = {"retry": "warning", "failed": "error"}.get(result, "info")
        fields = _fields(note.delivery) | {
            "handler_name": ",".join(note.handlers),
            "duration_ms": round(note.seconds * 1000, 1),
            "status_result": result,
        }
        if error is not None:
            fields["last_error"] = error
        getattr(self._log, level)("handled", **fields)


def _fields(delivery: Delivery) -> dict[str, object]:
    return {
        "event_id": str(delivery.event_id),
        "event_type": delivery.event_type,
        "source": delivery.source,
        "target": delivery.target,
        "workspace_id": str(delivery.workspace_id) if delivery.workspace_id else None,
        "attempts": delivery.attempts,
    }


def _result(outcome: Outcome) -> tuple[str, str | None]:
    match outcome:
        case Handled():
            return "delivered", None
        case AlreadyHandled():
            return "already handled", None
        case Retry(error):
            return "retry", error
        case DeadLetter(error):
            return "failed", error
        case Released():
            return "released", None
        case _:
            assert_never(outcome)
