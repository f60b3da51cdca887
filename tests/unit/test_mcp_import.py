"""The agent tools without the package `mcp`: they are plain functions, and only the server needs it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["mcp"] = sys.modules["mcp_types"] = None  # importing them fails
from spectral_ops.mcp import tools
print(*sorted(tools.__all__))
"""


def test_the_tools_can_be_imported_without_the_package() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert {"list_dlq_events", "get_dlq_event_detail", "replay_dlq_event"} <= set(ran.stdout.split())
