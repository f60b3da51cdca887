"""References: what travels on a broker can be read back, and nothing else can."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral.core.events.broker import BrokerLane, Reference
from spectral.core.events.channels import channel_for
from spectral.core.events.infrastructure.nats.shape import deliveries_of

LANE = BrokerLane(7, "outbox_gen_7_hot", "platform")
REFERENCE = Reference(
    row_id=UUID(int=1),
    event_id=UUID(int=2),
    event_type="worlds.scan.completed.v2",
    lane=LANE,
    replays=1,
    attempts=3,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    sent=1_700_000_000_000_000,
)


def changed(**fields: object) -> bytes:
    """The reference with other fields; None takes one away."""
    written = json.loads(REFERENCE.encode()) | fields
    return json.dumps({name: value for name, value in written.items() if value is not None}).encode()


def test_a_reference_is_read_back_as_it_was_sent() -> None:
    assert Reference.decode(REFERENCE.encode()) == REFERENCE
    without_trace = REFERENCE._replace(traceparent=None)
    assert Reference.decode(without_trace.encode()) == without_trace


def test_a_reference_is_small_and_holds_no_payload() -> None:
    assert len(REFERENCE.encode()) < 400
    assert "payload" not in json.loads(REFERENCE.encode())


def test_the_message_id_tells_lives_and_sendings_apart() -> None:
    ids = {
        each.message_id
        for each in (
            REFERENCE,
            REFERENCE._replace(replays=2),
            REFERENCE._replace(attempts=4),
            REFERENCE._replace(sent=1),
            REFERENCE._replace(row_id=UUID(int=9)),
        )
    }
    assert len(ids) == 5
    assert REFERENCE._replace(traceparent=None).message_id == REFERENCE.message_id


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'"text"',
        b"[" * 3000,
        b"x" * 5000,
        changed(v=2),
        changed(id=None),
        changed(id="no id"),
        changed(id=7),
        changed(event="no id"),
        changed(type="Not.A.Type"),
        changed(type="a.b." + "c" * 300),
        changed(generation=-1),
        changed(generation=True),
        changed(generation=2**63),
        changed(generation="7"),
        changed(channel="outbox_gen_8_hot"),
        changed(channel="outbox_gen_7_Hot"),
        changed(channel="outbox_gen_7_"),
        changed(channel="other"),
        changed(context="Platform"),
        changed(context="nul\x00"),
        changed(replays=-1),
        changed(replays=1.5),
        changed(attempts=2**31),
        changed(sent=-5),
    ],
)
def test_what_is_no_reference_is_not_taken_for_one(message: bytes) -> None:
    assert Reference.decode(message) is None


def test_a_broken_trace_costs_the_trace_and_not_the_event() -> None:
    assert Reference.decode(changed(traceparent="nonsense")) == REFERENCE._replace(traceparent=None)


def test_fields_that_are_not_known_are_ignored() -> None:
    assert Reference.decode(changed(later="something")) == REFERENCE


@pytest.mark.parametrize(
    ("channel", "expected"),
    [
        ("outbox_default", "_default"),
        (channel_for(7), "-"),
        (channel_for(7, "hot"), "hot"),
        (channel_for(7, "default"), "default"),
    ],
)
def test_every_channel_of_a_generation_has_a_name_of_its_own(channel: str, expected: str) -> None:
    lane = BrokerLane(7, channel, "platform")
    assert lane.processing_class == expected
    assert lane.is_valid


def test_a_channel_of_another_generation_makes_no_lane() -> None:
    assert not BrokerLane(7, "outbox_gen_77", "platform").is_valid
    assert not BrokerLane(77, "outbox_gen_7", "platform").is_valid


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_message_makes_a_reader_fail(message: bytes) -> None:
    assert Reference.decode(message) is None


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(list(json.loads(REFERENCE.encode()))), st.none() | st.integers() | st.text()))
def test_no_field_makes_a_reader_fail(fields: dict[str, object]) -> None:
    read = Reference.decode(json.dumps(json.loads(REFERENCE.encode()) | fields).encode())
    assert read is None or read.lane.is_valid


@pytest.mark.parametrize(
    ("reply", "deliveries"),
    [
        ("$JS.ACK.spectral_1_1.worlds--.7.12.3.1700000000000000000.0", 7),
        ("$JS.ACK.hub.AB12.spectral_1_1.worlds--.7.12.3.1700000000000000000.0", 7),
        ("$JS.ACK.hub.AB12.spectral_1_1.worlds--.7.12.3.1700000000000000000.0.token", 7),
        ("_INBOX.nobody", 1),
        ("", 1),
    ],
)
def test_how_often_nats_has_handed_something_out_is_read_from_where_it_is_acknowledged(
    reply: str, deliveries: int
) -> None:
    assert deliveries_of(reply) == deliveries
