"""The claim loop never sleeps while there is something to take, and never asks for ever for what is not there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.ports import NOTHING_ALONG, Along, ClaimAnswer, ClaimAsk, Outlook
from spectral.core.events.probe import Claimed, Note, NoteTaker
from spectral.core.events.routes import Line
from tests.unit.claim_stage import Row, Stage, clock, play
from tests.unit.test_routes import delivery

A, B, C = (f"worlds.scan.{name}" for name in ("alpha", "beta", "gamma"))


def line(*types: str, context: str = "platform", transactional: bool = False) -> Line:
    return Line(context, types, (f"{context}.{types[0]}",), transactional)


def three_contexts() -> tuple[Line, ...]:
    return tuple(line(A, context=f"context_{number}") for number in range(3))


def lanes_beside_plain() -> tuple[Line, ...]:
    return line(A, transactional=True), line(B, C)


def one_of_three_types() -> tuple[Line, ...]:
    return (line(A, B, C),)


LAYOUTS = {
    "more lines than room": (three_contexts, 1),
    "lanes beside plain handlers": (lanes_beside_plain, 3),
    "several types": (one_of_three_types, 4),
}


async def disturb(stage: Stage, chance: random.Random) -> None:
    """Bursts, late commits, retries, idle wakes and the brake, for ten seconds."""
    kinds = [(each.context, event_type) for each in stage.lines for event_type in each.event_types or ()]
    while clock() < 10:
        await asyncio.sleep(chance.choice([0.0, 0.0005, 0.003, 0.05, 0.4, 0.9]))
        event = chance.random()
        context, event_type = chance.choice(kinds)
        if event < 0.1:
            stage.loop.wake()
        elif event < 0.15:
            stage.table.braked ^= {context}
            stage.loop.wake()
        else:
            late = chance.choice([0, 0, 0, 0.05, 1, 5])
            count = chance.choice([1, 1, 2, 30])
            takes = chance.choice([0, 0.002, 0.3])
            retries = chance.choice([[], [], [0.3], [0.0, 1.2]])
            delay = chance.choice([0, 0, 0.7])
            step = chance.choice([0, 0.001])
            due = clock() - late + delay
            stage.commit(*(Row(due + step * n, event_type, context, 0, takes, [*retries]) for n in range(count)))
    stage.table.braked.clear()
    stage.loop.wake()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_never_sleeps_while_there_is_something_to_take(
    monkeypatch: pytest.MonkeyPatch, layout: str, seed: int
) -> None:
    lines, concurrency = LAYOUTS[layout]
    monkeypatch.setattr("spectral.core.events.delivery.position._WINDOW", 7)
    chance = random.Random(f"{layout} {seed}")  # noqa: S311  the same every time

    async def scene() -> None:
        stage = Stage(monkeypatch, *lines(), concurrency=concurrency)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await disturb(stage, chance)
            await stage.until_done(within=120)
            stage.loop.stop()
        assert len(stage.table.rows) > 20
        assert stage.sleeps
        assert stage.table.claims < 40 * len(stage.table.rows) + 2_000

    play(scene)


def test_with_more_lines_than_room_all_are_asked_before_it_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, *three_contexts(), concurrency=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            stage.commit(*(Row(clock(), A, f"context_{number}") for number in range(3)))
            await stage.until_done(within=0.1)
            stage.commit(*(Row(clock() - 2, A, f"context_{number}") for number in range(3)))
            await stage.until_done(within=0.8)
            stage.loop.stop()

    play(scene)


def test_what_wakes_it_is_claimed_before_anything_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            for _ in range(5):
                table = stage.table
                table.claims = table.looks = table.outlooks = 0
                row = Row(clock(), A)
                stage.commit(row)
                await asyncio.sleep(0.9 * table.claim_takes)
                assert (table.claims, table.looks, table.outlooks, row.status) == (1, 0, 0, "in_flight")
                await asyncio.sleep(0.5)
                # Then one look from the beginning that shows that there is nothing else.
                assert (table.claims, table.looks, table.outlooks) == (2, 1, 1)
            stage.loop.stop()

    play(scene)


def test_what_wakes_it_is_begun_with_before_anything_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        waiting: list[int] = []  # for their handlers, whenever it looks
        look = stage.table.look_ahead_and_claim

        async def watched(asks: Sequence[ClaimAsk], along: Along) -> tuple[Outlook, list[ClaimAnswer]]:
            waiting.append(len(stage.table.leased))
            return await look(asks, along)

        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            monkeypatch.setattr(stage.table, "look_ahead_and_claim", watched)
            stage.commit(Row(clock(), A), Row(clock(), A))
            await asyncio.sleep(0.5)
            stage.loop.stop()
        assert waiting == [0]

    play(scene)


def test_who_is_woken_all_the_time_looks_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            late = Row(clock() - 2, A, visible=clock())
            stage.table.rows.append(late)  # and nobody says so
            for _ in range(2_000):
                stage.loop.wake()
                await asyncio.sleep(0.0003)
            assert late.status == "delivered"
            stage.loop.stop()

    play(scene)


def test_what_falls_due_in_a_context_that_was_not_asked_last_is_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, *three_contexts(), concurrency=1)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            stage.commit(*(Row(clock() + 2 + number, A, f"context_{number}") for number in range(3)))
            await asyncio.sleep(1.9)
            await stage.until_done(within=2.2)
            stage.loop.stop()

    play(scene)


def test_a_late_commit_in_the_middle_of_a_walk_is_found_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectral.core.events.delivery.position._WINDOW", 10)

    async def scene() -> None:
        stage = Stage(monkeypatch, line(A, transactional=True), line(B), concurrency=1)
        heap = [Row(0.001 * n - 1, B, takes=100) for n in range(300)]
        stage.table.rows += heap
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(0.015)  # the walk is half way
            assert stage.table.asked[0].start is not None
            late = Row(-2, A)
            stage.commit(late)
            await asyncio.sleep(1.5)
            assert late.status == "delivered"
            stage.loop.stop()

    play(scene)


def test_a_heap_of_a_type_without_room_is_not_walked_over_for_every_handful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectral.core.events.delivery.position._WINDOW", 20)

    async def scene() -> None:
        stage = Stage(monkeypatch, line(A, B), concurrency=5)
        stage.table.rows += [Row(0.0001 * n, A, takes=0.2) for n in range(2_000)]
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(6)
            quick = Row(clock(), B)
            stage.commit(quick)
            await asyncio.sleep(0.5)  # some of the slow ones have to end first
            assert quick.status == "delivered"
            done = sum(row.status == "delivered" for row in stage.table.rows)
            stage.loop.stop()
        assert done > 100
        # A walk takes a hundred claims. There is one in two seconds, and some for each handful that has ended.
        assert stage.table.claims < 400 + 4 * done

    play(scene)


def test_rows_that_nobody_asks_for_do_not_keep_it_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines walk over them, and one is through before the other."""
    monkeypatch.setattr("spectral.core.events.delivery.position._WINDOW", 10)

    async def scene() -> None:
        stage = Stage(monkeypatch, *lanes_beside_plain())
        stage.table.rows += [Row(0.0001 * n - 1, "worlds.scan.ignored") for n in range(100)]
        handled = [Row(-0.9945, A), Row(-0.9969, B)]
        stage.table.rows += handled
        await stage.run("drained")
        assert {row.status for row in handled} == {"delivered"}
        assert stage.table.claims < 60
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(10)
            claims = stage.table.claims
            await asyncio.sleep(60)
            assert stage.table.claims - claims < 4 * 4 * 12  # a look for every poll, and a walk of some claims for each
            stage.loop.stop()

    play(scene)


