"""Replay and discard of all that a filter means: that it ends, can be stopped, and goes on where it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest

from spectral.core.database import Database, DatabaseUnavailableError, RefusedError, connect
from spectral.core.operations import dead_letters_walk
from spectral.core.operations.dead_letters import DeadLetterFilter
from spectral.core.operations.discard import DiscardOptions, discard_matching
from spectral.core.operations.replay import Progress, ReplayOptions, ReplayReport, preview, replay_matching
from tests.integration.test_dead_letters import letter
from tests.migrations.schema import role, value
from tests.migrations.sql import claim, fail, row, settle

Connection = psycopg.Connection[Any]

ADA = ReplayOptions(by="ada", reason="fixed in 1.4.2", batch=3)
EVERYTHING = DeadLetterFilter()

FILL = """\
insert into core.outbox (
    event_type, source, target, channel, generation, idempotency_key, status, attempts, claimed_by, claimed_at,
    last_error, first_failed_at
)
select
    'worlds.scan.completed', 'worlds', 'platform', 'outbox_gen_1', 1, n::text, 'failed', 6, 'worker-1', now(),
    (array['ValueError', 'KeyError'])[1 + n %% 2] || ': platform.index: no', now()
from generate_series(1, %s) as n"""


def never() -> bool:
    return False


def unheard(_: Progress) -> None:
    pass


async def run(
    operator: Database,
    wanted: DeadLetterFilter = EVERYTHING,
    options: ReplayOptions = ADA,
    on_progress: Callable[[Progress], None] = unheard,
    should_stop: Callable[[], bool] = never,
) -> ReplayReport:
    return await replay_matching(operator, wanted, options, on_progress, should_stop)


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test") as opened:
            yield opened


async def test_everything_that_a_filter_means_is_replayed_oldest_first(
    operator: Database, connection: Connection
) -> None:
    mine = [letter(connection, "ValueError: platform.index: no", at=n % 4) for n in range(8)]
    other = letter(connection, "KeyError: platform.index: no")
    told: list[Progress] = []
    report = await run(operator, DeadLetterFilter(error_class="ValueError"), on_progress=told.append)
    assert (report.replayed, report.refused, report.remaining, report.stopped, report.generation) == (8, 0, 0, False, 1)
    assert [each.done for each in told] == [3, 6, 8]
    assert row(connection, other)["status"] == "failed"
    batches = connection.execute("select event_ids, reason from core.audit order by id").fetchall()
    assert [len(ids) for ids, _ in batches] == [3, 3, 2]
    assert {reason for _, reason in batches} == {"fixed in 1.4.2"}
    age = {event_id: n % 4 for n, event_id in enumerate(mine)}
    ages = [[age[event_id] for event_id in ids] for ids, _ in batches]
    assert all(max(earlier) <= min(later) for earlier, later in pairwise(ages))


async def test_what_fails_again_meanwhile_is_not_replayed_twice(operator: Database, connection: Connection) -> None:
    for _ in range(7):
        fail(connection)

    def fail_again(_: Progress) -> None:
        settle(connection, claim(connection), "dead_letter", "ValueError: again")

    report = await run(operator, on_progress=fail_again)
    assert (report.replayed, report.remaining) == (7, 0)
    assert value(connection, "select count(*) from core.dead_letters where replays = 1") == 7


async def test_it_stops_between_two_batches_and_goes_on_later_with_the_same_set(
    operator: Database, connection: Connection
) -> None:
    for _ in range(8):
        fail(connection)
    told: list[Progress] = []
    report = await run(operator, on_progress=told.append, should_stop=lambda: len(told) == 2)
    assert (report.replayed, report.remaining, report.stopped) == (6, 2, True)
    late = fail(connection)
    rest = await run(operator, DeadLetterFilter(failed_before=report.failed_before))
    assert (rest.replayed, rest.remaining, rest.stopped) == (2, 0, False)
    assert row(connection, late)["status"] == "failed"


async def test_what_somebody_else_replayed_meanwhile_is_counted_as_refused(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [fail(connection) for _ in range(3)]
    from spectral.core.operations import replay as service  # noqa: PLC0415  to be changed under its feet

    original = service.replay

    async def beaten(database: Database, few: list[UUID], **given: Any) -> object:  # noqa: ANN401  as replay has them
        connection.execute("select core.outbox_replay(%s, 2, 'bob')", [ids[0]])
        return await original(database, few, **given)

    monkeypatch.setattr(service, "replay", beaten)
    report = await run(operator)
    assert (report.replayed, report.refused, report.remaining) == (2, 1, 0)


async def test_a_rate_is_kept(operator: Database, connection: Connection) -> None:
    for _ in range(4):
        fail(connection)
    clock, slept = [0.0], [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spectral.core.operations.dead_letters_batches.monotonic", lambda: clock[0])

        async def sleep(seconds: float) -> None:
            clock[0] += seconds
            slept[0] += seconds

        patch.setattr("spectral.core.operations.dead_letters_batches.asyncio.sleep", sleep)
        report = await run(operator, options=ReplayOptions(by="ada", rate=2, batch=500))
    assert report.replayed == 4
    # Two in the first second, two in the next; after the last ones nobody waits.
    assert slept[0] == pytest.approx(1.0)


async def test_stopping_does_not_wait_for_the_rate(operator: Database, connection: Connection) -> None:
    for _ in range(3):
        fail(connection)
    told: list[Progress] = []
    async with asyncio.timeout(20):
        options = ReplayOptions(by="ada", rate=0.01)  # the next one in a hundred seconds
        report = await run(operator, options=options, on_progress=told.append, should_stop=lambda: bool(told))
    assert (report.replayed, report.stopped) == (1, True)


async def test_nothing_to_replay_is_done_at_once(operator: Database) -> None:
    report = await run(operator, DeadLetterFilter(error_class="Nothing"))
    assert (report.replayed, report.remaining, report.stopped) == (0, 0, False)


async def test_a_preview_counts_what_would_be_done_and_fixes_the_set(
    operator: Database, connection: Connection
) -> None:
    fail(connection)
    planned = await preview(operator, EVERYTHING)
    assert (planned.count, planned.capped) == (1, False)
    fail(connection)
    report = await run(operator, DeadLetterFilter(failed_before=planned.failed_before))
    assert (report.replayed, report.failed_before) == (1, planned.failed_before)


async def test_ten_thousand_are_replayed_with_progress_half_of_them_after_a_break_and_every_one_is_in_the_audit_once(
    operator: Database, connection: Connection
) -> None:
    connection.execute("set session_replication_role = replica")
    connection.execute(FILL, [10_000])
    connection.execute("set session_replication_role = origin")
    options = ReplayOptions(by="ada", reason="fixed", batch=1_000)
    told: list[Progress] = []
    first = await run(operator, options=options, on_progress=told.append, should_stop=lambda: len(told) == 5)
    assert (first.replayed, first.remaining, first.stopped) == (5_000, 5_000, True)
    assert [each.done for each in told] == [1_000, 2_000, 3_000, 4_000, 5_000]
    second = await run(operator, DeadLetterFilter(failed_before=first.failed_before), options)
    assert (second.replayed, second.refused, second.remaining, second.stopped) == (5_000, 0, 0, False)
    assert connection.execute(
        "select sum(affected), count(*), (select count(distinct each) from core.audit, unnest(event_ids) as each)"
        " from core.audit where action = 'replay'"
    ).fetchone() == (10_000, 10, 10_000)
    assert value(connection, "select count(*) from core.outbox where jsonb_array_length(failure_history) <> 1") == 0


async def test_a_connection_lost_half_way_loses_nothing(database: str, connection: Connection) -> None:
    for _ in range(8):
        fail(connection)
    moment = value(connection, "select clock_timestamp()")
    wanted = DeadLetterFilter(failed_before=moment)
    async with connect(database, "test") as doomed:

        def cut(_: Progress) -> None:
            connection.execute("select pg_terminate_backend(%s, 5000)", [doomed.connection.info.backend_pid])

        with pytest.raises(DatabaseUnavailableError):
            await run(doomed, wanted, on_progress=cut)
    async with connect(database, "test") as another:
        report = await run(another, wanted)
    assert (report.replayed, report.remaining) == (5, 0)
    assert value(connection, "select sum(affected) from core.audit") == 8


async def test_many_are_discarded_the_same_way(operator: Database, connection: Connection) -> None:
    for _ in range(5):
        fail(connection)
    keep = fail(connection, "KeyError: no")
    options = DiscardOptions(by="ada", reason="test orders", batch=2)
    wanted = DeadLetterFilter(error_class="ValueError")
    told: list[Progress] = []
    first = await discard_matching(operator, wanted, options, told.append, lambda: len(told) == 1)
    assert (first.discarded, first.remaining, first.stopped) == (2, 3, True)
    rest = await discard_matching(operator, wanted, options, told.append, never)
    assert (rest.discarded, rest.refused, rest.remaining, rest.stopped) == (3, 0, 0, False)
    assert row(connection, keep)["deleted_at"] is None
    audit = connection.execute("select action, reason, sum(affected) from core.audit group by 1, 2").fetchall()
    assert audit == [("discard", "test orders", 5)]
    with pytest.raises(RefusedError, match="needs a reason"):
        await discard_matching(operator, wanted, DiscardOptions(by="ada", reason=""), unheard, never)


async def test_many_fingerprints_are_walked_thriftily_and_none_is_forgotten(
    operator: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters_walk, "_LEAST", 2)
    # The first four are all of one kind: the other ranges are read in vain.
    ids = [letter(connection, f"E{max(0, n - 4) % 4}: no", at=n) for n in range(20)]
    report = await run(operator, DeadLetterFilter(context="platform"), ReplayOptions(by="ada", batch=6))
    assert (report.replayed, report.remaining) == (20, 0)
    batches = connection.execute("select event_ids from core.audit order by id").fetchall()
    order = [ids.index(event_id) for (batch,) in batches for event_id in sorted(batch, key=ids.index)]
    assert order == list(range(20))
    assert max(len(batch) for (batch,) in batches) <= 6
