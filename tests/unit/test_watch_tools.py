"""The tools of the standard watch: what they want to be told, as things stand; and who shares that watch."""

from __future__ import annotations

import logging
from datetime import timedelta

import psycopg
import pytest
import sentry_sdk
import structlog

from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.infrastructure.observability.logs import LogTool
from spectral.core.events.infrastructure.observability.sentry import SentryTool
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.outcome import DeadLetter, Handled, Retry
from spectral.core.events.probe import Claimed, Failure, Finished, Note, Publish, Published, Replayed, Stopped
from spectral.core.events.settings import Identity
from tests.unit.log_notes import WHO, delivery, envelope
from tests.unit.sentry_stage import finished, sentry, tool

PATIENCE = 10.0


def dead() -> Finished:
    return Finished(delivery(), DeadLetter("ValueError: no"), (), 0.1)


def handled() -> Finished:
    return Finished(delivery(), Handled(), (), 0.1)


def published(failure: Failure | None = None) -> Published:
    return Published(Publish([envelope()], 3), 0.1, failure, None)


def wanted(log: LogTool, note: Note) -> bool:
    return log.cares_for(type(note)) and log.wants(note)


def test_lines_that_nobody_reads_do_not_wait() -> None:
    structlog.reset_defaults()
    log, logger = LogTool(WHO), logging.getLogger("spectral")
    before = logger.level
    again = Finished(delivery(), Retry("no", timedelta(0)), (), 0.1)
    try:
        logger.setLevel(logging.WARNING)
        quiet: list[Note] = [published(), handled(), Claimed("worlds", 1, 0.1, deaf=False), Replayed([], 3, "me", None)]
        assert not any(wanted(log, note) for note in quiet)
        loud: list[Note] = [published(Failure("E", "no")), again, dead(), Stopped()]
        assert all(wanted(log, note) for note in loud)
        logger.setLevel(logging.INFO)
        assert [wanted(log, note) for note in quiet] == [True, True, False, True]
        logger.setLevel(logging.CRITICAL + 1)
        assert not any(wanted(log, note) for note in (*quiet, *loud))
    finally:
        logger.setLevel(before)


def test_sentry_wants_losses_only_and_only_with_a_client() -> None:
    reports = tool()
    assert reports.cares_for(Finished)
    assert not reports.wants(finished())
    with sentry():
        assert reports.wants(finished())
        assert not reports.wants(finished(Handled()))
        assert not reports.wants(Stopped())


def test_a_client_that_is_set_where_the_event_was_lost_gets_the_report() -> None:
    watch = Watch({"sentry": SentryTool(Identity(generation=1))})
    watch.tell(finished())  # and nobody is there yet
    with sentry() as kept_reports:
        watch.tell(finished())
        assert watch.flush(PATIENCE)
    assert len(kept_reports.events) == 1
    assert not sentry_sdk.get_client().is_active()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRAL_GENERATION", "12")
    monkeypatch.setenv("SPECTRAL_SERVICE", "shop")


@pytest.mark.usefixtures("environment")
def test_publishers_of_a_process_share_one_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (publisher_for(object.__new__(psycopg.Connection))._publishing.probe for _ in range(2))
    assert isinstance(first, Watch)
    assert first is second
    monkeypatch.setenv("SPECTRAL_SERVICE", "another")
    assert publishing().probe is not first
