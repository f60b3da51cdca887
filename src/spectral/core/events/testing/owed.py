"""Who is owed what: from an event in the ledger to the contexts, handlers and generations that are to have it."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.events.testing.evidence import Effect, Evidence, Move, Row, Subscribed
    from spectral.core.events.testing.ledger import Entry

OPEN = ("pending", "in_flight")
"""The states of a row that is not at its end."""


class Share(NamedTuple):
    """What one context is to get of an event; `generation` is the one it was published in, as far as that is known.

    `row_id` is known of a row that was swept away too: what was done to it is on record.
    """

    event_id: UUID
    event_type: str
    key: str
    context: str
    generation: int | None
    row_id: UUID
    row: Row | None

    @property
    def status(self) -> str:
        """The row's status; a row that was swept away is gone."""
        return "gone" if self.row is None else self.row.status


def child_id(parent_id: UUID, context: str) -> UUID:
    """The id of a context's share of a broadcast, as `core.outbox_child_id` makes it."""
    digest = sha256(f"{parent_id}/{context}".encode()).hexdigest()
    return UUID(f"{parent_id.hex[:12]}8{digest[:3]}a{digest[3:18]}")


class Owed:
    """Answers from the rows, the subscriptions and the audit, never from effects."""

    def __init__(self, evidence: Evidence) -> None:
        self.discarded = evidence.discarded
        self.rows: dict[UUID, list[Row]] = defaultdict(list)
        for row in evidence.rows:
            self.rows[row.event_id].append(row)
        self._moves: dict[UUID, list[Move]] = defaultdict(list)
        for move in evidence.moves:
            self._moves[move.row_id].append(move)
        self._subscribed: dict[tuple[int | None, str], list[Subscribed]] = defaultdict(list)
        for each in evidence.subscriptions:
            self._subscribed[each.generation, each.event_type].append(each)

    def is_known(self, entry: Entry) -> bool:
        """Whether its type and target are on record, in the table or in the ledger."""
        return entry.event_id in self.rows or entry.event_type is not None

    def shares(self, entry: Entry) -> list[Share]:
        """What each context is to get of it; nothing yet of a broadcast that was not split."""
        rows = self.rows.get(entry.event_id, [])
        main = next((row for row in rows if row.row_id == entry.event_id), None)
        event_type = main.event_type if main is not None else entry.event_type or ""
        target = main.target if main is not None else entry.target
        generation = entry.generation
        if generation is None and main is not None and main.row_id not in self._moves:
            generation = main.generation

        if target is not None:
            return [Share(entry.event_id, event_type, entry.key, target, generation, entry.event_id, main)]
        if main is not None and main.status in OPEN:
            return []
        children = {row.target: row for row in rows if row.target is not None}
        split_at = main.delivered_at if main is not None else None
        split_in = main.generation if main is not None else self._last_generation(entry.event_id, generation)

        def share(context: str, row: Row | None) -> Share:
            row_id = child_id(entry.event_id, context) if row is None else row.row_id
            return Share(entry.event_id, event_type, entry.key, context, split_in, row_id, row)

        subscribed = {each.context for each in self._since(split_in, event_type, split_at)}
        return [share(context, children.get(context)) for context in sorted(subscribed | children.keys())]

    def handlers(self, share: Share) -> list[str]:
        """The handlers that were subscribed when it was delivered."""
        generation = self._generation(share)
        delivered_at = None if share.row is None else share.row.delivered_at
        known = self._since(generation, share.event_type, delivered_at)
        return [each.handler_name for each in known if each.context == share.context]

    def generations(self, share: Share, effect: Effect) -> set[int]:
        """The generations the share was of when the effect was recorded; none if nobody can say."""
        moves = self._moves.get(share.row_id, [])
        if not moves:
            known = self._generation(share)
        elif effect.external:
            # Perhaps by a handler that was given up and lived on: any generation the row ever was of.
            return {each for each in (share.generation, *(move.generation for move in moves)) if each is not None}
        else:
            before = [move.generation for move in moves if move.at <= effect.recorded_at]
            known = before[-1] if before else share.generation
        return set() if known is None else {known}

    def _generation(self, share: Share) -> int | None:
        """The one its row is of, or was of when it was swept away."""
        return self._last_generation(share.row_id, share.generation) if share.row is None else share.row.generation

    def _last_generation(self, row_id: UUID, published_in: int | None) -> int | None:
        moves = self._moves.get(row_id)
        return moves[-1].generation if moves else published_in

    def _since(self, generation: int | None, event_type: str, moment: datetime | None) -> list[Subscribed]:
        """Who was subscribed at that moment; a row that is not at its end yet is owed to everybody."""
        known = self._subscribed.get((generation, event_type), [])
        return [each for each in known if moment is None or each.since is None or each.since <= moment]
