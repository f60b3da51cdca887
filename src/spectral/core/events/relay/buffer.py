"""References that were received and not yet turned into claims: in the order they came, and not for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from uuid import UUID

    from spectral.core.events.broker import Received, Reference

_Life: TypeAlias = "tuple[UUID, int, int]"


class _Kept(NamedTuple):
    received: Received
    since: float


class Buffer:
    """Of one worker. A message that is handed out again takes the place of the one from before."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[_Life, _Kept]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, received: Iterable[Received], now: float) -> None:
        """Keep these, behind what is there."""
        for each in received:
            kept = self._kept.setdefault(each.reference.lane.context, {})
            life = _life(each.reference)
            known = kept.get(life)
            if known is None:
                self._count += 1
            kept[life] = _Kept(each, now if known is None else known.since)

    def take(self, context: str, event_types: Collection[str] | None, limit: int) -> list[Received]:
        """The first of this context and of these types; they are no longer here.

        If it is one only, the one that was attempted most often: so a row that has to run alone is asked for again.
        """
        kept = self._kept.get(context, {})
        taken: list[_Life] = []
        in_order = kept if limit > 1 else sorted(kept, key=lambda life: -life[2])  # which keeps the order of equals
        for life in in_order:
            each = kept[life]
            if len(taken) >= limit:
                break
            if event_types is None or each.received.reference.event_type in event_types:
                taken.append(life)
        self._count -= len(taken)
        return [kept.pop(life).received for life in taken]

    def restore(self, received: Collection[Received], now: float) -> None:
        """These were taken for nothing: they are the first again."""
        for context in {each.reference.lane.context for each in received}:
            behind = self._kept.pop(context, {})
            self._count -= len(behind)
            self.add((each for each in received if each.reference.lane.context == context), now)
            for each in behind.values():
                self.add([each.received], each.since)

    def has(self, context: str, event_types: Collection[str] | None) -> bool:
        """Whether there is one of this context and of these types."""
        return any(
            event_types is None or each.received.reference.event_type in event_types
            for each in self._kept.get(context, {}).values()
        )

    def drop_older(self, than: float) -> list[Received]:
        """Those that came before then, which are no longer here."""
        old = [each.received for kept in self._kept.values() for each in kept.values() if each.since < than]
        for each in old:
            del self._kept[each.reference.lane.context][_life(each.reference)]
        self._count -= len(old)
        return old

    def clear(self) -> list[Received]:
        """All of them, which are no longer here."""
        every = [each.received for kept in self._kept.values() for each in kept.values()]
        self._kept.clear()
        self._count = 0
        return every


def _life(reference: Reference) -> _Life:
    return reference.row_id, reference.replays, reference.attempts
