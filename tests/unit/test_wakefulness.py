"""When a worker lets publishers be silent, what it says, and in which order it takes that back."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from spectral.core.events import SubstrateLostError
from spectral.core.events.delivery.wakefulness import Wakefulness
from spectral.core.events.ports import NOTHING_ALONG, Along
from spectral.core.events.routes import Line

PAUSE = 15.0


class Scene:
    """A clock, and a bell that writes down what it is told."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.said: list[str] = []
        self.open_publishers = False
        self.lost = False
        self.streams = False
        self.crowded = False
        lines = [
            Line("platform", ("a.b.c", "a.b.d"), (), transactional=True),
            Line("worlds", None, (), transactional=False),
        ]
        self.wakefulness = Wakefulness(self, lines, lambda: self.now)

    async def hold(self, served: Sequence[tuple[str, str | None]]) -> bool:
        self._say(f"hold {len(served)}")
        return self.streams

    async def withdraw(self, contexts: Sequence[str], *, rings: bool = False) -> None:
        self._say(f"withdraw {' '.join(contexts)}{' and ring' if rings else ''}")

    async def is_crowded(self) -> bool:
        self._say("crowded?")
        return self.crowded

    async def is_quiet(self, contexts: Sequence[str]) -> bool:
        self._say(f"quiet? {' '.join(contexts)}")
        return not self.open_publishers

    def _say(self, what: str) -> None:
        if self.lost:
            raise SubstrateLostError("gone")
        self.said.append(what)

    def stream(self, rows: int, *, every: float, claims: int) -> None:
        for _ in range(claims):
            self.now += every
            self.wakefulness.found(rows, overflows=False)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def awake(scene: Scene) -> Scene:
    scene.stream(20, every=0.01, claims=20)
    assert scene.wakefulness.is_awake
    return scene


async def test_fifty_events_a_second_wake_nobody(scene: Scene) -> None:
    chance = random.Random(7)  # noqa: S311  arrivals, no secrets
    for _ in range(20_000):
        scene.stream(1, every=chance.expovariate(50), claims=1)
        assert not scene.wakefulness.is_awake
        assert scene.wakefulness.along() is NOTHING_ALONG
        assert await scene.wakefulness.rest(PAUSE) == PAUSE
    await scene.wakefulness.leave()
    assert set(scene.said) == {"crowded?"}
    assert len(scene.said) < 2 * 20_000 / 50  # not twice a second, when some come close together


def test_one_heap_is_no_stream(scene: Scene) -> None:
    scene.stream(1_000, every=0.01, claims=2)
    assert not scene.wakefulness.is_awake
    scene.stream(1_000, every=0.01, claims=1)
    assert scene.wakefulness.is_awake


def test_a_lease_is_renewed_four_times_a_second(awake: Scene) -> None:
    served = (("platform", "a.b.c"), ("platform", "a.b.d"), ("worlds", None))
    renewed = []
    for _ in range(100):
        awake.stream(20, every=0.01, claims=1)
        renewed.append(awake.wakefulness.along())
    assert renewed[0] == Along(served, rings=False)
    assert 4 <= sum(bool(each.awake) for each in renewed) <= 5


def test_where_it_overflows_the_others_are_rung_for(awake: Scene) -> None:
    rang = 0
    for _ in range(100):
        awake.now += 0.01
        awake.wakefulness.found(50, overflows=True)
        rang += awake.wakefulness.along().rings
    assert 3 <= rang <= 5


async def test_awake_it_polls_and_says_nothing(awake: Scene) -> None:
    assert await awake.wakefulness.rest(PAUSE) <= 0.01
    assert awake.said == []


async def test_asleep_only_after_the_lease_is_withdrawn_and_it_was_quiet_and_then_it_has_to_look(awake: Scene) -> None:
    awake.now += 0.11
    assert await awake.wakefulness.rest(PAUSE) == 0.0
    assert awake.said == ["withdraw platform worlds", "quiet? platform worlds"]
    assert awake.wakefulness.must_look
    assert await awake.wakefulness.rest(PAUSE) == 0.0  # it has not looked yet
    awake.wakefulness.must_look = False
    assert await awake.wakefulness.rest(PAUSE) == PAUSE


async def test_few_rows_are_no_reason_to_stay_awake(awake: Scene) -> None:
    awake.stream(1, every=0.02, claims=100)
    assert await awake.wakefulness.rest(PAUSE) == 0.0
    assert not awake.wakefulness.is_awake


async def test_while_a_silent_publisher_is_open_it_polls_more_and_more_slowly(awake: Scene) -> None:
    awake.open_publishers = True
    awake.now += 1
    pauses = [await awake.wakefulness.rest(PAUSE) for _ in range(6)]
    assert pauses == [0.025, 0.05, 0.1, 0.2, 0.2, 0.2]
    assert awake.said.count("withdraw platform worlds") == 1
    assert not awake.wakefulness.must_look
    assert awake.wakefulness.along() is NOTHING_ALONG
    awake.open_publishers = False
    assert await awake.wakefulness.rest(PAUSE) == 0.0
    assert awake.wakefulness.must_look


