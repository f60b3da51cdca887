"""The plot: horizontal bars for each scenario, as SVG, written by hand. The thin line on a bar is the spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Board, Summary

WIDTH: Final = 900
_LABELS: Final = 300
_BARS: Final = 430
_ROW: Final = 20
_HEAD: Final = 44
_COLOURS: Final = {"ours": "#2563eb", "peer": "#9ca3af", "floor": "#d6b25e"}
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#111}.t{font-weight:600;font-size:14px}.v{fill:#444}"
    "@media(prefers-color-scheme:dark){text{fill:#eee}.v{fill:#bbb}}"
)


def svg_of(boards: Sequence[Board], caption: str) -> str:
    """The whole picture."""
    parts: list[str] = []
    top = 30
    for board in boards:
        parts.append(_board(board, top))
        top += _HEAD + _ROW * len(board.summaries)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 20}" role="img">',
            f"<title>{escape(caption)}</title>",
            f"<style>{_STYLE}</style>",
            f'<text x="12" y="20">{escape(caption)}</text>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _board(board: Board, top: int) -> str:
    better = "lower is better" if board.lower_is_better else "higher is better"
    most = max((one.high for one in board.summaries), default=0.0) or 1.0
    heading = f"{board.title}, {board.unit}, {better}"
    lines = [f'<text class="t" x="12" y="{top + 24}">{escape(heading)}</text>']
    lines += [_bar(one, top + _HEAD - 8 + _ROW * number, most) for number, one in enumerate(board.summaries)]
    return "\n".join(lines)


def _bar(one: Summary, top: int, most: float) -> str:
    def across(value: float) -> float:
        return round(value / most * _BARS, 1)

    middle = top + _ROW / 2
    spread = (
        f'<path d="M{_LABELS + across(one.low)} {middle}H{_LABELS + across(one.high)}" stroke="#111" stroke-width="1"/>'
        if one.high > one.low
        else ""
    )
    end = _LABELS + max(across(one.median), across(one.high)) + 8
    return (
        f'<text x="{_LABELS - 8}" y="{middle + 4}" text-anchor="end">{escape(one.label)}</text>'
        f'<rect x="{_LABELS}" y="{top + 3}" width="{across(one.median)}" height="{_ROW - 6}" rx="2"'
        f' fill="{_COLOURS[one.group]}"/>{spread}'
        f'<text class="v" x="{end}" y="{middle + 4}">{figure(one.median)}</text>'
    )


def figure(value: float) -> str:
    """As many digits as mean something."""
    if value >= 100:  # noqa: PLR2004  three digits before the point are enough
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"  # noqa: PLR2004  the same
