"""A publish that failed: whoever tells of it quotes nothing of what was published, and all of our own words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.describe import WITHHELD
from spectral.core.events.failure import (
    ConfigurationError,
    DuplicateEventError,
    PayloadNotJsonError,
    PublishError,
    SubstrateLostError,
    UnknownContextError,
)
from spectral.core.events.infrastructure.observability.slim import slim
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.probe import Act, Activity, Failure, Note, NoteTaker, Publish, Published
from tests.unit.log_notes import CANARY, envelope
from tests.unit.test_lean_spans import PATIENCE, Lightly

LARGE = "x" * 20_000


class Kept(NoteTaker):
    """A probe, or a tool, that keeps how publishes failed."""

    def __init__(self) -> None:
        self.failures: list[Failure | None] = []

    def cares_for(self, kind: type[Note]) -> bool:
        return kind is Published

    def tell(self, note: Note, at: float | None = None) -> None:
        del at
        assert isinstance(note, Published)
        self.failures.append(note.failure)


class Span:
    """A tracer, and its only span, as OpenTelemetry's own are followed."""

    traceparent: str | None = None
    context = None
    is_recording = True

    def __init__(self, failures: list[Failure | None]) -> None:
        self._failures = failures

    def start(self, act: Act) -> Span:
        del act
        return self

    def end(self, failure: Failure | None) -> None:
        self._failures.append(failure)

    def leave(self) -> None:
        pass

    def send(self, spans: Sequence[object]) -> None:
        raise NotImplementedError(spans)  # there are no lean ones


Begun = tuple[Callable[[Act], Activity], Callable[[], list[Failure | None]]]


def by_the_clock() -> Iterator[Begun]:
    kept = Kept()
    yield kept.begin, lambda: kept.failures


def with_a_span() -> Iterator[Begun]:
    failures: list[Failure | None] = []
    watch = Watch({}, tracer=Span(failures))

    def ended() -> list[Failure | None]:
        assert watch.flush(PATIENCE)
        return failures

    yield watch.begin, ended


def with_a_lean_span() -> Iterator[Begun]:
    lightly = Lightly()

    def ended() -> list[Failure | None]:
        return [Failure(each.attributes["error.type"], each.status.description or "") for each in lightly.spans()]

    yield lightly.watch.begin, ended
    lightly.provider.shutdown()


@pytest.fixture(params=[by_the_clock, with_a_span, with_a_lean_span])
def begun(request: pytest.FixtureRequest) -> Iterator[Begun]:
    yield from request.param()


def quotes(payload: dict[str, Any]) -> psycopg.Error:
    """As a trigger of the project's may."""
    return psycopg.errors.RaiseException(f"cannot take {json.dumps(payload)}")


@pytest.mark.parametrize("many", [False, True])
def test_what_the_server_quotes_of_a_payload_is_told_by_nobody(begun: Begun, *, many: bool) -> None:
    begin, failures = begun
    name = f"{CANARY} of the payload"
    last = envelope(payload={"name": name})
    begin(Publish([envelope(payload={"other": 1}), last] if many else [last], 3)).end(quotes(last.payload))
    (failure,) = failures()
    assert failure is not None
    assert failure.kind == "RaiseException"
    assert CANARY not in failure.text
    assert failure.text.startswith("RaiseException: cannot take ")


def test_nor_where_it_is_undone() -> None:
    failures: list[Failure | None] = []
    watch = Watch({}, tracer=Span(failures))
    one = envelope(payload={"name": f"{CANARY} of the payload"})
    watch.begin(Publish([one], 3)).undo(quotes(one.payload))
    assert watch.flush(PATIENCE)
    (failure,) = failures
    assert failure is not None
    assert CANARY not in failure.text
    assert not failure.is_charged


def failure_of(error: BaseException, *envelopes: EventEnvelope) -> Failure:
    return Failure.of_act(Publish(envelopes or [envelope()], 3), error)


OURS = [
    DuplicateEventError([envelope().event_id, envelope().event_id]),
    UnknownContextError("source 'x' is not a declared context"),
    PayloadNotJsonError("payload.x is nan, which is not JSON"),
    PublishError("unknown options ['x']"),
    ConfigurationError("say where"),
]


@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
def test_our_own_words_are_told_in_full_whatever_was_published(error: Exception) -> None:
    name = type(error).__name__
    assert failure_of(error, envelope(payload={"x": LARGE, "y": str(error)})) == Failure(name, f"{name}: {error}")


@pytest.mark.parametrize("base", [PublishError, DuplicateEventError])
def test_what_somebody_has_derived_from_our_errors_has_words_of_their_own(base: type[PublishError]) -> None:
    theirs = type("TheirsError", (base,), {"__str__": lambda _: f"not {CANARY}"})
    assert failure_of(theirs([])).text == "TheirsError: not [payload]"


def test_what_somebody_else_said_is_not_ours_though_the_error_is() -> None:
    assert (
        failure_of(SubstrateLostError(f"RaiseException: no {CANARY}")).text
        == "SubstrateLostError: RaiseException: no [payload]"
    )


def test_beside_more_than_can_be_looked_through_or_read_the_words_are_withheld() -> None:
    circle: dict[str, Any] = {"name": CANARY}
    circle["itself"] = circle
    unreadable = EventEnvelope.model_construct(event_type="x", source="x", payload=circle)
    for one in (envelope(payload={"large": LARGE}), unreadable):
        assert failure_of(ValueError(f"no {CANARY}"), one).text == f"ValueError: {WITHHELD}"


def test_no_more_is_read_than_can_be_looked_through() -> None:
    unread = envelope()
    del unread.__dict__["payload"]
    assert failure_of(ValueError("no"), envelope(payload={"large": LARGE}), unread).text == f"ValueError: {WITHHELD}"


def test_of_an_event_that_is_only_named_there_is_nothing_to_hide() -> None:
    waits = slim(Published(Publish([envelope()], 3), 0.1, None, None))
    assert isinstance(waits, Published)
    assert Failure.of_act(waits.act, ValueError("no")).text == "ValueError: no"


@pytest.mark.parametrize("key", [f"{CANARY}@example.com", f"{CANARY} sings", f"{CANARY}-123456"])
def test_a_key_that_is_no_field_s_name_is_not_quoted_by_our_own_words(key: str) -> None:
    publishing = Publishing(PublishSettings(generation=1), lambda: None)
    with pytest.raises(PayloadNotJsonError, match=r"^payload\.people\.\*\.total is nan") as refused:
        publishing.prepare(envelope(payload={"people": {key: {"total": math.nan}}}), {})
    assert CANARY not in str(refused.value)