async def test_drowsy_it_wakes_up_again_with_a_new_lease(awake: Scene) -> None:
    awake.wakefulness.along()
    awake.open_publishers = True
    awake.now += 0.2
    await awake.wakefulness.rest(PAUSE)
    awake.stream(20, every=0.01, claims=20)
    assert awake.wakefulness.is_awake
    assert awake.wakefulness.along().awake


async def test_without_a_database_it_does_not_sleep(awake: Scene) -> None:
    awake.now += 1
    awake.lost = True
    with pytest.raises(SubstrateLostError):
        await awake.wakefulness.rest(PAUSE)
    await awake.wakefulness.leave()  # whoever leaves does not insist
    awake.lost = False
    assert await awake.wakefulness.rest(PAUSE) == 0.0
    assert awake.said == ["withdraw platform worlds", "quiet? platform worlds"]


async def test_who_leaves_rings_for_the_others(awake: Scene) -> None:
    await awake.wakefulness.leave()
    assert awake.said == ["withdraw platform worlds and ring", "quiet? platform worlds"]
    await awake.wakefulness.leave()
    assert len(awake.said) == 2


async def test_where_publishers_wait_for_each_other_fewer_rows_wake_it(scene: Scene) -> None:
    for _ in range(150):
        scene.stream(1, every=0.01, claims=1)
        assert await scene.wakefulness.rest(PAUSE) == PAUSE
    assert not scene.wakefulness.is_awake
    assert 4 <= len(scene.said) <= 6  # in a second and a half
    scene.crowded = True
    scene.stream(1, every=0.01, claims=30)
    assert await scene.wakefulness.rest(PAUSE) == 0.0
    assert scene.wakefulness.along().awake
    scene.stream(1, every=0.01, claims=30)
    assert await scene.wakefulness.rest(PAUSE) == 0.01  # although so few would not have woken it
    assert set(scene.said) == {"crowded?"}


async def test_an_event_now_and_then_asks_for_no_crowd(scene: Scene) -> None:
    scene.crowded = True
    scene.stream(1, every=0.02, claims=200)
    assert await scene.wakefulness.rest(PAUSE) == PAUSE
    assert scene.said == []


# without room


async def test_full_it_lets_publishers_be_silent_while_rows_come_in(scene: Scene) -> None:
    scene.streams = True
    scene.wakefulness.found(0, overflows=True, has_room=False)
    assert await scene.wakefulness.rest(PAUSE) == 0.25
    assert (scene.wakefulness.is_awake, scene.said) == (True, ["hold 3"])
    for _ in range(4):
        scene.now += 0.25
        assert await scene.wakefulness.rest(PAUSE) == 0.25
    assert scene.said == ["hold 3"] * 5


async def test_full_it_polls_what_it_has_room_for(scene: Scene) -> None:
    scene.streams = True
    scene.wakefulness.found(0, overflows=True, has_room=True)
    assert await scene.wakefulness.rest(PAUSE) == 0.01
    scene.now += 0.01
    assert await scene.wakefulness.rest(PAUSE) == 0.01
    assert scene.said == ["hold 3"]


async def test_full_without_a_stream_it_sleeps(scene: Scene) -> None:
    scene.wakefulness.found(0, overflows=True, has_room=False)
    assert await scene.wakefulness.rest(PAUSE) == PAUSE
    scene.now += 0.04
    assert await scene.wakefulness.rest(PAUSE) == PAUSE
    assert (scene.wakefulness.is_awake, scene.said) == (False, ["hold 3"])


async def test_full_it_notices_soon_that_a_stream_has_begun(scene: Scene) -> None:
    scene.wakefulness.found(0, overflows=True, has_room=False)
    assert await scene.wakefulness.rest(PAUSE) == PAUSE
    scene.streams = True
    scene.now += 0.06
    assert await scene.wakefulness.rest(PAUSE) == 0.25
    assert (scene.wakefulness.is_awake, scene.said) == (True, ["hold 3"] * 2)


async def test_when_the_stream_ends_it_falls_asleep_as_ever(scene: Scene) -> None:
    scene.streams = True
    scene.wakefulness.found(0, overflows=True, has_room=False)
    await scene.wakefulness.rest(PAUSE)
    scene.streams = False
    scene.now += 0.25
    assert await scene.wakefulness.rest(PAUSE) == 0.0
    assert scene.said[-3:] == ["hold 3", "withdraw platform worlds", "quiet? platform worlds"]
    assert scene.wakefulness.must_look


async def test_who_has_to_look_and_has_no_room_waits_for_it(awake: Scene) -> None:
    awake.now += 0.11
    assert await awake.wakefulness.rest(PAUSE) == 0.0
    awake.wakefulness.found(0, overflows=False, has_room=False)
    assert await awake.wakefulness.rest(PAUSE) == PAUSE
    assert awake.wakefulness.must_look  # it has not forgotten
    awake.wakefulness.found(0, overflows=False)
    assert await awake.wakefulness.rest(PAUSE) == 0.0


async def test_a_lease_of_which_nobody_knows_whether_it_was_taken_is_taken_back(scene: Scene) -> None:
    scene.lost = True
    scene.wakefulness.found(0, overflows=True, has_room=False)
    with pytest.raises(SubstrateLostError):
        await scene.wakefulness.rest(PAUSE)
    scene.lost = False
    assert await scene.wakefulness.rest(PAUSE) == 0.0
    assert scene.said == ["withdraw platform worlds", "quiet? platform worlds"]
