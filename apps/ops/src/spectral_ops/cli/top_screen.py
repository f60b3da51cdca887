"""One picture of `spectral top`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from spectral.core.operations.verdict import judge
from spectral_ops.cli.status_screen import backlog_table, verdict_parts, worker_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from spectral.core.operations.insights import Snapshot
    from spectral.core.operations.insights_rates import Rates

REMEMBERED: Final = 40
_STEPS: Final = "▁▂▃▄▅▆▇█"


def parts(snapshot: Snapshot, rates: Rates, history: Sequence[Rates], width: int) -> list[RenderableType | None]:
    """Verdict, rates, what waits, what is wrong, who works: what matters most is not below the edge."""
    headline, others = verdict_parts(judge(snapshot), width)
    backlog, workers = backlog_table(snapshot, width, bars=True), worker_table(snapshot, width)
    return [_title(snapshot), headline, _rates(rates, history), backlog, others, workers]


def frame(snapshot: Snapshot, rates: Rates, history: Sequence[Rates], width: int) -> RenderableType:
    """The same as one picture, which is cut where the screen ends."""
    shown = [part for part in parts(snapshot, rates, history, width) if part is not None]
    return Group(*(each for part in shown for each in (part, Text(""))))


def _title(snapshot: Snapshot) -> Text:
    live = "none" if snapshot.live_generation is None else str(snapshot.live_generation)
    title = Text("spectral top", "bold")
    title.append(f"   {snapshot.taken_at:%H:%M:%S} UTC   live generation {live}   q ends", "dim")
    return title


def _rates(rates: Rates, history: Sequence[Rates]) -> Text:
    text = Text()
    rows = (
        ("published", rates.published, [each.published for each in history]),
        ("handled", rates.handled, [each.handled for each in history]),
    )
    for number, (name, rate, past) in enumerate(rows):
        text.append("\n" if number else "")
        text.append(f"{name:<11}")
        text.append(f"{'-' if rate is None else f'{rate:,.1f}':>9}/s", "bold")
        text.append(f"  {_sparkline(past)}", "blue")
    if rates.published is not None:
        text.append(f"\nover the last {rates.span.total_seconds():.1f} s", "dim")
    return text


def _sparkline(past: Sequence[float | None]) -> str:
    known = [rate for rate in past if rate is not None]
    most = max(known, default=0.0)
    if not most:
        return ""
    return "".join(" " if rate is None else _STEPS[round(rate / most * (len(_STEPS) - 1))] for rate in past)
