"""How long things are kept, written down by hand: a difference here is a change of contract, not of a test."""

from __future__ import annotations

from datetime import timedelta

from spectral.core.retention import POLICY_REGISTRY, VARIABLES, RetentionPolicy, Subject, policies_from, policy_for

OUTBOX = RetentionPolicy(
    subject=Subject.OUTBOX_ROW,
    content_class="*",
    active=timedelta(days=45),
    grace=timedelta(days=7),
    hard_delete=True,
)
HANDLED = RetentionPolicy(
    subject=Subject.EVENT_HANDLED,
    content_class="*",
    active=timedelta(days=60),
    grace=timedelta(days=7),
    hard_delete=True,
)


def test_a_dedup_record_outlives_the_longest_life_of_its_event() -> None:
    outbox = policy_for(POLICY_REGISTRY, Subject.OUTBOX_ROW)
    handled = policy_for(POLICY_REGISTRY, Subject.EVENT_HANDLED)
    assert handled.active > outbox.active + outbox.grace


def test_the_policies_are_these() -> None:
    assert dict(POLICY_REGISTRY) == {("outbox_row", "*"): OUTBOX, ("event_handled", "*"): HANDLED}


def test_nothing_set_means_these_policies() -> None:
    assert dict(policies_from({})) == dict(POLICY_REGISTRY)


def test_the_variables_are_called_so() -> None:
    assert VARIABLES == {
        "outbox_row": ("SPECTRAL_RETENTION_OUTBOX_DAYS", "SPECTRAL_RETENTION_OUTBOX_GRACE_DAYS"),
        "event_handled": ("SPECTRAL_RETENTION_HANDLED_DAYS", "SPECTRAL_RETENTION_HANDLED_GRACE_DAYS"),
    }
