"""Whom the audit names when an agent acts."""

from __future__ import annotations

import pytest

from spectral_ops.mcp.identity import acting


@pytest.mark.parametrize(
    ("client", "version", "person", "expected"),
    [
        ("desk-agent", "2.1.0", "ada@ops", "agent:desk-agent/2.1.0 for ada@ops"),
        ("inspector", "", "ada", "agent:inspector for ada"),
        (None, None, "Ada Lovelace", "agent:unknown for Ada Lovelace"),
        ("", "1", "", "agent:unknown/1 for unknown"),
        ("x for root", "1\n2", "ada@ops", "agent:x_for_root/1_2 for ada@ops"),
    ],
)
def test_the_agent_and_the_person_are_both_named(
    client: str | None, version: str | None, person: str, expected: str
) -> None:
    assert acting(client, version, person) == expected


def test_it_fits_the_audit_whatever_the_client_is_called() -> None:
    assert len(acting("a" * 1000, "1" * 1000, "b" * 1000)) <= 200
