"""Generations as an operator moves them: what is read, what is refused, what is left in the audit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from spectral.core import deployments
from spectral.core.database import Database, NotFoundError, RefusedError, connect
from spectral.core.deployments import Allocation, Blocker, Count, Promotion, Release, Status, Subscription, reading
from tests.migrations.sql import EVENT_TYPE, claim, fail, publish, row

Connection = psycopg.Connection[Any]

RELEASE = Release(
    label="v2",
    subscriptions=(
        Subscription("platform", EVENT_TYPE, "platform.project_scan", 6),
        Subscription("platform", EVENT_TYPE, "platform.mail", 2),
    ),
)


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    """The operator's connection, with the operator's rights and no others."""
    async with connect(database, "test") as opened:
        await opened.connection.execute("set role spectral_operator")
        yield opened


async def status_of(operator: Database, generation: int) -> Status:
    return (await deployments.find_deployment(operator, generation)).status


def audited(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("select action, actor, reason, detail from core.audit order by id").fetchall()


def publish_to(connection: Connection, generation: int, count: int = 1, **given: object) -> list[UUID]:
    return [publish(connection, p_generation=generation, **given) for _ in range(count)]  # type: ignore[arg-type]


async def test_every_generation_is_listed_the_newest_first_with_what_is_left_of_it(
    operator: Database, connection: Connection
) -> None:
    fail(connection)
    publish_to(connection, 1, 3)
    claim(connection, limit=1)
    publish_to(connection, 2)
    found = await deployments.list_deployments(operator)
    assert [(each.generation, each.status) for each in found] == [(2, "allocated"), (1, "live"), (0, "retired")]
    assert [(each.pending, each.in_flight, each.failed) for each in found] == [
        (Count(1), Count(0), Count(0)),
        (Count(2), Count(1), Count(1)),
        (Count(0), Count(0), Count(0)),
    ]
    assert all(each.allocated_at is not None for each in found)


async def test_counts_end_at_the_cap_and_say_so(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "COUNTED_AT_MOST", 2)
    for _ in range(3):
        fail(connection)
    publish_to(connection, 2, 2)
    publish_to(connection, 1, 7)
    assert len(claim(connection, limit=3)) == 3
    two, one, zero = await deployments.list_deployments(operator)
    assert (one.pending, one.in_flight, one.failed) == (Count(2, capped=True),) * 3
    assert two.pending == Count(2)
    # which generations the rest of the DLQ is of, nobody has looked
    assert (two.failed, zero.failed) == (Count(0, capped=True),) * 2


async def test_rows_of_a_generation_that_nobody_allocated_are_seen(operator: Database, connection: Connection) -> None:
    publish_to(connection, 9, 2)
    found, *_ = await deployments.list_deployments(operator)
    assert (found.generation, found.status, found.pending) == (9, Status.UNKNOWN, Count(2))
    assert (found.allocated_at, found.since) == (None, None)
    assert [each.remedy for each in deployments.remarks([found])][-1] == "spectral generations list"


async def test_of_the_retired_ones_the_newest_are_shown_and_those_that_have_rows(
    operator: Database, connection: Connection
) -> None:
    connection.execute(
        "insert into core.deployments (generation, status, retired_at)"
        " select each, 'retired', now() from generate_series(3, 30) as each"
    )
    publish_to(connection, 5)
    shown = [each.generation for each in await deployments.list_deployments(operator, retired=3)]
    assert shown == [30, 29, 28, 5, 2, 1]
    assert await status_of(operator, 4) is Status.RETIRED  # not shown, but found


async def test_workers_that_live_are_counted_by_the_generation_they_run(
    operator: Database, connection: Connection
) -> None:
    for name, generations in (("old", [1]), ("new", [2]), ("both", [2, 1]), ("dead", [1])):
        connection.execute(
            "select core.worker_sign_in(%s, %s, '{platform}', '{outbox_gen_1}', 'here', 1, '0')", [name, generations]
        )
        if name != "dead":
            connection.execute("select pg_advisory_lock(core.worker_lock_key(%s))", [name])
    two, one, zero = await deployments.list_deployments(operator)
    assert (two.workers, two.accepted_by) == (("both", "new"), ())
    assert (one.workers, one.accepted_by) == (("old",), ("both",))
    assert (zero.workers, zero.accepted_by) == ((), ())


async def test_there_is_no_such_generation(operator: Database) -> None:
    for ask in (
        deployments.find_deployment(operator, 7),
        deployments.promote(operator, 7, by="ada"),
        deployments.drain(operator, 7, by="ada"),
        deployments.retire(operator, 7, by="ada"),
        deployments.preview_hand_over(operator, deployments.HandOver(7, 1)),
        deployments.hand_over(operator, deployments.HandOver(1, 7), by="ada"),
    ):
        with pytest.raises(NotFoundError, match="there is no generation 7") as error:
            await ask
        assert error.value.remedy == "spectral generations list"


async def test_the_live_one_is_known_also_after_a_rollback(operator: Database) -> None:
    assert await deployments.live_generation(operator) == 1
    await deployments.promote(operator, 2, by="ada")
    assert await deployments.live_generation(operator) == 2
    await deployments.rollback(operator, by="ada")
    assert await deployments.live_generation(operator) == 1
    await deployments.drain(operator, 1, by="ada")
    with pytest.raises(NotFoundError, match="no generation is live") as error:
        await deployments.live_generation(operator)
    assert error.value.remedy == "spectral generations promote 2"


async def test_a_release_gets_the_next_number_and_its_subscriptions_are_on_record(
    operator: Database, connection: Connection
) -> None:
    assert await deployments.allocate(operator, RELEASE, by="ada", dry_run=True) == Allocation(3, "v2", 2, new=True)
    assert audited(connection) == []
    assert await deployments.allocate(operator, RELEASE, by="ada", reason="v2") == Allocation(3, "v2", 2, new=True)
    found = await deployments.find_deployment(operator, 3)
    assert (found.status, found.label) == (Status.ALLOCATED, "v2")
    assert await deployments.list_subscriptions(operator, 3) == sorted(RELEASE.subscriptions)
    assert audited(connection) == [("allocate", "ada", "v2", {"generation": 3, "label": "v2"})]


async def test_allocating_again_brings_it_up_to_date_until_it_is_promoted(operator: Database) -> None:
    await deployments.allocate(operator, RELEASE, by="ada")
    mended = Release("v2.1", RELEASE.subscriptions[:1], 3)
    assert await deployments.allocate(operator, mended, by="ada") == Allocation(3, "v2.1", 1, new=False)
    assert await deployments.list_subscriptions(operator, 3) == [*RELEASE.subscriptions[:1]]
    await deployments.promote(operator, 3, by="ada")
    for dry_run in (True, False):
        with pytest.raises(RefusedError, match="generation 3 is live already"):
            await deployments.allocate(operator, mended, by="ada", dry_run=dry_run)
    with pytest.raises(RefusedError, match="generation 0 is retired already"):
        await deployments.allocate(operator, Release(generation=0), by="ada")


async def test_a_number_that_publishers_used_before_it_was_allocated_may_be_allocated(
    operator: Database, connection: Connection
) -> None:
    publish_to(connection, 9)
    assert await deployments.allocate(operator, Release(generation=9), by="ada") == Allocation(9, None, 0, new=True)
    assert await status_of(operator, 9) is Status.ALLOCATED


async def test_the_first_release_of_a_database_is_number_1(operator: Database, connection: Connection) -> None:
    connection.execute("delete from core.deployments")
    assert (
        deployments.remarks(await deployments.list_deployments(operator))[0].remedy == "spectral generations allocate"
    )
    for dry_run in (True, False):
        done = await deployments.allocate(operator, Release(), by="ada", dry_run=dry_run)
        assert done.generation == 1
    assert await deployments.promote(operator, 1, by="ada") == Promotion(1, None)


async def test_promoting_drains_the_one_before_and_a_rollback_brings_it_back(
    operator: Database, connection: Connection
) -> None:
    assert await deployments.promote(operator, 2, by="ada", dry_run=True) == Promotion(2, 1)
    assert await status_of(operator, 2) is Status.ALLOCATED
    assert await deployments.promote(operator, 2, by="ada", reason="v2 is up") == Promotion(2, 1)
    assert [await status_of(operator, each) for each in (1, 2)] == [Status.DRAINING, Status.LIVE]
    assert not (await deployments.promote(operator, 2, by="ada")).changed

    assert await deployments.rollback(operator, by="bob", dry_run=True) == Promotion(1, 2)
    assert await deployments.rollback(operator, by="bob", reason="no invoices") == Promotion(1, 2)
    assert [await status_of(operator, each) for each in (1, 2)] == [Status.LIVE, Status.DRAINING]
    with pytest.raises(RefusedError, match="generation 1 is live by a rollback from 2") as error:
        await deployments.rollback(operator, by="bob")
    assert error.value.remedy == "spectral generations promote 2"
    assert audited(connection) == [
        ("promote", "ada", "v2 is up", {"generation": 2, "before": 1}),
        ("rollback", "bob", "no invoices", {"generation": 1, "before": 2}),
    ]


async def test_a_rollback_from_what_is_not_live_any_more_is_refused(operator: Database) -> None:
    await deployments.promote(operator, 2, by="ada")
    seen = await deployments.rollback(operator, by="bob", dry_run=True)
    three = (await deployments.allocate(operator, Release(), by="ada")).generation
    await deployments.promote(operator, three, by="ada")
    with pytest.raises(RefusedError, match="generation 2 is not live any more, 3 is"):
        await deployments.rollback(operator, by="bob", leaving=seen.before)
    assert await deployments.live_generation(operator) == three


async def test_a_rollback_without_a_release_before_is_refused(operator: Database) -> None:
    with pytest.raises(RefusedError, match="there is nothing to roll back to: generation 1 is live"):
        await deployments.rollback(operator, by="ada")


async def test_a_release_that_never_went_live_may_be_drained_and_retired(
    operator: Database, connection: Connection
) -> None:
    assert (await deployments.drain(operator, 2, by="ada", dry_run=True)).status is Status.ALLOCATED
    assert (await deployments.drain(operator, 2, by="ada")).status is Status.DRAINING
    assert (await deployments.drain(operator, 2, by="ada")).status is Status.DRAINING
    assert (await deployments.retire(operator, 2, by="ada", dry_run=True)).status is Status.DRAINING
    retired = await deployments.retire(operator, 2, by="ada", reason="withdrawn")
    assert (retired.status, retired.since) == (Status.RETIRED, retired.retired_at)
    assert (await deployments.retire(operator, 2, by="ada")).status is Status.RETIRED
    for step in (deployments.promote, deployments.drain):
        with pytest.raises(RefusedError, match="generation 2 is retired"):
            await step(operator, 2, by="ada")
    assert [(action, reason) for action, _, reason, _ in audited(connection)] == [
        ("drain", None),
        ("retire", "withdrawn"),
    ]


async def test_a_generation_is_not_retired_while_rows_are_left_and_it_is_said_which(
    operator: Database, connection: Connection
) -> None:
    publish_to(connection, 1, 3)
    publish_to(connection, 1, 1, target=None, p_event_type="worlds.scan.begun")
    claim(connection, limit=1)
    with pytest.raises(RefusedError, match="generation 1 is live; promote another one first") as error:
        await deployments.retire(operator, 1, by="ada")
    assert error.value.remedy == "spectral generations promote 2"
    await deployments.promote(operator, 2, by="ada")
    assert await deployments.list_blockers(operator, 1) == [
        Blocker("pending", "platform", EVENT_TYPE, 2),
        Blocker("in_flight", "platform", EVENT_TYPE, 1),
        Blocker("pending", None, "worlds.scan.begun", 1),
    ]
    for dry_run in (True, False):
        with pytest.raises(RefusedError) as error:
            await deployments.retire(operator, 1, by="ada", dry_run=dry_run)
        assert str(error.value) == (
            f"generation 1 is not at its end: 2 pending {EVENT_TYPE} of platform, "
            f"1 in flight {EVENT_TYPE} of platform, 1 pending worlds.scan.begun to all"
        )
        assert error.value.remedy == "spectral generations hand-over 1 2"


async def test_dead_letters_do_not_keep_a_generation(operator: Database, connection: Connection) -> None:
    dead = fail(connection)
    await deployments.promote(operator, 2, by="ada")
    retired = await deployments.retire(operator, 1, by="ada")
    assert (retired.status, retired.failed) == (Status.RETIRED, Count(1))
    connection.execute("select core.outbox_replay(%s, 2, 'ada')", [dead])
    assert row(connection, dead)["generation"] == 2


async def test_a_reader_sees_what_an_operator_sees_and_changes_nothing(database: str, connection: Connection) -> None:
    publish_to(connection, 1, 2)
    async with connect(database, "test") as reader:
        await reader.connection.execute("set role spectral_readonly")
        _, one, _ = await deployments.list_deployments(reader)
        assert (one.status, one.pending) == (Status.LIVE, Count(2))
        with pytest.raises(RefusedError, match="this login may not do that"):
            await deployments.promote(reader, 2, by="eve")
    assert connection.execute("select generation from core.live_generation").fetchall() == [(1,)]
