"""Sentry: what goes to the DLQ is reported, if the program has set Sentry up; it is never imported from here.

A report is made by hand, of names, counts and the error as it is kept: no stack, no variables, no payload, and nothing
of what the program has told Sentry about itself elsewhere, such as a user or a request, for it is about an event that
has nothing to do with them. Reports are few: one a minute for each kind of failure, thirty in all; what was held back
is counted on the next. A breadcrumb is left for each, where whatever the program reports itself later will show it.
"""

from __future__ import annotations

import re
import sys
import time
from collections import OrderedDict, deque
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spectral.core.events.infrastructure.observability.outlet import flush_first
from spectral.core.events.infrastructure.observability.sentry_losses import LostReports
from spectral.core.events.outcome import DeadLetter
from spectral.core.events.probe import DeadRow, Finished, Reaped, Unhandled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from spectral.core.events.probe import Note
    from spectral.core.events.settings import Identity

Fingerprint: TypeAlias = tuple[str, str, str]

MESSAGE: Final = "%s to %s has failed: %s"
CATEGORY: Final = "spectral"
MAX_REPORTS: Final = 30
MAX_REMEMBERED: Final = 1_000
_MINUTE: Final = 60.0
_TRAIL: Final = 20
_MOST_CRUMBS: Final = 100
"""Of one note: Sentry keeps no more, unless told, and they are left in the flow."""

_UNKNOWN: Final = "unknown"
_LOGGERS: Final = ("spectral.worker", "spectral.publish", "spectral.operator")
_lost: Final = LostReports(CATEGORY)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """An event that has gone to the DLQ. What a note does not say of it is none."""

    event_id: str
    last_error: str
    event_type: str | None = None
    source: str | None = None
    target: str | None = None
    handler_name: str | None = None
    attempts: int | None = None
    generation: int | None = None
    traceparent: str | None = None

    @property
    def error_class(self) -> str:
        """What `last_error` begins with."""
        return self.last_error.partition(":")[0]

    @property
    def fingerprint(self) -> Fingerprint:
        """What counts as the same trouble."""
        return ("spectral", self.event_type or _UNKNOWN, self.error_class)