def test_an_expensive_look_is_not_made_before_every_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        stage.table.look_takes = 0.2  # as with a snapshot that pins what was there
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(1)
            before = stage.table.looks
            for _ in range(50):
                row = Row(clock(), A)
                stage.commit(row)
                await asyncio.sleep(0.1)
            assert stage.table.looks - before <= 7  # in five seconds, instead of fifty
            await stage.until_done(within=0.3)
            looks = stage.table.looks
            await asyncio.sleep(14)
            assert stage.table.looks - looks <= 1  # none without a reason
            stage.loop.stop()

    play(scene)


def test_it_does_not_wait_for_the_quiet_for_longer_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        stage.loop._quarantine.offered, stage.loop._quarantine.until = stage.lines[0], clock() + 2
        assert stage.loop._pause() == pytest.approx(2)

    play(scene)


def test_what_was_claimed_so_long_ago_that_it_may_have_been_given_back_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        stage.table.rows += [Row(0, A) for _ in range(3)]
        stage.table.claim_takes = 2 * stage.desk.settings.times.answer.total_seconds() + 1
        await stage.run("once")
        assert await stage.released() == 3
        assert {row.status for row in stage.table.rows} == {"in_flight"}  # no handler has begun

    play(scene)


def test_drained_means_that_everything_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, *three_contexts(), concurrency=1)
        stage.table.rows += [Row(-n, A, f"context_{n % 3}", takes=0.01) for n in range(20)]
        await stage.run("drained")
        assert {row.status for row in stage.table.rows} == {"delivered"}
        assert clock() < 2

    play(scene)


