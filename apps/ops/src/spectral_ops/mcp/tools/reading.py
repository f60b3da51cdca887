"""The tools that only look. Every answer is bounded; payloads are in the detail of one event only, and cut there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from spectral.core import deployments
from spectral.core.operations import audit, dead_letters, doctor, events, insights, verdict
from spectral_ops.mcp import results
from spectral_ops.mcp.results_event import DlqEventDetail

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral_ops.mcp import arguments

_LISTED: Final = 100
_RECENT: Final = 10


async def list_dlq_events(database: Database, asked: arguments.ListDlqEvents) -> results.DlqEvents:
    """One page of the failed events that are meant, by first failure, newest first.

    Raises:
        RefusedError: the cursor is not one of this list.
    """
    page = await dead_letters.list_dead_letters(database, asked.wanted, limit=asked.limit, cursor=asked.cursor)
    return results.DlqEvents.model_validate(page)


async def triage_dlq(database: Database, asked: arguments.TriageDlq) -> results.DlqGroups:
    """The failed events that are meant by fingerprint, the largest groups first."""
    return results.DlqGroups.model_validate(
        await dead_letters.group_dead_letters(database, asked.wanted, limit=asked.limit)
    )


async def get_dlq_event_detail(database: Database, asked: arguments.GetDlqEventDetail) -> DlqEventDetail:
    """Everything about one event, whatever its status is by now.

    Raises:
        NotFoundError: there is no such event, or no more.
    """
    found = await events.get_event(database, asked.event_id)
    payload = found.payload_text if found.payload is None else json.dumps(found.payload, ensure_ascii=False)
    same = {name: getattr(found, name) for name in type(found).__slots__}
    bounded = {
        "cycles": found.cycles[-_RECENT:],
        "timeline": found.timeline[-2 * _RECENT :],
        "children": found.children[:_LISTED],
        "audit": None if found.audit is None else found.audit[:_RECENT],
        "payload": (payload or "")[: asked.payload_chars],
        "payload_truncated": found.payload_truncated or len(payload or "") > asked.payload_chars,
    }
    return DlqEventDetail.model_validate({**same, **bounded})


async def get_backlog(database: Database) -> results.Backlog:
    """How delivery stands, in words and in figures."""
    snapshot = await insights.take_snapshot(database)
    judged = verdict.judge(snapshot)
    return results.Backlog.model_validate(
        {
            "level": judged.level,
            "verdict": judged.sentences,
            "taken_at": snapshot.taken_at,
            "live_generation": snapshot.live_generation,
            "backlogs": snapshot.backlogs[:_LISTED],
            "workers": snapshot.workers[:_LISTED],
            "brakes": snapshot.brakes[:_LISTED],
            "notify_queue": snapshot.notify_queue,
        }
    )


async def list_generations(database: Database) -> results.Generations:
    """Every generation, what is left of it, and what to look at."""
    found = await deployments.list_deployments(database)
    return results.Generations.model_validate({"generations": found, "remarks": deployments.remarks(found)})


async def run_doctor(dsn: str, direct_dsn: str = "") -> results.Examination:
    """What is wrong with the database, each with why it matters and its fix. It opens connections of its own.

    Raises:
        DatabaseUnavailableError: one of the connection strings leads nowhere.
        ConfigurationError: one of them cannot be read.
    """
    return results.Examination.model_validate(await doctor.examine(dsn, direct_dsn))


async def list_audit(database: Database, asked: arguments.ListAudit) -> results.Audit:
    """One page of the audit, newest entry first.

    Raises:
        RefusedError: the cursor is not one of this list.
    """
    wanted = audit.AuditFilter(action=asked.action, event_id=asked.event_id)
    return results.Audit.model_validate(
        await audit.list_audit(database, wanted, limit=asked.limit, cursor=asked.cursor)
    )