class SentryTool:
    """Implements `Tool`.

    clock: seconds, for the limits.
    """

    def __init__(
        self, identity: Identity, worker: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._identity = identity
        self._worker = worker
        self._allowance = Allowance(clock)
        self._ignored = False
        self._client: Any = None
        self._within = Context()
        self._trail: deque[dict[str, object]] = deque(maxlen=_TRAIL)

    def cares_for(self, kind: type[Note]) -> bool:
        """Whether an event may be lost by it, in a program that uses Sentry."""
        return kind in (Finished, Reaped, Unhandled) and "sentry_sdk" in sys.modules

    def wants(self, note: Note) -> bool:
        """Whether an event is lost by it, and there is a client to report to, where this is asked."""
        sdk: Any = sys.modules.get("sentry_sdk") if _is_loss(note) else None
        client = None if sdk is None else sdk.get_client()
        if client is None or not client.is_active():
            return False
        if client is not self._client:
            # Kept: a client may be set for a part of the program, and the outlet's thread is no part of it.
            self._client = client
            flush_first()
        if _asks_the_program(client):
            self._within = copy_context()
        else:
            # Here, for the program may report something of its own before the outlet's thread has looked at this.
            _leave_breadcrumbs(sdk, client, deque(_losses(note), maxlen=_MOST_CRUMBS), time.time())
        return True

    def wants_well(self, _kind: type[Note]) -> bool:
        """Nothing is lost then."""
        return False

    def tell(self, note: Note, at: float | None = None) -> None:
        """Report it if an event is lost by it; raises what Sentry raises."""
        losses = list(_losses(note))
        sdk: Any = sys.modules.get("sentry_sdk") if losses else None
        if sdk is None:
            return
        client = self._client if self._client is not None and self._client.is_active() else sdk.get_client()
        if not client.is_active():
            return
        self._keep_from_the_log()
        _lost.follow(client.transport)
        happened_at = time.time() if at is None else at
        if _asks_the_program(client):
            self._within.run(_leave_breadcrumbs, sdk, client, losses[-_MOST_CRUMBS:], happened_at)
        for loss in losses:
            self._trail.append({"timestamp": happened_at, "type": "default", **_crumb(loss)})
            allowed = self._allowance.take(loss.fingerprint)
            if allowed is not None:
                # The client and not the scope: that would add what it knows of whatever else the program does.
                client.capture_event(self._report(loss, allowed))

    def _keep_from_the_log(self) -> None:
        """What is reported here is logged too, and Sentry would report the log line again, without limit."""
        logging: Any = sys.modules.get("sentry_sdk.integrations.logging")
        if logging is not None and not self._ignored:
            self._ignored = True
            for name in _LOGGERS:
                logging.ignore_logger(name)

    def _report(self, loss: Loss, allowed: Allowed) -> dict[str, object]:
        said = (loss.event_type or "an event", loss.target or _UNKNOWN, loss.error_class)
        tags = {
            "event_id": loss.event_id,  # by which one looks for it
            "event_type": loss.event_type,
            "source": loss.source,
            "target": loss.target,
            "handler_name": loss.handler_name,
            "generation": str(self._identity.generation if loss.generation is None else loss.generation),
            "service": self._identity.service,
            "environment": self._identity.environment,
        }
        extra = {
            "last_error": loss.last_error,
            "attempts": loss.attempts,
            "worker": self._worker,
            "suppressed": allowed.suppressed,
            "suppressed_others": allowed.suppressed_others,
        }
        return {
            "level": "error",
            "logger": CATEGORY,
            "logentry": {"message": MESSAGE, "params": list(said), "formatted": MESSAGE % said},
            "fingerprint": list(loss.fingerprint),
            "tags": _told(tags),
            "extra": _told(extra),
            "contexts": _trace(loss.traceparent),
            "breadcrumbs": {"values": list(self._trail)},
            # Present, so that `attach_stacktrace` adds no stack, and none of the variables on it.
            "threads": {"values": []},
        }


def lost_reports() -> tuple[int, int]:
    """How many reports of this process Sentry has dropped by itself, and on how many it failed."""
    return _lost.dropped, _lost.failed


def _asks_the_program(client: Any) -> bool:  # noqa: ANN401  of a module that is not imported
    """Whether a breadcrumb is shown to the program first, which may take its time: then it is left by the outlet."""
    return client.options.get("before_breadcrumb") is not None


def _leave_breadcrumbs(sdk: Any, client: Any, losses: Iterable[Loss], at: float) -> None:  # noqa: ANN401  as above
    """Of a client that is everybody's, where every thread and task finds them; else for the part it was set for.

    A worker's tasks may each have an isolation scope of their own, and a thread always has.
    """
    everywhere = sdk.get_global_scope()
    scope = everywhere if everywhere.client is client else sdk.get_isolation_scope()
    for loss in losses:
        scope.add_breadcrumb({"timestamp": datetime.fromtimestamp(at, UTC), **_crumb(loss)})


def _crumb(loss: Loss) -> dict[str, object]:
    return {"category": CATEGORY, "level": "error", "message": "dead letter", "data": _fields(loss)}


def _is_loss(note: Note) -> bool:
    """Whether `_losses` has any; cheaply, for most notes have none."""
    if isinstance(note, Finished):
        return isinstance(note.outcome, DeadLetter)
    if isinstance(note, Reaped):
        return note.dead is not None
    return isinstance(note, Unhandled)


def _losses(note: Note) -> Iterator[Loss]:
    match note:
        case Finished(outcome=DeadLetter(error)):
            yield _failed(note, error)
        case Reaped(dead=DeadRow() as dead):
            yield _dead(dead)
        case Unhandled(dead=rows):
            yield from map(_dead, rows)
        case _:
            return


def _dead(row: DeadRow) -> Loss:
    return Loss(
        event_id=str(row.event_id),
        last_error=row.last_error,
        event_type=row.event_type,
        source=row.source,
        target=row.target,
        attempts=row.attempts,
        generation=row.generation,
        traceparent=row.trace_context,
    )


def _failed(note: Finished, error: str) -> Loss:
    delivery = note.delivery
    _, _, rest = error.partition(": ")
    named = rest.partition(":")[0]
    return Loss(
        event_id=str(delivery.event_id),
        last_error=error,
        event_type=delivery.event_type,
        source=delivery.source,
        target=delivery.target,
        handler_name=named if named in note.handlers else ",".join(note.handlers) or None,
        attempts=delivery.attempts,
        generation=delivery.generation,
        traceparent=note.traceparent or delivery.trace_context,
    )


def _fields(loss: Loss) -> dict[str, object]:
    names = ("event_id", "event_type", "source", "target", "handler_name", "last_error", "attempts")
    return _told({name: getattr(loss, name) for name in names})


def _told(fields: dict[str, Any]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _trace(traceparent: str | None) -> dict[str, object]:
    found = _TRACEPARENT.fullmatch(traceparent or "")
    return {} if found is None else {"trace": {"trace_id": found[1], "span_id": found[2]}}


# how many reports are made


@dataclass(frozen=True, slots=True)
class Allowed:
    """A report may be made; so many were not: of the same trouble since its last one, and of troubles forgotten."""

    suppressed: int
    suppressed_others: int


@dataclass(slots=True)
class _Trouble:
    reported_at: float | None = None
    suppressed: int = 0


@dataclass(slots=True)
class Allowance:
    """One report a minute of each trouble, thirty in all. A thousand troubles are remembered, the latest."""

    clock: Callable[[], float]
    _troubles: OrderedDict[Fingerprint, _Trouble] = field(default_factory=OrderedDict)
    _reported: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_REPORTS))
    _forgotten: int = 0

    def take(self, fingerprint: Fingerprint) -> Allowed | None:
        """Whether this may be reported now; none, and counted, if not."""
        now = self.clock()
        trouble = self._troubles.setdefault(fingerprint, _Trouble())
        self._troubles.move_to_end(fingerprint)
        if len(self._troubles) > MAX_REMEMBERED:
            _, oldest = self._troubles.popitem(last=False)
            self._forgotten += oldest.suppressed
        recent = trouble.reported_at is not None and now - trouble.reported_at < _MINUTE
        if recent or (len(self._reported) == MAX_REPORTS and now - self._reported[0] < _MINUTE):
            trouble.suppressed += 1
            return None
        allowed = Allowed(trouble.suppressed, self._forgotten)
        trouble.reported_at, trouble.suppressed, self._forgotten = now, 0, 0
        self._reported.append(now)
        return allowed

    def __len__(self) -> int:
        return len(self._troubles)
