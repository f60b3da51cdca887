"""Which events the dead letters were of that an operator has changed: asked for by the statement that changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

from spectral.core.events.probe import EventRef, RowRef

if TYPE_CHECKING:
    from collections.abc import Sequence


def answers_of(call: LiteralString, *more: LiteralString) -> LiteralString:
    """What this call answers for every id: the id, why it was refused, whose it is if it was not, and more columns."""
    columns = ", ".join(
        (
            "select answer.id, answer.refusal, label.event_id, label.event_type, label.source, label.target",
            "label.workspace_id, label.trace_context",
            *more,
        )
    )
    return (
        f"{columns} from {call} as answer"
        " left join lateral core.outbox_label(answer.id) as label on answer.refusal is null order by answer.id"
    )


def changed_rows(answers: Sequence[tuple[Any, ...]]) -> list[RowRef]:
    """Those that were not refused."""
    return [RowRef(row_id, EventRef(*label[:6])) for row_id, refusal, *label in answers if refusal is None]
