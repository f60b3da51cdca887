"""Partitions: the outbox by month, the dedup log by hash.

A table of some million rows is vacuumed, swept and backed up as one; by months, what is over is dropped instead of
deleted. Every function of the schema works on both layouts, and so does everybody who uses them: only what is here
knows of partitions. The database has the steps (`core.partitions_*`, `core.partition_*`); here they are
read, judged and taken in their order.

    enable   from plain to partitioned, under load        disable   the way back, until events lie in months
    maintain months ahead, and drop what is over          partition_status   where all that stands

Read in this order: `values`, `judging`, `reading`, `telling`, `patience`, `grants`, `dedup`, `steps`, `maintaining`.
"""

from spectral.core.partitions.maintaining import maintain
from spectral.core.partitions.reading import partition_status
from spectral.core.partitions.steps import disable, enable
from spectral.core.partitions.values import (
    COUNTED_AT_MOST,
    MONTHS_AHEAD,
    EnableOptions,
    Keep,
    Layout,
    Maintained,
    OnProgress,
    Partition,
    PartitionKind,
    PartitionStatus,
    Progress,
    Step,
)

__all__ = [
    "COUNTED_AT_MOST",
    "MONTHS_AHEAD",
    "EnableOptions",
    "Keep",
    "Layout",
    "Maintained",
    "OnProgress",
    "Partition",
    "PartitionKind",
    "PartitionStatus",
    "Progress",
    "Step",
    "disable",
    "enable",
    "maintain",
    "partition_status",
]
