"""The agent tools as plain functions: typed questions, typed answers, one database; no protocol, no server.

A change has two steps: a plan, which changes nothing and answers a token, and the token given back.
"""

from spectral_ops.mcp.tools.changing import discard_dlq_event, plan_discard, plan_replay, replay_dlq_event
from spectral_ops.mcp.tools.reading import (
    get_backlog,
    get_dlq_event_detail,
    list_audit,
    list_dlq_events,
    list_generations,
    run_doctor,
    triage_dlq,
)

__all__ = [
    "discard_dlq_event",
    "get_backlog",
    "get_dlq_event_detail",
    "list_audit",
    "list_dlq_events",
    "list_generations",
    "plan_discard",
    "plan_replay",
    "replay_dlq_event",
    "run_doctor",
    "triage_dlq",
]
