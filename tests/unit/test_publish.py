"""Publishing decides before any SQL: what is stamped on the row, what is refused, what goes into one statement."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral.core.events.delivery import publish
from spectral.core.events.delivery.publish import Insert, OutboxRow, Publishing, PublishOptions, Stamp
from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.failure import (
    DuplicateEventError,
    NotInTransactionError,
    PayloadNotJsonError,
    PayloadTooDeepError,
    PayloadTooLargeError,
    PublishError,
    UnknownContextError,
)
from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, SyncOutboxPublisher
from spectral.core.events.settings import PublishSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

GIVEN_TRACE = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
CURRENT_TRACE = "00-11111111111111111111111111111111-2222222222222222-00"
WORKSPACE = UUID(int=7)
CANARY = "canary-4111"


def publishing(
    *, generation: int = 3, contexts: Iterable[str] = ("orders", "billing"), trace: str | None = None
) -> Publishing:
    return Publishing(PublishSettings(generation=generation, contexts=frozenset(contexts)), lambda: trace)


def an_envelope(**fields: Any) -> EventEnvelope:  # noqa: ANN401  whatever a test wants to vary
    return EventEnvelope.model_validate({"event_type": "orders.order.placed", "source": "orders"} | fields)


def prepared(envelope: EventEnvelope | None = None, **options: Any) -> Insert:  # noqa: ANN401  wrong ones too
    return publishing().prepare(envelope or an_envelope(), cast("PublishOptions", options))


# The stamp


def test_a_row_is_stamped_with_generation_channel_class_and_no_delay() -> None:
    assert prepared().stamp == Stamp("outbox_gen_3", 3, "event", timedelta(0))


def test_a_processing_class_changes_the_channel_only() -> None:
    assert prepared(processing_class="hot").stamp == Stamp("outbox_gen_3_hot", 3, "event", timedelta(0))


def test_a_content_class_is_stamped() -> None:
    assert prepared(content_class="agent_task").stamp.content_class == "agent_task"


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(microseconds=1), timedelta(hours=1), timedelta(days=3650)])
def test_a_delay_is_stamped(delay: timedelta) -> None:
    assert prepared(delay=delay).stamp.delay == delay


@pytest.mark.parametrize("generation", [0, 10**15])
def test_any_generation_is_stamped(generation: int) -> None:
    stamp = publishing(generation=generation).prepare(an_envelope(), {}).stamp
    assert (stamp.generation, stamp.channel) == (generation, f"outbox_gen_{generation}")


def test_all_batches_of_a_publish_share_their_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "BATCH_ROWS", 2)
    options: PublishOptions = {"delay": timedelta(seconds=5), "processing_class": "cold", "content_class": "agent_task"}
    inserts = publishing().prepare_many([an_envelope() for _ in range(5)], options)
    assert [insert.stamp for insert in inserts] == [
        Stamp("outbox_gen_3_cold", 3, "agent_task", timedelta(seconds=5))
    ] * 3


# The row


def test_a_row_is_the_envelope_field_by_field() -> None:
    envelope = an_envelope(
        event_id=UUID(int=1),
        event_version=2,
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
        target="billing",
        workspace_id=WORKSPACE,
        payload={"total": 7},
        idempotency_key="order-1",
        trace_context=GIVEN_TRACE,
    )
    assert prepared(envelope).rows == (
        OutboxRow(
            id=UUID(int=1),
            event_type="orders.order.placed",
            event_version=2,
            occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
            source="orders",
            target="billing",
            workspace_id=WORKSPACE,
            payload='{"total": 7}',
            idempotency_key="order-1",
            trace_context=GIVEN_TRACE,
        ),
    )


def test_a_broadcast_has_no_target() -> None:
    assert prepared().rows[0].target is None


def test_the_current_trace_is_taken_where_the_envelope_has_none() -> None:
    insert = publishing(trace=CURRENT_TRACE).prepare(an_envelope(), {})
    assert insert.rows[0].trace_context == CURRENT_TRACE


def test_the_trace_of_the_envelope_goes_before_the_current_one() -> None:
    insert = publishing(trace=CURRENT_TRACE).prepare(an_envelope(trace_context=GIVEN_TRACE), {})
    assert insert.rows[0].trace_context == GIVEN_TRACE


def test_outside_a_trace_there_is_no_trace_context() -> None:
    assert prepared().rows[0].trace_context is None


def test_each_of_many_events_keeps_its_own_trace() -> None:
    envelopes = [an_envelope(trace_context=GIVEN_TRACE), an_envelope(), an_envelope(trace_context="broken")]
    (insert,) = publishing(trace=CURRENT_TRACE).prepare_many(envelopes, {})
    assert [row.trace_context for row in insert.rows] == [GIVEN_TRACE, CURRENT_TRACE, CURRENT_TRACE]


@pytest.mark.parametrize("broken", ["", "not a traceparent", CURRENT_TRACE.replace("1", "0"), CURRENT_TRACE + "\n"])
def test_a_broken_current_trace_is_dropped_because_the_table_would_refuse_the_row(broken: str) -> None:
    assert publishing(trace=broken).prepare(an_envelope(), {}).rows[0].trace_context is None


# Refusals


@pytest.mark.parametrize("role", ["source", "target"])
def test_an_unknown_context_is_refused_and_the_declared_ones_are_named(role: str) -> None:
    with pytest.raises(
        UnknownContextError, match=rf"^{role} 'shipping' .*declared: billing, orders.*SPECTRAL_CONTEXTS"
    ):
        prepared(an_envelope(**{role: "shipping"}))


def test_one_unknown_context_refuses_all_of_many() -> None:
    with pytest.raises(UnknownContextError, match="shipping"):
        publishing().prepare_many([an_envelope(), an_envelope(target="shipping"), an_envelope()], {})


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        (float("nan"), PayloadNotJsonError),
        ("\x00", PayloadNotJsonError),
        ({1: "a"}, PayloadNotJsonError),
        ("x" * 300_000, PayloadTooLargeError),
    ],
    ids=["nan", "nul", "integer-key", "large"],
)
def test_a_payload_that_cannot_travel_is_refused_by_name(value: object, refusal: type[PublishError]) -> None:
    with pytest.raises(refusal):
        prepared(an_envelope(payload={"k": value}))


def test_one_payload_that_cannot_travel_refuses_all_of_many() -> None:
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(PayloadTooDeepError):
        publishing().prepare_many([an_envelope(), an_envelope(payload={"k": deep})], {})


@pytest.mark.parametrize("delay", [timedelta(microseconds=-1), timedelta.min, timedelta(days=3650, microseconds=1)])
def test_a_delay_into_the_past_or_beyond_ten_years_is_refused(delay: timedelta) -> None:
    with pytest.raises(PublishError, match="delay must be a timedelta between nothing and ten years"):
        prepared(delay=delay)


@pytest.mark.parametrize("content_class", ["", "Event", "events", "task", None, 7])
def test_an_unknown_content_class_is_refused_and_the_known_ones_are_named(content_class: object) -> None:
    with pytest.raises(PublishError, match=r"content_class must be one of \['agent_task', 'event'\]"):
        prepared(content_class=content_class)


@pytest.mark.parametrize("processing_class", ["", "Hot", "hot\n", "h" * 33, "hot-cold"])
def test_a_wrong_processing_class_is_a_publish_error(processing_class: str) -> None:
    with pytest.raises(PublishError, match="processing class"):
        prepared(processing_class=processing_class)


@pytest.mark.parametrize("on_conflict", ["", "Ignore", "update", None, True])
def test_an_unknown_answer_to_known_ids_is_refused(on_conflict: object) -> None:
    with pytest.raises(PublishError, match='on_conflict must be "raise" or "ignore"'):
        prepared(on_conflict=on_conflict)


@pytest.mark.parametrize("misspelt", ["dealy", "onconflict", "processing_clas", "channel", "generation"])
def test_a_misspelt_option_is_refused_instead_of_ignored(misspelt: str) -> None:
    with pytest.raises((PublishError, TypeError), match=misspelt):
        prepared(an_envelope(), **{misspelt: "ignore"})


wrong_options: list[dict[str, Any]] = [
    {"delay": timedelta(-1)},
    {"content_class": "task"},
    {"processing_class": "Hot"},
    {"on_conflict": "update"},
]


@pytest.mark.parametrize("wrong", wrong_options, ids=lambda wrong: next(iter(wrong)))
def test_options_of_a_bulk_publish_are_checked_even_if_it_is_empty(wrong: dict[str, Any]) -> None:
    with pytest.raises(PublishError):
        publishing().prepare_many([], cast("PublishOptions", wrong))


refused_events: list[dict[str, Any]] = [
    {"source": "shipping"},
    {"target": "shipping"},
    {"other": float("nan")},
    {"other": b""},
    {"other": "x" * 300_000},
]


@pytest.mark.parametrize("wrong", refused_events, ids=range(5))
def test_a_refusal_never_shows_the_payload(wrong: dict[str, Any]) -> None:
    payload = {"card": CANARY, "other": wrong.get("other")}
    names = {role: name for role, name in wrong.items() if role != "other"}
    with pytest.raises(PublishError) as caught:
        prepared(an_envelope(payload=payload, **names))
    assert CANARY not in str(caught.value)


# Known ids


def test_a_known_id_is_an_error_unless_told() -> None:
    assert [prepared().ignore_known, prepared(on_conflict="raise").ignore_known] == [False, False]


def test_a_known_id_is_ignored_if_told() -> None:
    assert prepared(on_conflict="ignore").ignore_known is True


def test_an_id_twice_in_one_publish_is_refused_and_named() -> None:
    twice, other = an_envelope(event_id=UUID(int=1)), an_envelope(event_id=UUID(int=2))
    with pytest.raises(DuplicateEventError) as caught:
        publishing().prepare_many([twice, other, twice], {})
    assert caught.value.event_ids == (UUID(int=1),)


def test_an_id_twice_in_one_publish_is_refused_across_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "BATCH_ROWS", 1)
    twice = an_envelope(event_id=UUID(int=1))
    with pytest.raises(DuplicateEventError):
        publishing().prepare_many([twice, an_envelope(), twice], {})


def test_an_id_twice_in_one_publish_is_the_servers_to_ignore_if_told() -> None:
    twice = an_envelope(event_id=UUID(int=1))
    (insert,) = publishing().prepare_many([twice, twice], {"on_conflict": "ignore"})
    assert [row.id for row in insert.rows] == [UUID(int=1), UUID(int=1)]


def test_several_events_may_share_an_idempotency_key() -> None:
    (insert,) = publishing().prepare_many([an_envelope(idempotency_key="k"), an_envelope(idempotency_key="k")], {})
    assert [row.idempotency_key for row in insert.rows] == ["k", "k"]


# Batches


def test_nothing_to_publish_is_no_statement() -> None:
    assert publishing().prepare_many([], {}) == []


def test_events_may_come_from_a_generator() -> None:
    (insert,) = publishing().prepare_many((an_envelope() for _ in range(3)), {})
    assert len(insert.rows) == 3


def test_a_statement_carries_5000_rows_at_most() -> None:
    inserts = publishing().prepare_many([an_envelope()] * 10_001, {"on_conflict": "ignore"})
    assert [len(insert.rows) for insert in inserts] == [5_000, 5_000, 1]


def test_a_statement_carries_8_mib_of_payloads_at_most() -> None:
    large = an_envelope(payload={"k": "x" * 262_000})
    inserts = publishing().prepare_many([large] * 40, {"on_conflict": "ignore"})
    # 32 times 262,009 bytes are just below 8,388,608.
    assert [len(insert.rows) for insert in inserts] == [32, 8]


@pytest.mark.parametrize("character", ["é", "東", "😀"])
def test_a_statement_is_measured_in_bytes_not_in_characters(character: str) -> None:
    large = an_envelope(payload={"k": character * (260_000 // len(character.encode()))})
    inserts = publishing().prepare_many([large] * 40, {"on_conflict": "ignore"})
    sizes = [sum(len(row.payload.encode()) for row in insert.rows) for insert in inserts]
    assert [size for size in sizes if size > 8 * 1024 * 1024] == []


@dataclass(frozen=True)
class Limits:
    rows: int
    size: int


@given(
    lengths=st.lists(st.integers(0, 60), max_size=40),
    limits=st.builds(Limits, rows=st.integers(1, 10), size=st.integers(1, 200)),
)
@settings(deadline=None)
def test_batches_keep_the_order_lose_nothing_and_stay_within_their_limits(lengths: list[int], limits: Limits) -> None:
    envelopes = [an_envelope(payload={"k": "x" * length}) for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "BATCH_ROWS", limits.rows)
        patch.setattr(publish, "BATCH_BYTES", limits.size)
        inserts = publishing().prepare_many(envelopes, {})
    assert [row.id for insert in inserts for row in insert.rows] == [envelope.event_id for envelope in envelopes]
    assert all(1 <= len(insert.rows) <= limits.rows for insert in inserts)
    # One row alone may be larger than a batch should be.
    assert all(
        len(insert.rows) == 1 or sum(len(row.payload) for row in insert.rows) <= limits.size for insert in inserts
    )


@given(st.lists(st.integers(0, 60), max_size=40))
@settings(deadline=None)
def test_batches_are_as_few_as_the_order_allows(lengths: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "BATCH_ROWS", 4)
        patch.setattr(publish, "BATCH_BYTES", 100)
        inserts = publishing().prepare_many([an_envelope(payload={"k": "x" * length}) for length in lengths], {})
    for batch, following in pairwise(inserts):
        enlarged = [*batch.rows, following.rows[0]]
        assert len(enlarged) > 4 or sum(len(row.payload) for row in enlarged) > 100


# The insert


def test_the_parameters_of_one_row_are_those_of_the_row_and_the_stamp() -> None:
    insert = prepared(an_envelope(payload={"a": 1}))
    assert insert.single() == insert.rows[0]._asdict() | insert.stamp._asdict()


def test_the_parameters_of_many_rows_are_columns_and_the_stamp() -> None:
    envelopes = [an_envelope(payload={"a": number}, target=target) for number, target in enumerate(["billing", None])]
    (insert,) = publishing().prepare_many(envelopes, {})
    columns = insert.columns()
    assert columns["id"] == [envelope.event_id for envelope in envelopes]
    assert columns["payload"] == ['{"a": 0}', '{"a": 1}']
    assert columns["target"] == ["billing", None]
    assert (columns["generation"], columns["delay"]) == (3, timedelta(0))


def an_insert(rows: int, *, ignore_known: bool) -> Insert:
    (insert,) = publishing().prepare_many([an_envelope() for _ in range(rows)], {})
    return Insert(insert.rows, insert.stamp, ignore_known)


@pytest.mark.parametrize("ignore_known", [True, False])
def test_as_many_rows_as_given_are_confirmed(*, ignore_known: bool) -> None:
    assert an_insert(3, ignore_known=ignore_known).confirm(3) == 3


@pytest.mark.parametrize("inserted", [0, 1, 2])
def test_fewer_rows_than_given_are_duplicates(inserted: int) -> None:
    insert = an_insert(3, ignore_known=False)
    with pytest.raises(DuplicateEventError):
        insert.confirm(inserted)


@pytest.mark.parametrize("inserted", [0, 1, 2])
def test_fewer_rows_than_given_are_confirmed_if_known_ids_are_ignored(inserted: int) -> None:
    assert an_insert(3, ignore_known=True).confirm(inserted) == inserted


def test_the_duplicate_of_a_single_publish_is_named() -> None:
    insert = an_insert(1, ignore_known=False)
    with pytest.raises(DuplicateEventError) as caught:
        insert.confirm(0)
    assert caught.value.event_ids == (insert.rows[0].id,)


# The steps of a publisher, with a table that is a set of ids


@dataclass
class Table:
    """What both publishers below write to, and what was asked of it, in order."""

    in_transaction: bool = True
    ids: set[UUID] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)

    def require_transaction(self) -> None:
        self.steps.append("require transaction")
        if not self.in_transaction:
            raise NotInTransactionError("begin first")

    def insert(self, insert: Insert, step: str) -> int:
        self.steps.append(step)
        new = {row.id for row in insert.rows} - self.ids
        self.ids |= new
        return len(new)


class AwaitedPublisher(AsyncOutboxPublisher):
    def __init__(self, table: Table) -> None:
        super().__init__(publishing())
        self._table = table

    async def _require_transaction(self) -> None:
        self._table.require_transaction()

    async def _insert_one(self, insert: Insert) -> int:
        return self._table.insert(insert, "insert one")

    async def _insert_many(self, insert: Insert) -> int:
        return self._table.insert(insert, "insert many")


class BlockingPublisher(SyncOutboxPublisher):
    def __init__(self, table: Table) -> None:
        super().__init__(publishing())
        self._table = table

    def _require_transaction(self) -> None:
        self._table.require_transaction()

    def _insert_one(self, insert: Insert) -> int:
        return self._table.insert(insert, "insert one")

    def _insert_many(self, insert: Insert) -> int:
        return self._table.insert(insert, "insert many")


class Both:
    """Either publisher behind one face, so that each behaviour is written once."""

    def __init__(self, table: Table, *, awaited: bool) -> None:
        self.table = table
        self._awaited = AwaitedPublisher(table) if awaited else None
        self._blocking = BlockingPublisher(table)

    async def publish(self, envelope: EventEnvelope, **options: Any) -> None:  # noqa: ANN401  wrong ones too
        if self._awaited is None:
            self._blocking.publish(envelope, **options)
        else:
            await self._awaited.publish(envelope, **options)

    async def publish_many(self, envelopes: Iterable[EventEnvelope], **options: Any) -> int:  # noqa: ANN401
        if self._awaited is None:
            return self._blocking.publish_many(envelopes, **options)
        return await self._awaited.publish_many(envelopes, **options)


@pytest.fixture(params=[True, False], ids=["awaited", "blocking"])
def publisher(request: pytest.FixtureRequest) -> Both:
    return Both(Table(), awaited=request.param)


async def test_one_event_is_one_statement_in_the_callers_transaction(publisher: Both) -> None:
    await publisher.publish(an_envelope())
    assert publisher.table.steps == ["require transaction", "insert one"]


async def test_many_events_are_one_statement_a_batch_in_one_transaction(
    publisher: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "BATCH_ROWS", 2)
    assert await publisher.publish_many([an_envelope() for _ in range(3)]) == 3
    assert publisher.table.steps == ["require transaction", "insert many", "insert many"]


async def test_one_event_is_not_many(publisher: Both) -> None:
    with pytest.raises(PublishError, match="takes many events"):
        await publisher.publish_many(cast("Any", an_envelope()))
    assert publisher.table.steps == []


async def test_no_events_ask_nothing_of_the_database(publisher: Both) -> None:
    publisher.table.in_transaction = False
    assert await publisher.publish_many([]) == 0
    assert publisher.table.steps == []


async def test_a_refused_event_asks_nothing_of_the_database(publisher: Both) -> None:
    with pytest.raises(UnknownContextError):
        await publisher.publish(an_envelope(source="shipping"))
    assert publisher.table.steps == []


async def test_one_refused_event_of_many_asks_nothing_of_the_database(publisher: Both) -> None:
    with pytest.raises(PayloadNotJsonError):
        await publisher.publish_many([an_envelope(), an_envelope(payload={"k": b""})])
    assert publisher.table.steps == []


async def test_outside_a_transaction_nothing_is_inserted(publisher: Both) -> None:
    publisher.table.in_transaction = False
    with pytest.raises(NotInTransactionError):
        await publisher.publish(an_envelope())
    with pytest.raises(NotInTransactionError):
        await publisher.publish_many([an_envelope()])
    assert publisher.table.ids == set()


async def test_publishing_an_event_again_is_refused(publisher: Both) -> None:
    envelope = an_envelope()
    await publisher.publish(envelope)
    with pytest.raises(DuplicateEventError, match=str(envelope.event_id)):
        await publisher.publish(envelope)


async def test_publishing_an_event_again_is_a_no_op_if_told(publisher: Both) -> None:
    envelope = an_envelope()
    await publisher.publish(envelope)
    await publisher.publish(envelope, on_conflict="ignore")
    assert publisher.table.ids == {envelope.event_id}


async def test_a_bulk_publish_answers_how_many_were_new(publisher: Both) -> None:
    known, new = an_envelope(), an_envelope()
    await publisher.publish(known)
    assert await publisher.publish_many([known, new, new], on_conflict="ignore") == 1
