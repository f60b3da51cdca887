"""What may be done with a generation, and what a person is told: judged without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spectral.core.database import RefusedError
from spectral.core.deployments import (
    Blocker,
    Count,
    Deployment,
    HandOver,
    HandOverPreview,
    Promotion,
    Release,
    Status,
    Waiting,
    judging,
    remarks,
    warnings,
)
from spectral.core.deployments.reading import capped
from spectral.core.events import ConfigurationError, Consumer, EventEnvelope

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def at(hour: int) -> datetime:
    return _EPOCH + timedelta(hours=hour)


def live(generation: int, **known: object) -> Deployment:
    return deployment(generation, Status.LIVE, promoted_at=at(generation), workers=("w",), **known)


def draining(generation: int, promoted: int | None, **known: object) -> Deployment:
    return deployment(generation, Status.DRAINING, promoted_at=None if promoted is None else at(promoted), **known)


def deployment(generation: int, status: Status, **known: object) -> Deployment:
    return Deployment(generation=generation, status=status, **known)  # type: ignore[arg-type]  # each test's own


def refused(error: pytest.ExceptionInfo[RefusedError]) -> tuple[str, str | None]:
    return str(error.value), error.value.remedy


def test_a_count_says_when_it_is_not_the_whole() -> None:
    assert (str(Count(9_999)), str(capped(10_000)), str(capped(10_001))) == ("9,999", "10,000", "10,000+")


@pytest.mark.parametrize(
    ("status", "expected"),
    [(Status.ALLOCATED, 1), (Status.LIVE, 2), (Status.DRAINING, 3), (Status.RETIRED, 4)],
)
def test_a_generation_is_in_its_status_since_it_came_into_it(status: Status, expected: int) -> None:
    times = {"allocated_at": at(1), "promoted_at": at(2), "drained_at": at(3), "retired_at": at(4)}
    assert deployment(1, status, **times).since == at(expected)


def test_a_release_knows_who_handles_what() -> None:
    consumer = Consumer("billing")

    @consumer.on("orders.order.placed")
    async def send_invoice(event: EventEnvelope) -> None: ...

    (subscription,) = Release.of([consumer], label="v2").subscriptions
    assert subscription == ("billing", "orders.order.placed", "billing.send_invoice", 6)
    assert Release.of([]).subscriptions == ()
    with pytest.raises(ConfigurationError, match="no handlers"):
        Release.of([Consumer("billing")])


@pytest.mark.parametrize(
    ("asked", "highest", "known", "given"),
    [
        (None, None, None, 1),
        (None, 7, None, 8),
        (0, None, None, 0),
        (9, 7, None, 9),
        (7, 7, Status.ALLOCATED, 7),
        (5, 7, Status.ALLOCATED, 5),
        (9, 7, Status.UNKNOWN, 9),
    ],
)
def test_the_next_number_is_given_or_one_that_is_free_and_higher(
    asked: int | None, highest: int | None, known: Status | None, given: int
) -> None:
    found = None if known is None else deployment(asked or 0, known)
    assert judging.require_allocatable(asked, highest, found) == given


@pytest.mark.parametrize(
    ("asked", "known", "said"),
    [
        (7, Status.LIVE, "generation 7 is live already"),
        (7, Status.RETIRED, "generation 7 is retired already"),
        (3, None, "generation 3 is below 7, the highest so far"),
        (3, Status.UNKNOWN, "generation 3 is below 7, the highest so far"),
    ],
)
def test_a_number_that_is_taken_or_was_passed_over_is_refused(asked: int, known: Status | None, said: str) -> None:
    with pytest.raises(RefusedError) as error:
        judging.require_allocatable(asked, 7, None if known is None else deployment(asked, known))
    assert refused(error) == (said, "spectral generations allocate")


@pytest.mark.parametrize("status", [Status.ALLOCATED, Status.LIVE, Status.DRAINING])
def test_what_is_not_retired_may_be_promoted_and_drained(status: Status) -> None:
    judging.require_promotable(deployment(1, status))
    judging.require_drainable(deployment(1, status))


def test_what_is_retired_or_was_never_allocated_is_neither_promoted_nor_drained() -> None:
    with pytest.raises(RefusedError) as error:
        judging.require_promotable(deployment(1, Status.RETIRED))
    assert refused(error) == ("generation 1 is retired, and stays so", "spectral generations allocate")
    with pytest.raises(RefusedError) as error:
        judging.require_promotable(deployment(9, Status.UNKNOWN))
    assert refused(error)[1] == "spectral generations allocate --generation 9"
    for status in (Status.RETIRED, Status.UNKNOWN):
        with pytest.raises(RefusedError) as error:
            judging.require_drainable(deployment(1, status))
        assert refused(error)[1] == "spectral generations list"


def test_a_rollback_goes_to_the_one_that_was_live_before() -> None:
    # 2 went live after 1, was rolled back, and 4 went live: 1 was live before it, not 2.
    deployments = [live(4), deployment(3, Status.ALLOCATED), draining(2, promoted=2), draining(1, promoted=3)]
    assert judging.before_the_live_one(deployments).generation == 1
    # one that was drained without ever having been live is no place to go back to
    with pytest.raises(RefusedError) as error:
        judging.before_the_live_one([live(4), draining(3, promoted=None), deployment(2, Status.RETIRED)])
    assert refused(error) == (
        "there is nothing to roll back to: generation 4 is live, and none before it is draining",
        "spectral generations list",
    )


def test_with_none_live_a_rollback_goes_to_the_one_that_was_last() -> None:
    assert judging.before_the_live_one([draining(3, promoted=3), draining(2, promoted=2)]).generation == 3
    with pytest.raises(RefusedError, match="none is live"):
        judging.before_the_live_one([])


def test_a_second_rollback_does_not_bring_back_what_the_first_took_away() -> None:
    with pytest.raises(RefusedError) as error:
        judging.before_the_live_one([draining(3, promoted=3), live(2), draining(1, promoted=1)])
    said, remedy = refused(error)
    assert said.startswith("generation 2 is live by a rollback from 3")
    assert remedy == "spectral generations promote 3"


def test_what_is_left_of_a_generation_is_told_when_it_is_not_retired() -> None:
    blockers = [
        Blocker("pending", "platform", "worlds.scan.completed", 1_200),
        Blocker("in_flight", "platform", "worlds.scan.completed", 1),
        Blocker("pending", None, "worlds.scan.begun", 2),
    ]
    with pytest.raises(RefusedError) as error:
        judging.require_retirable(draining(1, promoted=1), blockers, live(2), heir=None)
    assert refused(error) == (
        (
            "generation 1 is not at its end: 1,200 pending worlds.scan.completed of platform, "
            "1 in flight worlds.scan.completed of platform, 2 pending worlds.scan.begun to all"
        ),
        "spectral generations hand-over 1 2",
    )


def test_of_many_kinds_of_rows_the_rest_is_summed_up() -> None:
    blockers = [Blocker("pending", "platform", f"worlds.scan.v{number}", 10_001 - number) for number in range(7)]
    told = judging.list_of_blockers(blockers)
    assert told.startswith("10,000+ pending worlds.scan.v0 of platform, 10,000 pending")
    assert told.endswith(", 19,991 of other types")


def test_where_rows_should_go_is_the_live_one_or_else_the_newest_that_is_not_retired() -> None:
    blockers = [Blocker("pending", "platform", "worlds.scan.completed", 1)]
    for heir, remedy in ((deployment(3, Status.ALLOCATED), "spectral generations hand-over 1 3"), (None, None)):
        with pytest.raises(RefusedError) as error:
            judging.require_retirable(draining(1, promoted=1), blockers, None, heir=heir)
        assert refused(error)[1] == (remedy or "spectral generations list")


def test_what_is_only_in_flight_is_waited_for_and_not_handed_over() -> None:
    in_flight = [Blocker("in_flight", "platform", "worlds.scan.completed", 1)]
    with pytest.raises(RefusedError) as error:
        judging.require_retirable(draining(1, promoted=1), in_flight, live(2), heir=None)
    assert refused(error)[1] == "spectral generations list"


def test_the_live_one_is_not_retired() -> None:
    heirs = (
        (deployment(3, Status.ALLOCATED), "spectral generations promote 3"),
        (draining(1, promoted=1), None),
        (None, None),
    )
    for heir, remedy in heirs:
        with pytest.raises(RefusedError) as error:
            judging.require_retirable(live(2), [], None, heir=heir)
        assert refused(error) == (
            "generation 2 is live; promote another one first",
            remedy or "spectral generations list",
        )
    with pytest.raises(RefusedError, match="was never allocated"):
        judging.require_retirable(deployment(2, Status.UNKNOWN), [], None, heir=None)


def test_what_is_retired_stays_so_whatever_came_afterwards() -> None:
    late = [Blocker("pending", "platform", "worlds.scan.completed", 1)]
    judging.require_retirable(deployment(1, Status.RETIRED), late, live(2), heir=None)


@pytest.mark.parametrize(
    ("order", "source", "target", "said", "remedy"),
    [
        (HandOver(1, 1), Status.DRAINING, Status.DRAINING, "from one generation to another", "list"),
        (HandOver(1, 2, batch=0), Status.DRAINING, Status.LIVE, "at least one row", "hand-over --help"),
        (HandOver(1, 2), Status.DRAINING, Status.RETIRED, "generation 2 is retired", "list"),
        (HandOver(1, 2), Status.DRAINING, Status.UNKNOWN, "generation 2 is not allocated", "list"),
        (HandOver(1, 2), Status.LIVE, Status.ALLOCATED, "its publishers would go on filling it", "promote 2"),
    ],
)
def test_rows_do_not_go_just_anywhere(order: HandOver, source: Status, target: Status, said: str, remedy: str) -> None:
    with pytest.raises(RefusedError, match=said) as error:
        judging.require_hand_over(order, deployment(order.source, source), deployment(order.target, target))
    assert refused(error)[1] == f"spectral generations {remedy}"


@pytest.mark.parametrize("source", [Status.ALLOCATED, Status.DRAINING, Status.RETIRED, Status.UNKNOWN])
@pytest.mark.parametrize("target", [Status.ALLOCATED, Status.LIVE, Status.DRAINING])
def test_rows_of_whatever_is_not_live_may_be_handed_over(source: Status, target: Status) -> None:
    judging.require_hand_over(HandOver(1, 2), deployment(1, source), deployment(2, target))


def test_a_preview_warns_of_rows_that_nobody_would_handle() -> None:
    waiting = (
        Waiting("platform", "worlds.scan.completed", 1_500, subscribed=True),
        Waiting("platform", "worlds.scan.renamed", 3, subscribed=False),
        Waiting(None, "worlds.scan.begun", 2, subscribed=False),
    )
    preview = HandOverPreview(HandOver(1, 2), waiting, capped=True, in_flight=Count(0), workers=())
    assert str(preview.total) == "1,505+"
    assert warnings(preview) == [
        (
            "3 worlds.scan.renamed of platform: nobody subscribes to them in generation 2, so they would end as "
            "NoHandlerError"
        ),
        "2 worlds.scan.begun to all: nobody subscribes to them in generation 2, so they would be delivered to nobody",
        "there are at least 1,505 rows; nobody has looked at the types of the rest",
        "generation 2 has no worker",
    ]
    assert warnings(HandOverPreview(HandOver(1, 2), (), capped=False, in_flight=Count(0), workers=())) == []


def test_a_healthy_system_is_not_remarked_on() -> None:
    drained_by_the_new = draining(1, promoted=1, pending=Count(5), accepted_by=("w",))
    assert remarks([deployment(3, Status.ALLOCATED), live(2, pending=Count(9)), drained_by_the_new]) == []


def test_what_nobody_works_on_is_remarked_on_with_the_command_that_sees_to_it() -> None:
    rows = {"pending": Count(5)}
    found = remarks(
        [
            deployment(9, Status.UNKNOWN, **rows),
            live(4),
            draining(3, promoted=3, **rows),
            deployment(1, Status.RETIRED, **rows),
        ]
    )
    assert [(each.message, each.remedy) for each in found] == [
        ("5 rows wait in generation 9, which is not allocated", "spectral generations hand-over 9 4"),
        ("5 rows wait in generation 3, which has no worker", "spectral generations hand-over 3 4"),
        ("5 rows wait in generation 1, which is retired", "spectral generations hand-over 1 4"),
    ]
    (alone,) = remarks([deployment(4, Status.LIVE)])
    assert alone.message == "generation 4 is live and has no worker"


@pytest.mark.parametrize(
    ("deployments", "remedy"),
    [
        ([], "spectral generations allocate"),
        ([deployment(1, Status.RETIRED)], "spectral generations allocate"),
        ([deployment(3, Status.ALLOCATED), draining(2, promoted=2, workers=("w",))], "spectral generations promote 3"),
    ],
)
def test_that_none_is_live_is_remarked_on(deployments: list[Deployment], remedy: str) -> None:
    (found,) = remarks(deployments)
    assert (found.message, found.remedy) == ("no generation is live", remedy)


def test_a_promotion_says_what_it_replaces() -> None:
    assert (str(Promotion(2, 0)), Promotion(2, 0).changed) == ("generation 2 instead of 0", True)
    assert (str(Promotion(2, None)), Promotion(2, None).changed) == ("generation 2", True)
    assert not Promotion(2, 2).changed
