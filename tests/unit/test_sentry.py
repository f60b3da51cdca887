"""Reports to Sentry: what they say, and what they never say. With the real SDK and no network."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import ModuleType
from typing import Any
from uuid import UUID

import pytest
import sentry_sdk

from spectral.core.events.outcome import AlreadyHandled, Handled, Released, Retry
from spectral.core.events.probe import DeadRow, EventRef, Reaped, Stopped, Unhandled
from tests.unit.sentry_stage import (
    CANARY,
    DELIVERY,
    ERROR,
    EVENT_ID,
    ROW_SPAN_ID,
    SPAN_ID,
    TRACE_ID,
    finished,
    only,
    sentry,
    tool,
)

EVENT = EventRef(EVENT_ID, "worlds.scan.completed", "worlds", "platform", None, DELIVERY.trace_context)
ROW_ID = UUID("00000000-0000-4000-8000-00000000000a")
DEAD = DeadRow(
    row_id=ROW_ID,
    event_id=EVENT_ID,
    event_type="worlds.scan.completed",
    source="worlds",
    target="platform",
    workspace_id=None,
    trace_context=DELIVERY.trace_context,
    attempts=6,
    last_error="WorkerLostError: worker worker-2 is gone",
    generation=3,
)

# what is said


def test_a_dead_letter_is_reported_with_who_what_and_why() -> None:
    with sentry() as kept:
        tool().tell(finished())
    event = only(kept)
    assert event["level"] == "error"
    assert event["fingerprint"] == ["spectral", "worlds.scan.completed", "ValueError"]
    assert event["logentry"] == {
        "message": "%s to %s has failed: %s",
        "params": ["worlds.scan.completed", "platform", "ValueError"],
        "formatted": "worlds.scan.completed to platform has failed: ValueError",
    }
    assert event["tags"] == {
        "event_id": str(EVENT_ID),
        "event_type": "worlds.scan.completed",
        "source": "worlds",
        "target": "platform",
        "handler_name": "platform.project",
        "generation": "3",
        "service": "shop",
        "environment": "staging",
    }
    assert event["extra"] == {
        "last_error": ERROR,
        "attempts": 6,
        "worker": "worker-1",
        "suppressed": 0,
        "suppressed_others": 0,
    }


def test_the_report_is_linked_to_the_trace_of_the_handler() -> None:
    with sentry() as kept:
        tool().tell(finished())
    assert only(kept)["contexts"]["trace"] == {"trace_id": TRACE_ID, "span_id": SPAN_ID}


@pytest.mark.parametrize(
    ("stored", "trace"),
    [(DELIVERY.trace_context, {"trace_id": TRACE_ID, "span_id": ROW_SPAN_ID}), (None, None), ("nonsense", None)],
)
def test_without_a_span_it_is_linked_to_the_trace_of_the_row(stored: str | None, trace: object) -> None:
    with sentry() as kept:
        tool().tell(finished(trace_context=stored)._replace(traceparent=None))
    assert only(kept)["contexts"].get("trace") == trace


def test_a_row_whose_workers_were_lost_is_reported() -> None:
    with sentry() as kept:
        lost = DEAD._replace(last_error="WorkerLostError: worker worker-2 is gone")
        tool().tell(Reaped(EVENT_ID, "failed", "orphaned", "worker-2", 6, EVENT, lost))
    event = only(kept)
    assert event["fingerprint"] == ["spectral", "worlds.scan.completed", "WorkerLostError"]
    assert event["extra"]["last_error"] == "WorkerLostError: worker worker-2 is gone"
    assert (event["tags"]["event_id"], event["extra"]["attempts"]) == (str(EVENT_ID), 6)
    assert event["tags"]["generation"] == "3"


def test_rows_that_nobody_handles_are_reported() -> None:
    with sentry() as kept:
        types = ("worlds.scan.started", "worlds.scan.failed")
        unhandled = DEAD._replace(last_error="NoHandlerError: no handler of platform is subscribed")
        tool().tell(Unhandled("platform", [unhandled._replace(event_type=event_type) for event_type in types]))
    kinds = [event["fingerprint"] for event in kept.events]
    assert kinds == [["spectral", event_type, "NoHandlerError"] for event_type in types]
    assert {event["tags"]["target"] for event in kept.events} == {"platform"}


@pytest.mark.parametrize(
    "note",
    [
        Reaped(ROW_ID, "failed", "orphaned", "worker-2", 6, EVENT, DEAD),
        Unhandled("platform", [DEAD]),
    ],
    ids=["worker_lost", "no_handler"],
)
def test_a_row_that_is_known_is_reported_with_whose_it_was(note: Reaped | Unhandled) -> None:
    watched = tool()
    with sentry() as kept:
        assert watched.wants(note)
        watched.tell(note)
    event = only(kept)
    assert event["fingerprint"] == ["spectral", "worlds.scan.completed", "WorkerLostError"]
    assert event["tags"] == {
        "event_id": str(EVENT_ID),
        "event_type": "worlds.scan.completed",
        "source": "worlds",
        "target": "platform",
        "generation": "3",
        "service": "shop",
        "environment": "staging",
    }
    said = event["extra"]
    assert (said["last_error"], said["attempts"]) == (DEAD.last_error, 6)
    assert event["contexts"]["trace"] == {"trace_id": TRACE_ID, "span_id": ROW_SPAN_ID}
    (crumb,) = event["breadcrumbs"]["values"]
    assert crumb["data"] == {
        "event_id": str(EVENT_ID),
        "event_type": "worlds.scan.completed",
        "source": "worlds",
        "target": "platform",
        "last_error": DEAD.last_error,
        "attempts": 6,
    }


def test_of_rows_that_are_known_each_is_reported_once() -> None:
    kinds = ("worlds.scan.started", "worlds.scan.failed")
    dead = [DEAD._replace(event_type=kind, trace_context=None) for kind in kinds]
    with sentry() as kept:
        tool().tell(Unhandled("platform", dead))
    assert [event["tags"]["event_type"] for event in kept.events] == list(kinds)
    assert not any("trace" in event["contexts"] for event in kept.events)


@pytest.mark.parametrize(
    "note",
    [
        *(finished(each) for each in (Handled(), AlreadyHandled(), Retry(ERROR, timedelta(0)), Released())),
        Reaped(EVENT_ID, "pending", "orphaned", "worker-2", 1, EVENT),
        Stopped(),
    ],
    ids=str,
)
def test_what_is_no_dead_letter_is_not_reported(note: Any) -> None:  # noqa: ANN401  a note
    watched = tool()
    with sentry() as kept:
        assert not watched.wants(note)
        watched.tell(note)
        sentry_sdk.capture_message("the end")
    assert "breadcrumbs" not in only(kept) or not only(kept)["breadcrumbs"]["values"]


# what is never said


def test_neither_payload_nor_variables_nor_stack_are_reported_whatever_the_program_has_set() -> None:
    options = {
        "default_integrations": True,
        "auto_enabling_integrations": False,
        "include_local_variables": True,
        "include_source_context": True,
        "attach_stacktrace": True,
    }
    on_the_stack = CANARY
    with sentry(**options) as kept:
        tool().tell(finished(idempotency_key=on_the_stack))
    assert CANARY not in "".join(kept.texts)
    event = only(kept)
    assert "exception" not in event
    assert not event["threads"]["values"]
    assert "sys.argv" not in event["extra"]


def test_what_the_program_has_told_sentry_about_something_else_is_not_added() -> None:
    with sentry() as kept:
        sentry_sdk.set_user({"id": CANARY})
        sentry_sdk.set_tag("of", CANARY)
        sentry_sdk.set_context("request", {"body": CANARY})
        sentry_sdk.add_breadcrumb(message=CANARY)
        with sentry_sdk.new_scope() as scope:
            scope.set_extra("cookie", CANARY)
            scope.add_attachment(bytes=CANARY.encode(), filename="x")
            tool().tell(finished())
    assert CANARY not in "".join(kept.texts)


def test_what_the_program_wants_scrubbed_it_may_scrub() -> None:
    def before_send(event: Any, _hint: Any) -> Any:  # noqa: ANN401  the SDK's own types
        event["tags"].pop("source")
        return event

    with sentry(before_send=before_send) as kept:
        tool().tell(finished())
    assert "source" not in only(kept)["tags"]


# without Sentry


def test_a_program_without_the_sdk_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sentry_sdk")
    tool().tell(finished())
    assert "sentry_sdk" not in sys.modules


def test_a_program_that_has_not_set_it_up_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uninitialised(ModuleType):
        get_client = staticmethod(sentry_sdk.get_client)

        @staticmethod
        def get_global_scope() -> object:
            raise AssertionError("nobody wants it")

    assert not sentry_sdk.is_initialized()
    monkeypatch.setitem(sys.modules, "sentry_sdk", Uninitialised("sentry_sdk"))
    assert not tool().wants(finished())
    tool().tell(finished())
