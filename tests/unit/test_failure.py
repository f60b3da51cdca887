"""The error tree as its module draws it, and the shape of a cycle that was replayed."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from spectral.core.events import failure
from spectral.core.events.failure import DuplicateEventError, FailureCycle, PayloadError, SpectralError

TREE = {
    "SpectralError": ["Exception"],
    "ConfigurationError": ["SpectralError"],
    "SubstrateLostError": ["SpectralError"],
    "PublishError": ["SpectralError"],
    "NotInTransactionError": ["PublishError"],
    "DuplicateEventError": ["PublishError"],
    "UnknownContextError": ["PublishError"],
    "PayloadError": ["PublishError", "ValueError"],
    "PayloadNotJsonError": ["PayloadError"],
    "PayloadTooDeepError": ["PayloadError"],
    "PayloadTooLargeError": ["PayloadError"],
    "HandlerError": ["SpectralError"],
    "TerminalHandlerError": ["HandlerError"],
    "UndecodablePayloadError": ["HandlerError", "ValueError"],
    "HandlerTimeoutError": ["HandlerError", "TimeoutError"],
    "TransactionMisusedError": ["HandlerError"],
    "NoHandlerError": ["HandlerError"],
    "WorkerLostError": ["HandlerError"],
}

CYCLE: dict[str, Any] = {
    "cycle": 1,
    "attempts": 6,
    "last_error": "ValueError: no",
    "first_failed_at": "2026-11-15T10:00:00.5+00:00",
    "failed_at": "2026-11-15T10:05:00+00:00",
    "replayed_at": "2026-11-16T08:00:00+00:00",
    "replayed_by": "ada",
}


def errors_of_the_module() -> dict[str, type[Exception]]:
    return {
        name: kind
        for name, kind in vars(failure).items()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == failure.__name__
    }


def test_the_error_tree_is_as_drawn() -> None:
    assert {name: [base.__name__ for base in kind.__bases__] for name, kind in errors_of_the_module().items()} == TREE


def test_the_drawing_names_every_error() -> None:
    drawing = failure.__doc__ or ""
    assert [name for name in TREE if name not in drawing] == []


def test_every_error_can_be_caught_as_one_of_ours() -> None:
    assert [name for name, kind in errors_of_the_module().items() if not issubclass(kind, SpectralError)] == []


@pytest.mark.parametrize("name", [name for name in TREE if name != "DuplicateEventError"])
def test_an_error_keeps_its_message(name: str) -> None:
    assert str(errors_of_the_module()[name]("what to do next")) == "what to do next"


def test_a_payload_error_is_a_value_error() -> None:
    assert issubclass(PayloadError, ValueError)


def ids(count: int) -> list[UUID]:
    return [UUID(int=number) for number in range(1, count + 1)]


def test_a_duplicate_names_its_event_and_the_way_out() -> None:
    message = str(DuplicateEventError(ids(1)))
    assert str(UUID(int=1)) in message
    assert 'on_conflict="ignore"' in message


def test_in_bulk_the_events_are_counted_since_nobody_says_which_it_was() -> None:
    message = str(DuplicateEventError(ids(5_000)))
    assert "one of 5000 events" in message
    assert str(UUID(int=4)) not in message


def test_all_duplicates_can_be_asked_for() -> None:
    assert DuplicateEventError(ids(5)).event_ids == tuple(ids(5))


def test_a_duplicate_survives_the_way_to_another_process() -> None:
    error = DuplicateEventError(ids(1))
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    assert (str(arrived), arrived.event_ids) == (str(error), error.event_ids)


def test_a_copy_of_a_duplicate_says_the_same() -> None:
    error = DuplicateEventError(ids(1))
    assert str(copy.copy(error)) == str(error)


def test_a_cycle_is_read_as_the_database_writes_it() -> None:
    cycle = FailureCycle.model_validate(CYCLE)
    assert (cycle.cycle, cycle.attempts, cycle.last_error, cycle.replayed_by) == (1, 6, "ValueError: no", "ada")
    assert cycle.first_failed_at == datetime(2026, 11, 15, 10, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize("field", ["last_error", "first_failed_at", "failed_at", "replayed_by"])
def test_what_a_cycle_may_not_know_can_be_null(field: str) -> None:
    assert getattr(FailureCycle.model_validate(CYCLE | {field: None}), field) is None


@pytest.mark.parametrize("field", ["cycle", "attempts", "replayed_at"])
def test_what_every_cycle_knows_cannot_be_null(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        FailureCycle.model_validate(CYCLE | {field: None})


@pytest.mark.parametrize("field", CYCLE)
def test_every_field_of_a_cycle_is_written(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        FailureCycle.model_validate({name: value for name, value in CYCLE.items() if name != field})


def test_a_cycle_of_a_later_version_is_still_read() -> None:
    assert FailureCycle.model_validate(CYCLE | {"reason": "fixed"}) == FailureCycle.model_validate(CYCLE)


@pytest.mark.parametrize(("field", "value"), [("cycle", 0), ("attempts", -1)])
def test_numbers_no_cycle_can_have_are_refused(field: str, value: int) -> None:
    with pytest.raises(ValidationError, match=field):
        FailureCycle.model_validate(CYCLE | {field: value})


def test_a_cycle_cannot_be_changed() -> None:
    cycle = FailureCycle.model_validate(CYCLE)
    with pytest.raises(ValidationError, match="frozen"):
        cycle.attempts = 0  # type: ignore[misc]


def test_a_cycle_survives_the_way_through_json() -> None:
    cycle = FailureCycle.model_validate(CYCLE)
    assert FailureCycle.model_validate_json(cycle.model_dump_json()) == cycle
