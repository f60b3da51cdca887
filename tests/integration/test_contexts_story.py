"""The two reference contexts, end to end: real workers, each under its own login, and an oracle that counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from spectral.core.embedded import PostgresServer
from spectral.core.events import EventEnvelope
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Retry
from spectral.core.events.testing import Ledger, check, run_handler
from spectral.platform.domain.failures import Decision, Verdict
from spectral.platform.infrastructure.decisions import ClusterNotFoundError
from spectral.platform.infrastructure.system_cards import current_system_card
from spectral.worlds.domain.cards import CardDraft
from spectral.worlds.domain.rules import CandidateNotKnownError
from spectral.worlds.domain.scans import Finding, Severity
from spectral.worlds.infrastructure.cards import WorldModelNotFoundError
from spectral.worlds.infrastructure.scans import ScanNotOpenError
from tests.integration.contexts_stage import DRAFT, Stage, open_stage

HANDLERS = {
    "platform.world_model_card_projection": "worlds.world_model_card.published",
    "platform.decision_recorded_aggregator": "platform.decision.recorded",
    "platform.curation_applied_closer": "worlds.curation.applied",
    "worlds.scan_completed_indexer": "worlds.scan.completed",
    "worlds.failure_cluster_rule_proposer": "platform.failure_cluster.detected",
    "worlds.curation_approved_applier": "platform.curation.approved",
}


@pytest.fixture
async def stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    async with open_stage(postgres) as opened:
        yield opened


async def ledger_of(stage: Stage) -> Ledger:
    """What must be delivered: whatever is committed, for nobody here loses an answer."""
    ledger = Ledger()
    rows = await stage.rows("select id, event_type, source, target, idempotency_key from core.outbox")
    for event_id, event_type, source, target, key in rows:
        envelope = EventEnvelope(
            event_id=event_id, event_type=event_type, source=source, target=target, idempotency_key=key
        )
        ledger.attempt_of(envelope, generation=1).ok()
    return ledger


async def assert_all_settled(stage: Stage, handlers: Iterable[str] = HANDLERS) -> None:
    """The oracle: nothing lost, doubled, stuck or misdirected. The contexts record no effects: the tests count them."""
    verdict = await check(stage.dsn, await ledger_of(stage), silent=frozenset(handlers))
    verdict.assert_clean()


async def test_a_failure_becomes_a_rule_and_every_context_knows_its_part(stage: Stage) -> None:
    workspace_id = uuid4()
    world_model_id = await stage.world_model(workspace_id)
    await stage.cards.publish(world_model_id, DRAFT)
    scan_id = uuid4()
    await stage.scans.start(scan_id, world_model_id)
    await stage.scans.complete(
        scan_id,
        [Finding("Fog", Severity.HIGH), Finding("crane", Severity.LOW), Finding(" fog ", Severity.MEDIUM)],
    )
    cluster = await stage.cluster(world_model_id, [f"sample {number}" for number in range(1, 8)])
    (await stage.drain()).assert_all_handled(times=3)
    curation = await stage.decisions.approve(
        cluster.cluster_id, "A crane stops at a fog bank.", decided_by="ada", reason="seen thrice"
    )
    await stage.decisions.record(
        Decision(cluster_id=cluster.cluster_id, verdict=Verdict.DEFER, decided_by="ada", reason="and again")
    )

    (await stage.drain()).assert_all_handled(times=4)

    assert await stage.rows("select world_model_id, revision, workspace_id from platform.system_card_snapshots") == [
        (world_model_id, 1, workspace_id)
    ]
    assert await stage.rows("select term, scan_id, occurrences from worlds.scan_index order by term") == [
        ("crane", scan_id, 1),
        ("fog", scan_id, 2),
    ]
    ((candidate_id, samples),) = await stage.rows("select candidate_id, samples from worlds.rule_candidates")
    assert samples == ["sample 1", "sample 2", "sample 3", "sample 4", "sample 5"]
    ((rule_id, *rule),) = await stage.rows("select rule_id, candidate_id, curation_id, rule from worlds.rules")
    assert rule == [candidate_id, curation.curation_id, "A crane stops at a fog bank."]
    assert await stage.rows(
        "select curation_id, status, rule_id, refusal, closed_at is not null from platform.curations"
    ) == [(curation.curation_id, "applied", rule_id, None, True)]
    assert await totals(stage) == [("approve", 1), ("defer", 1)]
    await assert_all_settled(stage)


async def totals(stage: Stage) -> list[tuple[str, int]]:
    rows = await stage.rows(
        "select verdict, sum(total)::integer from platform.decision_totals group by verdict order by verdict"
    )
    return [(verdict, total) for verdict, total in rows]


async def test_what_is_counted_is_what_was_decided(stage: Stage) -> None:
    cluster = await stage.cluster(await stage.world_model())
    for verdict in (Verdict.REJECT, Verdict.DEFER, Verdict.REJECT, Verdict.REJECT):
        await stage.decisions.record(
            Decision(cluster_id=cluster.cluster_id, verdict=verdict, decided_by="ada", reason="because")
        )
    await stage.drain()
    assert await totals(stage) == [("defer", 1), ("reject", 3)]
    assert (
        await stage.rows(
            "select (decided_at at time zone 'utc')::date, verdict, count(*) from platform.decisions group by 1, 2"
            " except select decided_on, verdict, total from platform.decision_totals"
        )
        == []
    )


class ChangedMindError(Exception):
    pass


async def decide(stage: Stage, what: str, world_model_id: UUID, scan_id: UUID, cluster_id: UUID) -> None:
    match what:
        case "card":
            await stage.cards.publish(world_model_id, DRAFT)
        case "scan":
            await stage.scans.complete(scan_id, [Finding("fog", Severity.LOW)])
        case "cluster":
            await stage.cluster(world_model_id)
        case "decision":
            await stage.decisions.record(
                Decision(cluster_id=cluster_id, verdict=Verdict.REJECT, decided_by="ada", reason="no")
            )
        case _:
            await stage.decisions.approve(cluster_id, "rule", decided_by="ada", reason="yes")


@pytest.mark.parametrize("what", ["card", "scan", "cluster", "decision", "curation"])
async def test_what_is_rolled_back_is_told_to_nobody(stage: Stage, what: str) -> None:
    world_model_id, scan_id = await stage.world_model(), uuid4()
    await stage.scans.start(scan_id, world_model_id)
    cluster = await stage.cluster(world_model_id)
    before = await stage.rows("select id from core.outbox")
    connection = stage.worlds if what in {"card", "scan"} else stage.platform

    async def change_mind() -> None:
        async with connection.transaction():
            await decide(stage, what, world_model_id, scan_id, cluster.cluster_id)
            raise ChangedMindError

    with pytest.raises(ChangedMindError):
        await change_mind()
    assert await stage.rows("select id from core.outbox") == before
    counted = await stage.rows(
        "select (select count(*) from worlds.model_cards), (select count(*) from worlds.findings),"
        " (select count(*) from platform.failure_clusters), (select count(*) from platform.decisions),"
        " (select count(*) from platform.curations)"
    )
    assert counted == [(0, 0, 1, 0, 0)]


async def test_what_cannot_be_done_is_refused_and_told_to_nobody(stage: Stage) -> None:
    unknown, scan_id = uuid4(), uuid4()
    await stage.scans.start(scan_id, await stage.world_model())
    await stage.scans.complete(scan_id, [])
    before = await stage.rows("select id from core.outbox")
    with pytest.raises(WorldModelNotFoundError, match=f"no world model {unknown}; create it first"):
        await stage.cards.publish(unknown, DRAFT)
    for closed in (unknown, scan_id):
        with pytest.raises(ScanNotOpenError, match=f"no open scan {closed}; start it first"):
            await stage.scans.complete(closed, [])
    with pytest.raises(ClusterNotFoundError, match=f"no cluster {unknown}; detect it first"):
        await stage.decisions.approve(unknown, "rule", decided_by="ada", reason="yes")
    assert await stage.rows("select id from core.outbox") == before


async def test_an_event_that_is_told_again_has_no_second_effect(stage: Stage) -> None:
    world_model_id, scan_id = await stage.world_model(), uuid4()
    await stage.cards.publish(world_model_id, DRAFT)
    await stage.scans.start(scan_id, world_model_id)
    await stage.scans.complete(scan_id, [Finding("fog", Severity.LOW)])
    cluster = await stage.cluster(world_model_id)
    (await stage.drain()).assert_all_handled(times=3)
    await stage.decisions.approve(cluster.cluster_id, "rule", decided_by="ada", reason="yes")
    (await stage.drain()).assert_all_handled(times=3)
    effects = await everything(stage)

    # As if every acknowledgement had been lost, and an operator had sent all of it again.
    await stage.change(
        "insert into core.outbox (event_type, event_version, occurred_at, source, target, workspace_id, payload,"
        " idempotency_key, generation, channel)"
        " select event_type, event_version, occurred_at, source, target, workspace_id, payload, idempotency_key,"
        " generation, channel from core.outbox"
    )
    again = await stage.drain()

    assert list(again.outcomes.values()) == [[AlreadyHandled()]] * 6
    assert await everything(stage) == effects


async def everything(stage: Stage) -> list[list[tuple[object, ...]]]:
    tables = [
        "platform.system_card_snapshots",
        "platform.decision_totals",
        "platform.curations",
        "worlds.scan_index",
        "worlds.rule_candidates",
        "worlds.rules",
    ]
    found = [await stage.rows(f"select * from {table} order by 1, 2") for table in tables]  # noqa: S608  ours
    assert all(found)
    return found


async def test_a_dead_letter_is_replayed_once_its_cause_is_gone(stage: Stage) -> None:
    world_model_id = await stage.world_model()
    await stage.change("alter table platform.system_card_snapshots add constraint odd check (revision <> 1)")
    card = await stage.cards.publish(world_model_id, DRAFT)
    first = await stage.drain()
    assert [type(outcome) for (outcome,) in first.outcomes.values()] == [DeadLetter]

    await stage.change("alter table platform.system_card_snapshots drop constraint odd")
    await stage.change("select core.outbox_replay(id, 1, 'ada') from core.outbox where status = 'failed'")
    (await stage.drain()).assert_all_handled(times=1)
    found = await current_system_card(stage.platform, world_model_id)
    assert found is not None
    assert found.card == card.model_dump(mode="json")
    await assert_all_settled(stage)


async def test_revisions_that_come_in_any_order_end_with_the_newest(stage: Stage) -> None:
    world_model_id = await stage.world_model()
    for number in (1, 2, 3):
        await stage.cards.publish(world_model_id, CardDraft(title=f"revision {number}", summary=""))
    await stage.change(
        "update core.outbox set next_attempt_at = now() + interval '1 hour' where payload ->> 'revision' = '1'"
    )
    (await stage.drain()).assert_all_handled(times=2)
    await stage.change("update core.outbox set next_attempt_at = now() where status = 'pending'")
    (await stage.drain()).assert_all_handled(times=1)
    arrived = await stage.rows("select revision from platform.system_card_snapshots order by projected_at")
    assert sorted(arrived) == [(1,), (2,), (3,)]
    assert arrived[-1] == (1,)
    found = await current_system_card(stage.platform, world_model_id)
    assert found is not None
    assert (found.revision, found.card["title"]) == (3, "revision 3")
    assert await current_system_card(stage.platform, uuid4()) is None


async def test_the_second_curation_of_a_cluster_is_refused_and_platform_is_told(stage: Stage) -> None:
    cluster = await stage.cluster(await stage.world_model())
    (await stage.drain()).assert_all_handled(times=1)
    for rule in ("first", "second"):
        await stage.decisions.approve(cluster.cluster_id, rule, decided_by="ada", reason="yes")
        await stage.drain()
    assert await stage.rows("select rule from worlds.rules") == [("first",)]
    assert await stage.rows("select rule, status, refusal from platform.curations order by approved_at") == [
        ("first", "applied", None),
        ("second", "refused", "the candidate is a rule already"),
    ]
    await assert_all_settled(stage)


async def test_a_curation_that_overtakes_its_cluster_waits_for_it(stage: Stage) -> None:
    cluster = await stage.cluster(await stage.world_model())
    await stage.change("update core.outbox set next_attempt_at = now() + interval '1 hour'")
    await stage.decisions.approve(cluster.cluster_id, "rule", decided_by="ada", reason="yes")
    first = await stage.drain()
    assert {type(outcomes[0]) for outcomes in first.outcomes.values()} == {Handled, Retry}
    assert await stage.rows("select status from platform.curations") == [("approved",)]

    await stage.change(
        "update core.outbox set next_attempt_at = now() where event_type = 'platform.failure_cluster.detected'"
    )
    await stage.drain()
    await stage.change("update core.outbox set next_attempt_at = now() where status = 'pending'")
    await stage.drain()
    assert await stage.rows("select status from platform.curations") == [("applied",)]
    await assert_all_settled(stage)


async def test_a_cluster_that_never_comes_is_an_answer_at_the_last_attempt(stage: Stage) -> None:
    _, worlds = stage.consumers()
    approved = curation_of(uuid4(), uuid4())
    with pytest.raises(CandidateNotKnownError, match="no rule candidate of cluster"):
        await run_handler("worlds.curation_approved_applier", approved, consumer=worlds, tx=stage.worlds, attempt=5)
    assert await stage.rows("select id from core.outbox") == []
    await run_handler("worlds.curation_approved_applier", approved, consumer=worlds, tx=stage.worlds, attempt=6)
    ((payload,),) = await stage.rows("select payload from core.outbox where event_type = 'worlds.curation.applied'")
    assert (payload["curation_id"], payload["outcome"], payload["rule_id"]) == (
        approved.payload["curation_id"],
        "refused",
        None,
    )
    assert "no rule candidate" in payload["refusal"]


def curation_of(curation_id: UUID, cluster_id: UUID) -> EventEnvelope:
    return EventEnvelope(
        event_type="platform.curation.approved",
        source="platform",
        target="worlds",
        payload={
            "curation_id": str(curation_id),
            "cluster_id": str(cluster_id),
            "rule": "rule",
            "approved_at": datetime.now(UTC).isoformat(),
        },
    )
