"""What the figures must show: each promise as a ratio within one run, its target, and whether it was kept.

Ours is always at its defaults. A promise whose figures were not measured in this run is open, not kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.floor import PIPELINED
from benchmarks.roster import SPECTRAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.figures import Board, Group

Boards = "Mapping[str, Board]"

OPEN: Final = "not measured"
_FLAT: Final = 0.85
_BUSY: Final = "Spectral's table, notify "
_CALM: Final = 1.0
_NEAR_ZERO: Final = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One promise. `measured` and `target` are ratios, or plain figures where the promise is one."""

    promise: str
    measured: float | None
    target: float
    at_most: bool = False
    detail: str = ""

    @property
    def kept(self) -> bool | None:
        """None when it was not measured."""
        if self.measured is None:
            return None
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    @property
    def word(self) -> str:
        """For the table."""
        return {True: "ok", False: "MISSED", None: OPEN}[self.kept]


def ratio(above: float | None, below: float | None) -> float | None:
    """None as soon as one of them is missing, or nothing can be divided by it."""
    return above / below if above is not None and below else None


def judge(boards: Mapping[str, Board]) -> list[Verdict]:
    """Every promise, in the order in which they were made."""
    return [
        _against(boards, "drain-noop", "peer", "no-op drain / best peer at its best", 1.5),
        _against(boards, "drain-noop", "floor", "no-op drain / floor", 0.4),
        _against(
            boards, "drain-upsert", "peer", "transactional upsert drain / best peer, which keeps no guarantee", 1.5
        ),
        *_beside_pgbench(boards),
        _against(boards, "publish-bulk", "peer", "bulk publish / best peer", 1.0),
        _busy(boards, "16 publishers beside a busy worker / plain insert", _plain, 0.75),
        _busy(boards, "16 publishers beside a busy worker / notify always", _always, 2.0),
        _latency(boards, "p50"),
        _latency(boards, "p99"),
        *_growth(boards),
        _pinned(boards),
        *_idle(boards),
    ]


def _against(boards: Mapping[str, Board], name: str, group: Group, promise: str, target: float) -> Verdict:
    board = boards.get(name)
    ours = board.of(SPECTRAL.label) if board else None
    best = board.best(group) if board else None
    if ours is None or best is None:
        return Verdict(promise, None, target)
    return Verdict(
        promise,
        ratio(ours.median, best.median),
        target,
        detail=f"{ours.median:,.0f} / {best.median:,.0f} ({best.label})",
    )


def _beside_pgbench(boards: Mapping[str, Board]) -> list[Verdict]:
    """As pgbench does it by itself, with a round trip for each statement, and as we do, in a pipeline."""
    board = boards.get("drain-upsert")
    ours = board.of(SPECTRAL.label) if board else None
    floors = {one.label.endswith(PIPELINED): one for one in board.summaries if one.group == "floor"} if board else {}
    verdicts: list[Verdict] = []
    for is_pipelined in (False, True):
        beside = floors.get(is_pipelined)
        promise = f"transactional upsert drain / the same SQL in pgbench{PIPELINED * is_pipelined}"
        detail = f"{ours.median:,.0f} / {beside.median:,.0f}" if ours and beside else ""
        measured = ratio(ours.median if ours else None, beside.median if beside else None)
        verdicts.append(Verdict(promise, measured, 0.5, detail=detail))
    return verdicts


def _plain(board: Board) -> float | None:
    best = board.best("floor")
    return best.median if best else None


def _always(board: Board) -> float | None:
    found = board.of(f"{_BUSY}always")
    return found.median if found else None


def _busy(boards: Mapping[str, Board], promise: str, beside: Callable[[Board], float | None], target: float) -> Verdict:
    """By the mode that is the default: the bell, once there is one."""
    board = boards.get("publish-busy")
    if board is None:
        return Verdict(promise, None, target)
    ours = board.of(f"{_BUSY}bell") or board.of(f"{_BUSY}always")
    other = beside(board)
    measured = ratio(ours.median if ours else None, other)
    detail = f"{ours.median:,.0f} ({ours.label}) / {other:,.0f}" if ours and other else ""
    return Verdict(promise, measured, target, detail=detail)


def _latency(boards: Mapping[str, Board], which: str) -> Verdict:
    board = boards.get("latency")
    ours = board.of(SPECTRAL.label) if board else None
    best = board.best("peer", which) if board else None
    promise = f"latency {which} / best peer's"
    if ours is None or best is None or which not in ours.extras:
        return Verdict(promise, None, 1.0, at_most=True)
    mine, theirs = ours.extras[which], best.extras[which]
    detail = f"{mine:.2f} ms / {theirs:.2f} ms ({best.label})"
    return Verdict(promise, ratio(mine, theirs), 1.0, at_most=True, detail=detail)


def _growth(boards: Mapping[str, Board]) -> list[Verdict]:
    board = boards.get("growth")
    if board is None or not board.summaries:
        return [Verdict("drain with 5,000,000 old rows / empty table", None, _FLAT)]
    empty, *grown = board.summaries
    return [
        Verdict(
            f"drain, {one.label.partition(', ')[2]} / empty table",
            ratio(one.median, empty.median),
            _FLAT,
            detail=f"{one.median:,.0f} / {empty.median:,.0f}",
        )
        for one in grown
    ]


def _pinned(boards: Mapping[str, Board]) -> Verdict:
    board = boards.get("pinned")
    pinned = board.of(f"{SPECTRAL.label}, pinned") if board else None
    free = board.of(f"{SPECTRAL.label}, free") if board else None
    detail = f"{pinned.median:,.0f} / {free.median:,.0f}" if pinned and free else ""
    measured = ratio(pinned.median if pinned else None, free.median if free else None)
    return Verdict("drain beside a pinned snapshot / free", measured, _FLAT, detail=detail)


def _idle(boards: Mapping[str, Board]) -> list[Verdict]:
    board = boards.get("idle")
    ours = board.of(SPECTRAL.label) if board else None
    cpu = ours.extras.get("client_cpu_percent") if ours else None
    return [
        Verdict("idle worker, statements per second", ours.median if ours else None, _CALM, at_most=True),
        Verdict("idle worker, per cent of a processor", cpu, _NEAR_ZERO, at_most=True),
    ]