# rows that come one by one, all the time


async def flow(stage: Stage, seconds: float, every: float = 0.001) -> float:
    """One row after the other, each announced; answers for how long one has waited at most."""
    longest, end = 0.0, clock() + seconds
    while clock() < end:
        stage.commit(Row(clock(), A))
        await asyncio.sleep(every)
        oldest = next(iter(stage.table.pending(clock())), None)
        longest = max(longest, 0.0 if oldest is None else clock() - oldest.due)
    return longest


def test_while_rows_come_one_by_one_it_claims_some_at_once_and_none_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            await flow(stage, 0.5)
            stage.table.claims = 0
            assert await flow(stage, 2) < 0.01
            assert stage.table.claims < 450  # for 2,000 rows
            stage.loop.stop()

    play(scene)


def test_the_more_a_claim_takes_the_more_it_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        stage.table.claim_takes = 0.004
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(3)
            await flow(stage, 0.5)
            stage.table.claims = 0
            assert await flow(stage, 2) < 0.02
            assert stage.table.claims < 200
            stage.loop.stop()

    play(scene)


def test_who_has_lost_its_database_in_the_middle_of_a_look_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            stage.is_alive = False
            stage.loop._looks._under_way = True
            await asyncio.sleep(0.5)
            stage.sleeps.clear()
            await asyncio.sleep(60)
            assert len(stage.sleeps) <= 5  # and does not ask itself all the time for the look that it owes
            stage.is_alive = True
            late = Row(clock() - 2, A)
            stage.commit(late)
            await stage.until_done(within=0.1)
            stage.loop.stop()

    play(scene)


@pytest.mark.parametrize("aside", [False, True], ids=["offered", "set aside"])
def test_who_waits_for_its_quiet_without_a_database_does_not_go_round_and_round(
    monkeypatch: pytest.MonkeyPatch, *, aside: bool
) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            stage.desk.hold([delivery()], stage.lines[0])
            stage.is_alive = False
            quarantine = stage.loop._quarantine
            quarantine.until = clock() + 0.5
            if aside:
                quarantine.aside = stage.lines[0], delivery()
            else:
                quarantine.offered = stage.lines[0]
            stage.loop.wake()
            await asyncio.sleep(1)
            stage.sleeps.clear()
            await asyncio.sleep(60)
            assert len(stage.sleeps) <= 5
            stage.loop.stop()

    play(scene)


def test_what_comes_after_a_silence_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            await asyncio.sleep(0.5)
            row = Row(clock(), A)
            stage.commit(row)
            await asyncio.sleep(0.9 * stage.table.claim_takes)
            assert row.status == "in_flight"
            stage.loop.stop()

    play(scene)


