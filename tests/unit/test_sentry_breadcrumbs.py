"""Breadcrumbs of dead letters: whatever the program reports afterwards shows them, in whatever thread or task."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any

import sentry_sdk
from sentry_sdk.integrations.asyncio import AsyncioIntegration

from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.probe import Unhandled
from tests.unit.log_notes import dead_row
from tests.unit.sentry_stage import CANARY, ERROR, EVENT_ID, Kept, finished, sentry, sentry_everywhere, tool

PATIENCE = 10.0


def shown(kept: Kept) -> list[dict[str, Any]]:
    """The breadcrumbs of the program's own report."""
    (own,) = [event for event in kept.events if event.get("message") == "the end"]
    values: list[dict[str, Any]] = own.get("breadcrumbs", {}).get("values", [])
    return values


def test_what_the_program_reports_next_shows_a_breadcrumb() -> None:
    watch = Watch({"sentry": tool()})
    with sentry() as kept:
        watch.tell(finished())
        sentry_sdk.capture_message("the end")  # at once: the outlet's thread has not looked at it yet
        assert watch.flush(PATIENCE)
    (crumb,) = shown(kept)
    assert (crumb["category"], crumb["level"], crumb["message"]) == ("spectral", "error", "dead letter")
    assert crumb["data"] == {
        "event_id": str(EVENT_ID),
        "event_type": "worlds.scan.completed",
        "source": "worlds",
        "target": "platform",
        "handler_name": "platform.project",
        "last_error": ERROR,
        "attempts": 6,
    }
    assert watch.troubles()["sentry"] == (0, 0)


def test_other_threads_and_contexts_show_it_too() -> None:
    watch, kept = Watch({"sentry": tool()}), Kept()
    with sentry_everywhere(kept), ThreadPoolExecutor(1) as thread:
        Context().run(watch.tell, finished())
        thread.submit(sentry_sdk.capture_message, "the end").result(PATIENCE)
        assert watch.flush(PATIENCE)
    assert [crumb["message"] for crumb in shown(kept)] == ["dead letter"]


async def test_tasks_that_sentry_keeps_apart_show_it_too() -> None:
    watch, kept = Watch({"sentry": tool()}), Kept()

    async def lose() -> None:
        watch.tell(finished())

    with sentry_everywhere(kept, integrations=[AsyncioIntegration()]):
        await asyncio.create_task(lose())
        sentry_sdk.capture_message("the end")
        assert await asyncio.to_thread(watch.flush, PATIENCE)
    assert [crumb["message"] for crumb in shown(kept)] == ["dead letter"]


def test_a_client_of_a_part_of_the_program_leaves_nothing_in_the_others() -> None:
    watch, everybodys = Watch({"sentry": tool()}), Kept()
    with sentry_everywhere(everybodys):
        with sentry():
            watch.tell(finished())
            assert watch.flush(PATIENCE)
        sentry_sdk.capture_message("the end")
    assert not shown(everybodys)


def test_what_the_program_does_with_breadcrumbs_holds_nothing_up() -> None:
    """`before_breadcrumb` is somebody else's: it may hang, so it is called behind the outlet."""
    released, called_in = threading.Event(), []

    def before_breadcrumb(crumb: Any, _hint: Any) -> Any:  # noqa: ANN401  the SDK's own types
        called_in.append(threading.get_ident())
        assert released.wait(PATIENCE)
        crumb["data"].pop("source")
        return crumb

    watch = Watch({"sentry": tool()})
    with sentry(before_breadcrumb=before_breadcrumb) as kept:
        watch.tell(finished())
        released.set()
        assert watch.flush(PATIENCE)
        sentry_sdk.capture_message("the end")
    (crumb,) = shown(kept)
    assert "source" not in crumb["data"]
    assert threading.get_ident() not in called_in
    assert len(kept.events) == 2


def test_of_very_many_the_last_hundred_are_left() -> None:
    rows = [dead_row()._replace(event_type=f"worlds.scan.x{number}") for number in range(5_000)]
    watch = Watch({"sentry": tool()})
    with sentry(max_breadcrumbs=1_000) as kept:
        watch.tell(Unhandled("platform", rows))
        sentry_sdk.capture_message("the end")
        assert watch.flush(PATIENCE)
    assert [crumb["data"]["event_type"] for crumb in shown(kept)] == [row.event_type for row in rows[-100:]]


def test_a_breadcrumb_says_nothing_of_what_is_in_the_event() -> None:
    watch = Watch({"sentry": tool()})
    with sentry() as kept:
        watch.tell(finished())
        sentry_sdk.capture_message("the end")
    assert CANARY not in "".join(kept.texts)
