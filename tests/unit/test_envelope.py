"""What an event may look like, and that an envelope which exists is one the table takes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import RFC_4122, UUID, uuid4

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from spectral.core.events import envelope as envelope_module
from spectral.core.events.envelope import EventEnvelope, is_storable, is_traceparent, new_event_id

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
WORKSPACE = UUID("7f0f5f53-58a0-4d70-9d6f-4c3f6f2f3f11")
CANARY = "canary-4111"

segments = st.from_regex("[a-z][a-z0-9_]{0,30}", fullmatch=True)
contexts = st.from_regex("[a-z][a-z0-9_]{0,62}", fullmatch=True)
versions = st.just("") | st.integers(1, 10**6).map(".v{}".format)
event_types = st.builds("{}.{}.{}{}".format, segments, segments, segments, versions)

storable_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable_text, inner, max_size=4),
    max_leaves=12,
)


def an_envelope(**fields: Any) -> EventEnvelope:  # noqa: ANN401  whatever a test wants to see refused
    return EventEnvelope.model_validate({"event_type": "core.thing.done", "source": "core"} | fields)


def refused(**fields: Any) -> ValidationError:  # noqa: ANN401  whatever a test wants to see refused
    with pytest.raises(ValidationError) as caught:
        an_envelope(**fields)
    return caught.value


# Names


@given(event_types)
@settings(deadline=None)
def test_a_type_of_context_noun_verb_and_maybe_a_version_is_accepted(event_type: str) -> None:
    assert an_envelope(event_type=event_type).event_type == event_type


@pytest.mark.parametrize("event_type", ["a.b.c", "agent.task.dispatched", "core.thing.done.v2", "a_1.b_2.c_3.v10"])
def test_usual_types_are_accepted(event_type: str) -> None:
    assert an_envelope(event_type=event_type).event_type == event_type


ODD_ENDS = ["{}\n", "\n{}", "{} ", " {}", "{}.", "{}-", "{}é", "{}\x00", "1{}", "_{}", "A{}", "{};--"]


@given(
    template=st.sampled_from([*ODD_ENDS, ".{}", "{}.v0", "{}.v01", "{}.V2", "{}.v2.v3", "{}.more.parts"]),
    event_type=event_types,
)
@settings(deadline=None)
def test_a_type_with_anything_else_in_it_is_refused(template: str, event_type: str) -> None:
    assert "event_type" in str(refused(event_type=template.format(event_type)))


@pytest.mark.parametrize(
    "event_type",
    ["", "a", "a.b", "a..c", "a.b.", "A.b.c", "a.B.c", "a.b.1c", "a.b.c.d", "a.b._c", "a.b-b.c", "a.b.c.v"],
)
def test_what_has_not_three_parts_is_no_type(event_type: str) -> None:
    assert "event_type" in str(refused(event_type=event_type))


def test_a_type_of_200_characters_is_accepted() -> None:
    assert an_envelope(event_type="a.b." + "c" * 196).event_type == "a.b." + "c" * 196


def test_a_type_of_201_characters_is_refused() -> None:
    assert "event_type" in str(refused(event_type="a.b." + "c" * 197))


@given(source=contexts, target=st.none() | contexts)
@settings(deadline=None)
def test_lower_case_names_are_contexts(source: str, target: str | None) -> None:
    made = an_envelope(source=source, target=target)
    assert (made.source, made.target) == (source, target)


@given(role=st.sampled_from(["source", "target"]), template=st.sampled_from(ODD_ENDS), context=contexts)
@settings(deadline=None)
def test_a_context_with_anything_else_in_it_is_refused(role: str, template: str, context: str) -> None:
    assert role in str(refused(**{role: template.format(context)}))


@pytest.mark.parametrize("role", ["source", "target"])
def test_a_context_of_63_characters_is_accepted_and_of_64_refused(role: str) -> None:
    assert getattr(an_envelope(**{role: "c" * 63}), role) == "c" * 63
    assert role in str(refused(**{role: "c" * 64}))


def test_a_context_may_not_be_empty() -> None:
    assert "source" in str(refused(source=""))


def test_an_envelope_without_target_is_for_all() -> None:
    assert an_envelope().target is None


@pytest.mark.parametrize("missing", ["event_type", "source"])
def test_type_and_source_are_required(missing: str) -> None:
    fields = {"event_type": "core.thing.done", "source": "core"}
    del fields[missing]
    with pytest.raises(ValidationError, match=rf"{missing}\n  Field required"):
        EventEnvelope.model_validate(fields)


# Version


def test_the_first_version_is_one() -> None:
    assert an_envelope().event_version == 1


@pytest.mark.parametrize("version", [1, 2, 2**31 - 1])
def test_a_version_is_a_positive_integer_of_postgres(version: int) -> None:
    assert an_envelope(event_version=version).event_version == version


@pytest.mark.parametrize("version", [0, -1, 2**31, 1.5, "one", None])
def test_another_version_is_refused(version: object) -> None:
    assert "event_version" in str(refused(event_version=version))


# Ids


def stamp_of(event_id: UUID) -> int:
    """The 48 bits of milliseconds and the 12 that count within one."""
    return ((event_id.int >> 80) << 12) | ((event_id.int >> 64) & 0xFFF)


def milliseconds_of(event_id: UUID) -> int:
    return event_id.int >> 80


def test_an_id_is_a_uuid_of_version_7() -> None:
    event_id = new_event_id()
    assert (event_id.version, event_id.variant) == (7, RFC_4122)


def test_ids_of_a_process_are_strictly_increasing() -> None:
    ids = [new_event_id() for _ in range(10_000)]
    assert all(earlier < later for earlier, later in pairwise(ids))


def test_no_two_ids_have_their_random_part_in_common() -> None:
    tails = {each.int & (2**62 - 1) for each in (new_event_id() for _ in range(10_000))}
    assert len(tails) == 10_000


def test_parent_and_child_of_a_fork_draw_from_different_randomness() -> None:
    """The parent's is fetched for many ids at once, and some of it is left; a child must not use that too."""
    program = (
        "import os\n"
        "from spectral.core.events.envelope import new_event_id\n"
        "new_event_id()\n"
        "reading, writing = os.pipe()\n"
        "child = os.fork()\n"
        "drawn = ' '.join(str(new_event_id().int & (2**62 - 1)) for _ in range(200))\n"
        "if child == 0:\n"
        "    os.write(writing, drawn.encode())\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(drawn)\n"
        "print(os.read(reading, 65_536).decode())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    parent, child = (set(line.split()) for line in done.stdout.splitlines())
    assert len(parent) == len(child) == 200
    assert not parent & child


def test_who_fetches_randomness_is_not_in_the_way_of_a_finalizer_that_draws_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The garbage collector may call one wherever something is made, in the same thread."""
    ids, drawn = envelope_module._Ids(), list[int]()
    fetch = os.urandom

    def interrupted(size: int) -> bytes:
        monkeypatch.setattr(os, "urandom", fetch)
        drawn.append(ids.draw())
        return fetch(size)

    monkeypatch.setattr(os, "urandom", interrupted)
    thread = threading.Thread(target=lambda: drawn.extend(ids.draw() for _ in range(200)), daemon=True)
    thread.start()
    thread.join(10)
    assert len(set(drawn)) == 201


def test_ids_are_increasing_as_text_too() -> None:
    ids = [str(new_event_id()) for _ in range(2_000)]
    assert ids == sorted(ids)


def test_ids_of_many_threads_are_increasing_in_each_and_distinct_in_all() -> None:
    start = threading.Barrier(8)
    made: list[list[UUID]] = [[] for _ in range(8)]

    def make(ids: list[UUID]) -> None:
        start.wait()
        ids.extend(new_event_id() for _ in range(1_000))

    threads = [threading.Thread(target=make, args=(ids,)) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(ids == sorted(ids) for ids in made)
    # The stamps, not the ids: the random part would make even equal stamps distinct.
    assert len({stamp_of(event_id) for ids in made for event_id in ids}) == 8_000


def test_ids_made_by_one_thread_after_another_are_increasing() -> None:
    ids: list[UUID] = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: ids.append(new_event_id()))
        thread.start()
        thread.join()
        ids.append(new_event_id())
    assert ids == sorted(ids)
    assert len(set(ids)) == 40


def test_the_time_in_an_id_is_now() -> None:
    before = time.time_ns() // 1_000_000
    milliseconds = milliseconds_of(new_event_id())
    after = time.time_ns() // 1_000_000
    # A burst of ids may run ahead of the clock, never by much and never behind it.
    assert before <= milliseconds <= after + 1_000


def test_ids_keep_increasing_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_event_id()
    monkeypatch.setattr(envelope_module, "time", SimpleNamespace(time_ns=lambda: 1_000_000_000))
    during = [new_event_id() for _ in range(5_000)]
    assert [before, *during] == sorted({before, *during})
    assert {(event_id.version, event_id.variant) for event_id in during} == {(7, RFC_4122)}


def test_every_envelope_gets_an_id_of_its_own() -> None:
    assert an_envelope().event_id < an_envelope().event_id


def test_an_id_of_the_caller_is_kept() -> None:
    event_id = uuid4()
    assert an_envelope(event_id=event_id).event_id == event_id


# Idempotency key


def test_the_key_is_the_id_unless_given() -> None:
    made = an_envelope()
    assert made.idempotency_key == str(made.event_id)


def test_the_key_is_the_callers_id_unless_given() -> None:
    assert an_envelope(event_id=str(WORKSPACE).upper()).idempotency_key == str(WORKSPACE)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=255))
@settings(deadline=None)
def test_any_storable_text_of_1_to_255_characters_is_a_key(key: str) -> None:
    assert an_envelope(idempotency_key=key).idempotency_key == key


def test_a_key_is_measured_in_characters() -> None:
    assert an_envelope(idempotency_key="😀" * 255).idempotency_key == "😀" * 255


@pytest.mark.parametrize("key", ["", "k" * 256, "😀" * 256, None, 7])
def test_a_key_of_another_length_or_kind_is_refused(key: object) -> None:
    assert "idempotency_key" in str(refused(idempotency_key=key))


@pytest.mark.parametrize("key", ["\x00", "order\x00", "\ud800", "order-\udfff", "\udc00\ud800"])
def test_a_key_postgres_cannot_store_is_refused(key: str) -> None:
    assert "idempotency_key" in str(refused(idempotency_key=key))


@given(storable_text)
def test_text_without_nul_and_lone_surrogates_is_storable(text: str) -> None:
    assert is_storable(text)


@given(storable_text, st.characters(categories=["Cs"]) | st.just("\x00"), storable_text)
@example("", "\ud800", "")
@example("", "\udfff", "")
def test_text_with_a_nul_or_a_lone_surrogate_anywhere_is_not_storable(before: str, bad: str, after: str) -> None:
    assert not is_storable(before + bad + after)


# Workspace


def test_domain_id_is_taken_as_workspace_id() -> None:
    assert an_envelope(domain_id=WORKSPACE).workspace_id == WORKSPACE


def test_domain_id_is_taken_from_json_too() -> None:
    text = f'{{"event_type": "core.thing.done", "source": "core", "domain_id": "{WORKSPACE}"}}'
    assert EventEnvelope.model_validate_json(text).workspace_id == WORKSPACE


def test_domain_id_is_never_given_out() -> None:
    made = an_envelope(domain_id=WORKSPACE)
    assert not hasattr(made, "domain_id")
    assert "domain_id" not in made.model_dump_json()


def test_the_callers_dictionary_is_left_as_it_was() -> None:
    given_fields = {"event_type": "core.thing.done", "source": "core", "domain_id": WORKSPACE}
    EventEnvelope.model_validate(given_fields)
    assert given_fields == {"event_type": "core.thing.done", "source": "core", "domain_id": WORKSPACE}


@pytest.mark.parametrize("other", [WORKSPACE, UUID(int=1), None])
def test_both_names_of_the_workspace_at_once_are_refused(other: UUID | None) -> None:
    assert "give one of them" in str(refused(workspace_id=WORKSPACE, domain_id=other))


def test_a_workspace_that_is_no_uuid_is_refused() -> None:
    assert "workspace_id" in str(refused(domain_id="mine"))


# Trace context

hexadecimal = "0123456789abcdef"


def hexes(length: int, *, but: str) -> st.SearchStrategy[str]:
    return st.text(hexadecimal, min_size=length, max_size=length).filter(lambda text: text != but)


traceparents = st.builds(
    "{}-{}-{}-{}".format,
    hexes(2, but="ff"),
    hexes(32, but="0" * 32),
    hexes(16, but="0" * 16),
    hexes(2, but=""),
)


@given(traceparents)
@settings(deadline=None)
def test_a_valid_trace_context_is_kept(traceparent: str) -> None:
    assert is_traceparent(traceparent)
    assert an_envelope(trace_context=traceparent).trace_context == traceparent


# A traceparent has 55 characters, so nothing shorter is one.
@given(st.text(st.characters(), max_size=54))
@settings(deadline=None)
def test_any_other_text_is_dropped_and_costs_no_event(text: str) -> None:
    assert an_envelope(trace_context=text).trace_context is None


@pytest.mark.parametrize(
    "broken",
    [
        TRACEPARENT.upper(),
        TRACEPARENT + "\n",
        "\n" + TRACEPARENT,
        TRACEPARENT + " ",
        TRACEPARENT + "-00",
        TRACEPARENT[:-1],
        TRACEPARENT[:-3],
        TRACEPARENT.replace("-", "_"),
        "ff" + TRACEPARENT[2:],
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "0g" + TRACEPARENT[2:],
        "\uff10\uff10" + TRACEPARENT[2:],
        "",
        "\ud800" * 55,
    ],
    ids=range(15),
)
def test_a_broken_trace_context_is_dropped_and_costs_no_event(broken: str) -> None:
    assert an_envelope(trace_context=broken).trace_context is None


def test_an_envelope_has_no_trace_context_unless_given() -> None:
    assert an_envelope().trace_context is None


# Time


def test_an_event_occurred_now_unless_told() -> None:
    before = datetime.now(UTC)
    occurred_at = an_envelope().occurred_at
    assert before <= occurred_at <= datetime.now(UTC)


def test_an_event_occurred_in_utc_unless_told() -> None:
    assert an_envelope().occurred_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("naive", ["2026-01-01T00:00:00", datetime(2026, 1, 1)], ids=["text", "datetime"])  # noqa: DTZ001  the point
def test_a_time_without_zone_is_refused(naive: object) -> None:
    assert "timezone" in str(refused(occurred_at=naive))


def test_a_time_of_another_zone_is_kept() -> None:
    given_time = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert an_envelope(occurred_at=given_time).occurred_at == given_time


# The whole


def test_an_envelope_cannot_be_changed() -> None:
    made = an_envelope()
    with pytest.raises(ValidationError, match="frozen"):
        made.source = "worlds"  # type: ignore[misc]


def test_adding_to_the_dictionary_given_as_payload_does_not_change_the_envelope() -> None:
    payload: dict[str, Any] = {"a": 1}
    made = an_envelope(payload=payload)
    payload["b"] = 2
    assert made.payload == {"a": 1}


@pytest.mark.parametrize("field", ["generation", "channel", "status", "id", "content_class", "workspace", "Payload"])
def test_an_unknown_field_is_refused(field: str) -> None:
    assert field in str(refused(**{field: 1}))


@pytest.mark.parametrize("payload", [[], "text", 7, None, [("a", 1)]])
def test_a_payload_that_is_no_object_is_refused(payload: object) -> None:
    assert "payload" in str(refused(payload=payload))


def test_two_envelopes_do_not_share_their_empty_payload() -> None:
    assert an_envelope().payload is not an_envelope().payload


def test_an_envelope_is_not_generic() -> None:
    with pytest.raises(TypeError):
        EventEnvelope.__class_getitem__(dict)


@given(
    payload=st.dictionaries(storable_text, json_values, max_size=4),
    occurred_at=st.datetimes(
        datetime(1900, 1, 1),  # noqa: DTZ001  hypothesis adds the zone
        datetime(2999, 12, 31),  # noqa: DTZ001
        timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    ),
    target=st.none() | contexts,
    workspace_id=st.none() | st.uuids(),
    trace_context=st.none() | traceparents,
)
@settings(deadline=None)
def test_an_envelope_survives_the_way_through_json(**fields: Any) -> None:  # noqa: ANN401  drawn above
    made = an_envelope(**fields)
    assert EventEnvelope.model_validate_json(made.model_dump_json()) == made


def test_an_envelope_survives_the_way_through_a_dictionary() -> None:
    made = an_envelope(workspace_id=WORKSPACE, payload={"a": [1, None]}, trace_context=TRACEPARENT)
    assert EventEnvelope.model_validate(made.model_dump()) == made


def test_one_wrong_field_gives_one_complaint() -> None:
    complaints = [complaint["loc"] for complaint in refused(source="Not A Context").errors()]
    assert complaints == [("source",)]


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "Core"},
        {"workspace_id": None, "domain_id": None},
        {"event_id": "no uuid"},
        {"payload": CANARY},
        {"payload": [CANARY]},
        {"extra": 1},
    ],
    ids=["source", "both-workspaces", "event_id", "payload-text", "payload-list", "extra"],
)
def test_a_refusal_never_shows_the_payload(fields: dict[str, object]) -> None:
    # The payload stands last, where pydantic's shortened picture of the input would show it.
    assert CANARY not in str(refused(**(fields | {"payload": fields.get("payload", {"card": CANARY})})))


def test_a_refusal_of_a_missing_field_never_shows_the_payload() -> None:
    with pytest.raises(ValidationError) as caught:
        EventEnvelope.model_validate({"event_type": "core.card.paid", "payload": {"card": CANARY}})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("moment", ["1899-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "9900-01-02T00:00:00Z"])
def test_a_moment_that_some_reader_could_not_represent_is_refused(moment: str) -> None:
    with pytest.raises(ValidationError, match="occurred_at"):
        EventEnvelope(event_type="worlds.scan.completed", source="worlds", occurred_at=datetime.fromisoformat(moment))