def test_a_heap_in_the_middle_of_a_stream_is_taken_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            stage.commit(*(Row(clock(), A) for _ in range(1_000)))
            await stage.until_done(within=1_000 / 20 * 2 * stage.table.claim_takes)  # there is room for twenty
            stage.loop.stop()

    play(scene)


def test_a_heap_that_has_waited_is_taken_without_a_pause_although_leaps_go_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between it and now there is nothing: who claims there has not seen that nothing is left."""

    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            stage.commit(*(Row(clock() - 60 + number / 10_000, A) for number in range(1_000)))
            stage.gathered.clear()
            await stage.until_done(within=1_000 / 20 * 4 * stage.table.claim_takes)  # and as many claims in vain
            assert not any(stage.gathered)
            stage.loop.stop()

    play(scene)


def test_a_late_commit_beside_a_stream_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            late = Row(clock() - 2, A, visible=clock())
            stage.table.rows.append(late)  # and nobody says so
            assert await flow(stage, 0.04) > 1
            assert late.status == "delivered"
            stage.loop.stop()

    play(scene)


def test_what_a_broker_hands_out_is_claimed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        stage.receives = True
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await flow(stage, 1)
            assert await flow(stage, 1, every=0.003) < 3 * stage.table.claim_takes
            stage.loop.stop()

    play(scene)


def test_while_it_gathers_it_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        running = asyncio.create_task(stage.run())
        await flow(stage, 1)
        while not stage.loop._gather_for:
            await asyncio.sleep(0)
            await flow(stage, 0.001)
        stage.loop.stop()
        async with asyncio.timeout(2 * stage.table.claim_takes):
            await running

    play(scene)


def test_who_is_full_when_a_stream_ends_sleeps_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A), concurrency=2)
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            stage.table.streams = True
            stage.commit(*(Row(clock(), A, takes=20) for _ in range(30)))
            for _ in range(20):
                await asyncio.sleep(0.1)
                stage.commit(Row(clock(), A))
            stage.table.streams = False
            await asyncio.sleep(1)
            sleeps = len(stage.sleeps)
            await asyncio.sleep(10)
            assert len(stage.sleeps) - sleeps <= 3  # it has no room, and nothing to say
            # Then it looks: who trusted its lease has rung for nobody.
            stage.table.rows.append(Row(clock() - 5, A, visible=clock()))
            await stage.until_done(within=300)
            stage.loop.stop()

    play(scene)


def test_it_knows_for_how_long_it_could_not_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        claim = stage.table.claim

        async def lost(asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG) -> list[ClaimAnswer]:
            raise SubstrateLostError(f"read-only: {asks}, {along}")

        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            await asyncio.sleep(1)
            assert stage.loop.down_for() == 0
            monkeypatch.setattr(stage.table, "claim", lost)
            stage.commit(Row(clock(), A))
            await asyncio.sleep(1)
            assert stage.loop.down_for() > 0
            monkeypatch.setattr(stage.table, "claim", claim)
            await stage.until_done(within=60)
            assert stage.loop.down_for() == 0
            stage.loop.stop()

    play(scene)


def test_how_long_a_claim_took_is_not_told_by_the_loop_s_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of uvloop knows whole milliseconds only; the one of this stage, seconds that nobody has waited."""
    told: list[Note] = []
    monkeypatch.setattr(NoteTaker, "tell", lambda _, note: told.append(note))

    async def scene() -> None:
        stage = Stage(monkeypatch, line(A))
        stage.table.claim_takes = 1.0
        async with asyncio.TaskGroup() as group:
            group.create_task(stage.run())
            stage.commit(Row(clock(), A))
            await stage.until_done(within=30)
            stage.loop.stop()

    began = time.perf_counter()
    play(scene)
    claimed = [note.seconds for note in told if isinstance(note, Claimed)]
    assert claimed
    assert 0 < sum(claimed) < time.perf_counter() - began
