"""Two writers settle what plain handlers have done: the second one what is too much for the first."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg

from spectral.core.events import Consumer, DatabaseSettings
from spectral.core.events.bootstrap import worker
from spectral.core.events.delivery.tray import HEAP
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
from spectral.core.events.lease import Delivery
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry
from spectral.core.events.ports import ClaimAsk, Conclusion
from spectral.core.events.probe import Act, Activity, Finished, Note, TimedActivity
from spectral.core.events.settings import WorkerSettings
from tests.integration.delivery.platform_worker import COMPLETED, Bench, Scan, until

MANY = 3 * HEAP
SETTINGS = WorkerSettings(generation=1, name="tester")
KEY = (
    "insert into core.event_handled (handler_name, idempotency_key, event_id)"
    " values ('platform.mail', %s, gen_random_uuid())"
)
WAITS = (
    "select exists (select from pg_stat_activity where datname = current_database()"
    " and application_name = 'spectral settle tester' and wait_event_type = 'Lock')"
)


async def test_a_heap_that_has_to_wait_does_not_hold_up_the_next(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    first, second, *_ = await bench.publish(*range(MANY))

    async def so_many_are_delivered() -> bool:
        return (await bench.statuses())["delivered"] >= HEAP

    async with await psycopg.AsyncConnection.connect(bench.dsn) as elsewhere:
        # The same key, in a transaction that does not end: whoever writes it has to wait for that.
        await elsewhere.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id, content_class)"
            " values ('platform.mail', %s, %s, 'event')",
            [str(first), first],
        )
        async with bench.running(platform, concurrency=MANY):
            await until(so_many_are_delivered)
            neighbour = await bench.status(second)  # it is in the heap of the first
            await elsewhere.rollback()
            await until(lambda: bench.all_are("delivered"))
    assert neighbour == "in_flight"
    assert await bench.keys() == ["platform.mail"] * MANY


class Told:
    """A probe as the reference describes it: two methods, and nothing else."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def tell(self, note: Note) -> None:
        self.notes.append(note)

    def begin(self, act: Act) -> Activity:
        return TimedActivity(self.tell, act)


async def test_a_probe_needs_no_more_than_two_methods(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        if scan.number == 1:
            raise ValueError("no")

    ids = await bench.publish(*range(MANY))
    probe = Told()
    database = DatabaseSettings(dsn=bench.dsn)
    await worker(platform, settings=SETTINGS, database=database, probe=probe).run("drained")
    finished = [note for note in probe.notes if isinstance(note, Finished)]
    assert sorted(note.delivery.event_id for note in finished) == sorted(ids)
    assert [type(note.outcome) for note in finished if note.delivery.event_id == ids[1]] == [DeadLetter]


async def test_few_events_are_settled_on_one_connection(bench: Bench, platform: Consumer) -> None:
    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    await bench.publish(*range(HEAP // 2))
    async with bench.running(platform):
        await until(lambda: bench.all_are("delivered"))
        assert len(await bench.backends("settle")) == 1


async def claim(bench: Bench, rows: int) -> list[Delivery]:
    claims = PostgresClaims(bench.dsn, SETTINGS)
    (answer,) = await claims.claim([ClaimAsk("platform", (COMPLETED,), ("platform.mail",), rows)])
    await claims.close()
    return list(answer.deliveries)


async def settle(bench: Bench, *conclusions: Conclusion) -> set[int]:
    """Answers the numbers of those that were lost."""
    settlements = PostgresSettlements(bench.dsn, SETTINGS)
    lost = await settlements.settle(conclusions)
    await settlements.close()
    numbers = {each.delivery.lease.row_id: each.delivery.envelope().payload["number"] for each in conclusions}
    return {numbers[row_id] for row_id in lost}


def ended(delivery: Delivery, outcome: Outcome, *succeeded: str) -> Conclusion:
    return Conclusion(delivery, outcome, succeeded)


async def test_a_heap_of_all_kinds_is_settled_at_once(bench: Bench) -> None:
    await bench.publish(*range(60))
    many, few = await claim(bench, 50), await claim(bench, 10)
    handled = [ended(each, Handled(), "platform.mail") for each in many[:30]]
    by_two = [ended(each, Handled(), "platform.mail", "platform.post") for each in many[30:48]]
    alone = [ended(many[48], AlreadyHandled()), ended(many[49], Handled(), "platform.post")]
    others = [
        ended(few[0], Handled(), "platform.mail"),
        ended(few[1], Retry("OSError: away", timedelta(hours=1)), "platform.mail"),
        ended(few[2], DeadLetter("ValueError: no")),
        *(ended(each, Released()) for each in few[3:]),
    ]
    assert await settle(bench, *others, *handled, *alone, *by_two) == set()
    assert await bench.statuses() == {"delivered": 51, "pending": 8, "failed": 1}
    keys = await bench.keys()
    assert (keys.count("platform.mail"), keys.count("platform.post")) == (30 + 18 + 1 + 1, 18 + 1)


async def test_of_a_heap_those_are_lost_whose_leases_did_not_stand(bench: Bench) -> None:
    await bench.publish(*range(40))
    many, few = await claim(bench, 30), await claim(bench, 10)
    taken = [many[3], many[17], few[2], few[5], few[9]]
    await bench.execute(
        "select core.outbox_release(%s::uuid[], %s::uuid[])",
        [each.lease.row_id for each in taken],
        [each.lease.token for each in taken],
    )
    lost = await settle(
        bench,
        *(ended(each, Handled(), "platform.mail") for each in many),
        *(ended(each, Handled(), "platform.mail") for each in few[:4]),
        *(ended(each, Retry("OSError: away", timedelta(hours=1))) for each in few[4:7]),
        *(ended(each, Released()) for each in few[7:]),
    )
    assert lost == {3, 17, 32, 35, 39}
    assert len(await bench.keys()) == 28 + 3


async def test_keys_of_several_claims_are_taken_in_one_order(bench: Bench) -> None:
    """Each claim is a statement of its own: of two workers, each might hold what the other waits for."""
    for number in range(40):
        await bench.publish(number, idempotency_key=f"{'z' if number < 20 else 'a'}{number}")
    first, second = await claim(bench, 20), await claim(bench, 20)
    async with (
        await psycopg.AsyncConnection.connect(bench.dsn) as holder,
        await psycopg.AsyncConnection.connect(bench.dsn) as other,
    ):
        await holder.execute(KEY, ["a25"])
        settling = asyncio.create_task(
            settle(bench, *(ended(each, Handled(), "platform.mail") for each in (*first, *second)))
        )
        await until(lambda: bench.value(WAITS))
        await other.execute("set lock_timeout = '200ms'")
        await other.execute(KEY, ["z5"])  # behind the one that is waited for, so it is free
        await other.rollback()
        await holder.rollback()
        assert await settling == set()
    assert await bench.statuses() == {"delivered": 40}
    assert len(await bench.keys()) == 40
