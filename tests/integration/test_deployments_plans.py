"""What it costs to look at generations does not depend on how many rows wait."""

from __future__ import annotations

from typing import Any

import psycopg

from spectral.core.database import connect
from spectral.core.deployments import reading

Connection = psycopg.Connection[Any]


async def test_a_list_reads_no_more_than_it_counts(database: str, connection: Connection) -> None:
    connection.execute(
        "insert into core.outbox (event_type, source, target, generation, channel)"
        " select 'worlds.scan.completed', 'worlds', 'platform', 1 + each %% 2, 'outbox_gen_' || 1 + each %% 2"
        " from generate_series(1, 5000) as each",
        [],
    )
    connection.execute("analyze core.outbox")
    async with connect(database, "test") as operator:
        plan = await operator.value(
            f"explain (format json) {reading._DEPLOYMENTS}", {"retired": 10, "only": None, "cap": 100}
        )
    scans = [node for node in _nodes(plan[0]["Plan"]) if node.get("Relation Name") == "outbox"]
    assert len(scans) == 3
    assert all(node["Node Type"] in {"Index Scan", "Index Only Scan"} for node in scans)


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for inner in plan.get("Plans", ()) for node in _nodes(inner))]
