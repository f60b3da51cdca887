"""How partitions look on a screen, and how a conversion is told as it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral_ops.cli.events_options import plain
from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.partitions import Maintained, OnProgress, Partition, PartitionStatus, Progress

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")
_NEXT_UNIT: Final = 1024.0
_DEDUP: Final = "dedup"


def shown(partition: Partition) -> tuple[str, ...]:
    """One partition, as a row."""
    droppable = f"{'yes' if partition.droppable else 'no'}: {partition.because}"
    return (
        partition.name,
        _day(partition.lower),
        _day(partition.upper),
        f"{partition.rows:,}",
        sized(partition.bytes),
        counted(partition.unfinished),
        counted(partition.failed),
        droppable,
    )


def counted(rows: int) -> str:
    """Rows, as far as they were counted."""
    from spectral.core.partitions import COUNTED_AT_MOST  # noqa: PLC0415  psycopg; --help must not pay for it

    return f"{COUNTED_AT_MOST:,}+" if rows > COUNTED_AT_MOST else f"{rows:,}"


def sized(size: float) -> str:
    """Bytes, as people say them."""
    for unit in _UNITS[:-1]:
        if size < _NEXT_UNIT:
            return f"{size:.0f} {unit}"
        size /= _NEXT_UNIT
    return f"{size:.0f} {_UNITS[-1]}"


def changes_of(done: Maintained) -> list[tuple[str, str]]:
    """What became, or would become, of each partition that is not left as it is."""
    would = "would be " if done.dry_run else ""
    mended = [(done.mended, "made of the default partition")] if done.mended else []
    return [
        *((name, f"{would}made") for name in done.created),
        *mended,
        *((name, f"{would}dropped") for name in done.dropped),
        *((name, "over, but too busy to be dropped now") for name in done.postponed),
        *((each.name, f"over, but kept: {each.because}") for each in done.kept),
    ]


def steps_of(before: PartitionStatus, *, dedup: bool) -> list[str]:
    """The steps that are left."""
    from spectral.core.partitions import Layout, Step  # noqa: PLC0415  psycopg; --help must not pay for it

    left = [] if before.layout is Layout.PARTITIONED else [str(step) for step in Step if step not in before.done]
    return [*left, _DEDUP] if dedup and before.dedup is Layout.PLAIN else left


def said_of(found: PartitionStatus) -> str:
    """The layout in words, and what comes next."""
    from spectral.core.partitions import Layout  # noqa: PLC0415  psycopg; --help must not pay for it

    if found.layout is Layout.PARTITIONED:
        lines = [f"core.outbox is in months; {found.months_ahead} to come have their partition"]
        if found.reversible:
            lines.append("no month has rows yet: spectral partitions disable still takes it back")
        if found.default_rows:
            lines.append(f"{counted(found.default_rows)} rows fit no month\n  try: spectral partitions maintain")
        return "\n".join(lines)
    if not found.under_way:
        return "core.outbox is one table\n  try: spectral partitions enable --dry-run"
    done = ", ".join(found.done)
    until = f"; events are refused from {found.bound_until:%Y-%m-%d %H:%M} UTC on" if found.bound_until else ""
    return (
        f"core.outbox is one table, on its way to months ({done} done){until}\n  try: spectral partitions enable\n"
        "  take it back: spectral partitions disable"
    )


def teller() -> OnProgress:
    """A line for each step, and for each try to get its lock that comes late."""
    told: list[tuple[str, str]] = []

    def tell(progress: Progress) -> None:
        line = (progress.step, progress.message)
        if line not in told or progress.attempt > 1:
            told.append(line)
            again = f" (try {progress.attempt})" if progress.attempt > 1 else ""
            note(f"{progress.position}/{progress.steps} {progress.step}: {plain(progress.message)}{again}")

    return tell


def _day(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}".removesuffix(" 00:00")
