"""The relay's side of Redis: references into the stream of their lane, as long as it has room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from spectral.core.events.infrastructure.redis.connection import Line, Refusal
from spectral.core.events.infrastructure.redis.shape import AT_ONCE, prepare, send, stream_of, streams_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spectral.core.events.broker import BrokerLane, Reference
    from spectral.core.events.broker_settings import BrokerSettings

ROOM: Final = 100_000
"""Messages a stream may hold. The relay stops long before; this is for several of them, or one gone mad."""

_SCANNED: Final = 1_000


class RedisSender:
    """Implements `BrokerSender`. What was sent twice is kept twice: Redis does not know a message by its id."""

    def __init__(self, settings: BrokerSettings, prefix: str, *, room: int = ROOM) -> None:
        self._prefix = prefix
        self._room = room
        self._line = Line(settings)
        self._prepared: set[BrokerLane] = set()

    async def open(self) -> None:
        """See `BrokerSender`."""
        self._prepared.clear()  # it may have been restarted without its data
        await self._line.open()

    def advice(self) -> tuple[str, ...]:
        """See `BrokerSender`."""
        return self._line.advice()

    async def prepare(self, lane: BrokerLane) -> None:
        """See `BrokerSender`."""
        if lane not in self._prepared:
            await self._line.demand(prepare(stream_of(self._prefix, lane)))
            self._prepared.add(lane)

    async def send(self, references: Sequence[Reference]) -> list[Reference]:
        """See `BrokerSender`."""
        batches = list(_batches(references))
        answers = await self._line.ask(
            *(
                send(stream_of(self._prefix, batch[0].lane), self._room, (each.encode() for each in batch))
                for batch in batches
            )
        )
        refused: list[Reference] = []
        for batch, answer in zip(batches, answers, strict=True):
            if isinstance(answer, Refusal) and answer.code != "OOM":
                raise self._line.judge(answer)
            sent = 0 if isinstance(answer, Refusal) else cast("int", answer)
            refused += batch[sent:]
        return refused

    async def waiting(self, lane: BrokerLane) -> int:
        """See `BrokerSender`."""
        (length,) = await self._line.demand(("XLEN", stream_of(self._prefix, lane)))
        return cast("int", length)

    async def forget(self, generation: int) -> None:
        """See `BrokerSender`."""
        self._prepared = {lane for lane in self._prepared if lane.generation != generation}
        pattern = streams_of(self._prefix, generation)
        cursor = b"0"
        while True:
            (answer,) = await self._line.demand(("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED, "TYPE", "stream"))
            cursor, streams = cast("tuple[bytes, list[bytes]]", answer)
            if streams:
                await self._line.demand(("UNLINK", *streams))
            if cursor == b"0":
                return

    async def check(self) -> None:
        """See `BrokerSender`."""
        await self._line.demand(("PING",))

    async def close(self) -> None:
        """See `BrokerSender`."""
        await self._line.drop()


def _batches(references: Sequence[Reference]) -> Iterator[list[Reference]]:
    """Those of one lane together, in their order, and not too many at once."""
    lanes: dict[BrokerLane, list[Reference]] = {}
    for reference in references:
        lanes.setdefault(reference.lane, []).append(reference)
    for of_lane in lanes.values():
        for first in range(0, len(of_lane), AT_ONCE):
            yield of_lane[first : first + AT_ONCE]
